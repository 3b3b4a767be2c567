// Command bench measures the product's speed as ratios: both sides of each figure run in turns in this one run, so that
// what else the machine does meets both. It drives the built programs: the shim as a process, the controller on a lab
// of real hosts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
