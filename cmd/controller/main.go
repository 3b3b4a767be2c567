// Command karpenter-provider-ssh is the controller: karpenter core with a provider that makes hosts of an SSH pool
// members of the cluster.
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

	"github.com/kpssh/karpenter-provider-ssh/pkg/operator"
	"github.com/kpssh/karpenter-provider-ssh/pkg/operator/options"
)

// version is set by the linker.
var version = "dev"

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := options.Parse(args, os.LookupEnv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "karpenter-provider-ssh: error: %v\n", err)
		return exitUsage
	}
	o, err := operator.New(ctx, opts, version, stdout)
	if err == nil {
		err = o.Start(ctx)
	}
	if err != nil {
		fmt.Fprintf(stderr, "karpenter-provider-ssh: error: %v\n", err)
		return exitFailure
	}
	return 0
}
