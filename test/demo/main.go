// Command demo shows the main job on real parts: a pending pod pulls a pool host into a cluster and gives it back, twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `Usage: demo [flags]

Starts a control plane and pool hosts, enrolls the hosts, and shows two rounds of
scale-up and scale-down with the seconds that each step took. Needs root.

Flags:
  --hosts N    pool hosts to start (default 2)
  --keep       leave it up after the rounds, until Ctrl-C, and say how to reach it
  -h           this text

Example:
    $ make demo
    $ make demo KEEP=1
`

// exitStopped is what a shell says of a program that Ctrl-C ended.
const exitStopped = 130

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Ctrl-C on `make demo | tee log` ends tee as well. Writing into the void must not end the demo before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var d demo
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage) }
	fs.IntVar(&d.hosts, "hosts", 2, "")
	fs.BoolVar(&d.keep, "keep", false, "")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil || fs.NArg() > 0 || d.hosts < 1:
		fmt.Fprint(stderr, usage)
		return 2
	}
	d.out = stdout
	switch err := d.play(ctx); {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "demo: stopped while %v\n", err)
		return exitStopped
	default:
		fmt.Fprintf(stderr, "demo: error: %v\n", err)
		return 1
	}
}
