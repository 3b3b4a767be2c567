package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

const usage = `Usage: bench [flags]

Measures ratios, both sides in turns, and prints one table at the end. Needs root,
ssh-keygen, and what "make build" makes; runs in the root of the repository.

Flags:
  --only LIST  figures to measure, of P1 to P10, Q1, Q2 (default all)
  -o FORMAT    table (default) or json
  -h           this text

Example:
    $ make bench
    $ make bench BENCH_FLAGS="--only P2,Q1 -o json"

exit: 0 no required goal is missed, 1 the 95 % interval of one excludes it, or an
error, 2 usage
`

// bench is one run.
type bench struct {
	repo string
	log  io.Writer
	only []string
	json bool
}

// groups are figures that are measured together, in the order in which they are run: what needs a lab comes last.
func groups() []group {
	return []group{
		{names: []string{"P9"}, measure: (*bench).hostile},
		{names: []string{"P1", "P2", "P3"}, measure: (*bench).shimRuns},
		{names: []string{"P4", "P5"}, measure: (*bench).connections},
		{names: []string{"P6"}, measure: (*bench).burst},
		{names: []string{"P7"}, measure: (*bench).wide},
		{names: []string{"P8"}, measure: (*bench).memory},
		{names: []string{"Q1"}, measure: (*bench).claims},
		{names: []string{"P10", "Q2"}, measure: (*bench).onStage},
	}
}

type group struct {
	names   []string
	measure func(*bench, context.Context) ([]Result, error)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == serveVerb {
		return serveSSH(os.Stdin, stdout)
	}
	b := &bench{log: stderr}
	if code, ok := b.parse(args, stderr); !ok {
		return code
	}
	results, err := b.measure(ctx)
	if len(results) > 0 {
		write := writeTable
		if b.json {
			write = writeJSON
		}
		err = errors.Join(err, write(stdout, results))
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: error: %v\n", err)
		return 1
	}
	if slices.ContainsFunc(results, Result.fails) {
		return 1
	}
	return 0
}

// parse reads the flags; when it is not ok the program ends with code.
func (b *bench) parse(args []string, stderr io.Writer) (code int, ok bool) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage) }
	only := fs.String("only", "", "")
	format := fs.String("o", "table", "")
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0, false
	}
	if err != nil { // the flag package has said what and how
		return 2, false
	}
	b.json = *format == "json"
	switch err = b.choose(*only); {
	case err != nil:
	case fs.NArg() > 0:
		err = fmt.Errorf("%q is no flag", fs.Arg(0))
	case *format != "table" && !b.json:
		err = fmt.Errorf("there is no format %q", *format)
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: error: %v\n\n%s", err, usage)
		return 2, false
	}
	if b.repo, err = os.Getwd(); err != nil {
		fmt.Fprintf(stderr, "bench: error: %v\n", err)
		return 1, false
	}
	return 0, true
}

// choose takes the list of figures; none is all.
func (b *bench) choose(list string) error {
	var all []string
	for _, g := range groups() {
		all = append(all, g.names...)
	}
	if list == "" {
		b.only = all
		return nil
	}
	for name := range strings.SplitSeq(list, ",") {
		if !slices.Contains(all, name) {
			return fmt.Errorf("there is no figure %q", name)
		}
		b.only = append(b.only, name)
	}
	return nil
}

func (b *bench) wants(name string) bool { return slices.Contains(b.only, name) }

// measure runs the groups that are wanted. What was measured before an error is returned with it.
func (b *bench) measure(ctx context.Context) ([]Result, error) {
	var results []Result
	for _, g := range groups() {
		if !slices.ContainsFunc(g.names, b.wants) {
			continue
		}
		began := time.Now()
		b.say("measuring %s", strings.Join(g.names, ", "))
		got, err := g.measure(b, ctx)
		for _, r := range got {
			if b.wants(r.figure()) {
				results = append(results, r)
			}
		}
		if err != nil {
			return results, fmt.Errorf("measuring %s: %w", strings.Join(g.names, ", "), err)
		}
		b.say("measured %s in %.0f s", strings.Join(g.names, ", "), time.Since(began).Seconds())
	}
	return results, nil
}

// say reports progress.
func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.log, "bench: "+format+"\n", args...) }

// detail is progress of a part.
func (b *bench) detail(format string, args ...any) { b.say("  "+format, args...) }
