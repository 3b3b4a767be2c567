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
  --only LIST  figures to measure, of P1 to P10, Q1 to Q10 (default all)
  --profiles DIR
               folder that takes profiles of the controller, taken after what Q6
               and Q10 measure
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
	// profiles is the folder that profiles of the controller are written to, empty for none.
	profiles string
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
		{names: []string{"Q3"}, measure: (*bench).growth},
		{names: []string{"Q4"}, measure: (*bench).crowd},
		{names: []string{"Q5"}, measure: (*bench).probes},
		{names: []string{"Q6"}, measure: (*bench).load},
		{names: []string{"Q7"}, measure: (*bench).types},
		{names: []string{"Q8"}, measure: (*bench).hanging},
		{names: []string{"Q9"}, measure: (*bench).takeover},
		{names: []string{"Q10"}, measure: (*bench).idle},
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
	if len(args) == 1 && args[0] == hostVerb {
		return beAHost(os.Stdin, stdout)
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
	fs.StringVar(&b.profiles, "profiles", "", "")
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
