package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const usage = `kpssh-lab runs a real Kubernetes cluster and real pool hosts on this machine, to try things and to test.
Everything is in a network namespace of its own and goes away when it ends. It needs root (except doctor), and
installs what the machine lacks with apt-get.

Usage:
  kpssh-lab up [-hosts N] [-node] [-exec COMMAND]
                                            start a lab; it lasts until Ctrl-C
  kpssh-lab image-load -node HOST -archive FILE [-lab ID]
                                            give a host of a lab that is up a container image
  kpssh-lab prepare [-api-server]           fill the caches, so that the next start is quick
  kpssh-lab gc                              remove what killed labs left
  kpssh-lab doctor                          say what this machine lacks

Examples:
  sudo kpssh-lab up -hosts 2
      prints how to reach the cluster (KUBECONFIG) and the hosts (ssh), and waits for Ctrl-C
  kpssh-lab prepare -api-server
      what the API-server-only tests need, without root

Environment:
  KPSSH_KUBE_BIN_DIR      a directory with kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy,
                          kubectl, etcd
  KPSSH_KUBE_RELEASE_URL  where Kubernetes' release files are; "off" builds from source at once
  KPSSH_DEBIAN_MIRROR     where the hosts' Debian comes from
  XDG_CACHE_HOME          caches are in its kpssh directory
`

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	verbs := map[string]func(context.Context, []string, io.Writer, io.Writer) error{
		"up": up, "image-load": imageLoad, "prepare": prepare, "gc": collect, "doctor": doctor,
	}
	switch args[0] {
	case "-h", "--help", "help":
		fmt.Fprint(stdout, usage)
		return 0
	}
	verb, ok := verbs[args[0]]
	if !ok {
		fmt.Fprintf(stderr, "kpssh-lab: error: there is no %q\n\n%s", args[0], usage)
		return exitUsage
	}
	err := verb(ctx, args[1:], stdout, stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, new(usageError)):
		fmt.Fprintf(stderr, "kpssh-lab: error: %v\n", err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "kpssh-lab: error: %v\n", err)
		return exitFailure
	}
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

// parse reads the flags of a verb, which takes no other arguments.
func parse(verb string, args []string, stderr io.Writer, define func(*flag.FlagSet)) error {
	flags := flag.NewFlagSet("kpssh-lab "+verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	if define != nil {
		define(flags)
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Errorf("%s takes no argument %q", verb, flags.Arg(0))}
	}
	return nil
}

// progress prints messages with the time since it was made.
func progress(w io.Writer) func(string, ...any) {
	began := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(w, "[%6.1fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}

func prepare(ctx context.Context, args []string, _, stderr io.Writer) error {
	var apiServer bool
	err := parse("prepare", args, stderr, func(f *flag.FlagSet) {
		f.BoolVar(&apiServer, "api-server", false, "only what an API server needs; works without root")
	})
	if err != nil {
		return err
	}
	return lab.Prepare(ctx, progress(stderr), apiServer)
}

func collect(_ context.Context, args []string, _, stderr io.Writer) error {
	if err := parse("gc", args, stderr, nil); err != nil {
		return err
	}
	return lab.CollectGarbage(progress(stderr))
}
