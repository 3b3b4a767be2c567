// Package cli is the frame of the kpssh command line: a tree of verbs over the standard flag
// package, hand-written help, and one place that decides what goes to which stream.
//
// Data goes to stdout. Everything said to a person goes to stderr as "kpssh: error:",
// "kpssh: warning:", "kpssh: hint:" or plain progress. Exit codes: 0 done, 1 failure, 2 usage.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
)

// Env is everything that a verb may touch of the process it runs in.
type Env struct {
	// Prog is how the user calls the program: "kpssh", or "kubectl kpssh" as a plugin.
	Prog           string
	Version        string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
	// Colour says that stderr is a terminal whose user did not set NO_COLOR.
	Colour bool
	// ColourOut says the same of stdout.
	ColourOut bool
	// ReadSecret shows a prompt on the controlling terminal and reads a line without echo. It
	// returns ErrNoTerminal when there is none.
	ReadSecret func(prompt string) ([]byte, error)
	// Executable is the path of the running program, empty when unknown.
	Executable string
}

// Command is a verb, or a group of verbs when Sub is not empty.
type Command struct {
	Name  string
	Short string // one line for the list of the parent
	// Usage is the text of -h. "@kpssh" stands for the way the program was called.
	Usage string
	Flags func(*flag.FlagSet)
	Run   func(ctx context.Context, env *Env, args []string) error
	Sub   []*Command
}

// ProgName derives Prog from the program's path, so that the same binary serves as kubectl plugin.
func ProgName(argv0 string) string {
	if strings.HasPrefix(filepath.Base(argv0), "kubectl-") {
		return "kubectl kpssh"
	}
	return "kpssh"
}

// Execute runs the verb that args name and returns the exit code.
func Execute(ctx context.Context, env *Env, root *Command, args []string) int {
	err := execute(ctx, env, root, args, nil)
	if err == nil {
		return 0
	}
	return report(env, err)
}

func execute(ctx context.Context, env *Env, cmd *Command, args, path []string) error {
	if len(cmd.Sub) > 0 {
		return group(ctx, env, cmd, args, path)
	}
	fs := flag.NewFlagSet(cmd.Name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if cmd.Flags != nil {
		cmd.Flags(fs)
	}
	rest, err := parse(fs, args)
	if errors.Is(err, flag.ErrHelp) {
		env.help(cmd)
		return nil
	}
	if err != nil {
		return env.usage(path, err.Error())
	}
	err = cmd.Run(ctx, env, rest)
	var bad *UsageError
	if errors.As(err, &bad) && bad.Hint == "" {
		bad.Hint = fmt.Sprintf("run '%s' to see how it is used", env.call(path, "-h"))
	}
	return err
}

func group(ctx context.Context, env *Env, cmd *Command, args, path []string) error {
	if len(args) == 0 {
		return env.usage(path, "a verb is missing")
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		if args[0] == "help" && len(args) > 1 {
			return execute(ctx, env, cmd, append(args[1:], "-h"), path)
		}
		env.help(cmd)
		return nil
	case "-version", "--version":
		args[0] = "version"
	}
	for _, sub := range cmd.Sub {
		if sub.Name == args[0] {
			return execute(ctx, env, sub, args[1:], append(path, sub.Name))
		}
	}
	return env.usage(path, fmt.Sprintf("unknown verb %q", args[0]))
}

// parse lets flags stand before, between and after the arguments, as people type them; "--" ends them.
func parse(fs *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		consumed := len(args) - fs.NArg()
		if consumed > 0 && args[consumed-1] == "--" {
			return append(rest, fs.Args()...), nil
		}
		if fs.NArg() == 0 {
			return rest, nil
		}
		rest = append(rest, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

func (e *Env) call(path []string, last string) string {
	return strings.Join(append(append([]string{e.Prog}, path...), last), " ")
}

func (e *Env) usage(path []string, msg string) error {
	return &UsageError{Message: msg, Hint: fmt.Sprintf("run '%s' to see how it is used", e.call(path, "-h"))}
}

func (e *Env) help(cmd *Command) {
	fmt.Fprint(e.Stdout, strings.ReplaceAll(strings.TrimPrefix(cmd.Usage, "\n"), "@kpssh", e.Prog))
	if len(cmd.Sub) == 0 {
		return
	}
	fmt.Fprintln(e.Stdout, "\nVerbs:")
	t := NewTable("", "")
	for _, sub := range cmd.Sub {
		t.Row("  "+sub.Name, sub.Short)
	}
	e.PrintTo(e.Stdout, t)
	fmt.Fprintf(e.Stdout, "\nEach verb has -h with an example.\n")
}
