// Command image makes the controller's container image, and pushes it: with a library, and without a container engine.
// Layers hold no times but the release's, so that the same programs make the same digests everywhere.
//
// [build.sh] compiles what it takes. What `build` leaves in its folder:
//
//	oci/                                     OCI layout: one index of linux/amd64 and linux/arm64
//	karpenter-provider-ssh-linux-ARCH.tar    the image of one platform, for `ctr images import` and `docker load`
//	karpenter-provider-ssh-linux-ARCH.cdx.json  what is in it, as CycloneDX
//	digest                                   the index's digest, which pushing does not change
//
// [build.sh]: https://github.com/kpssh/karpenter-provider-ssh/blob/main/packaging/image/build.sh
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
	"time"
)

const usage = `Usage:
  image build -programs FOLDER -out FOLDER -image REGISTRY/NAME:TAG -version V -time SECONDS [-revision COMMIT]
  image push -from FOLDER -image REGISTRY/NAME:TAG

build takes karpenter-provider-ssh-linux-ARCH and its SBOM, …-linux-ARCH.cdx.json, for amd64 and arm64.
push logs in as docker, podman and crane do: with what "docker login" kept.
`

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	fs := flag.NewFlagSet("image "+args[0], flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage) }
	var b build
	var from string
	var seconds int64
	fs.StringVar(&b.image, "image", "", "")
	var act func() (string, error)
	switch args[0] {
	case "build":
		fs.StringVar(&b.programs, "programs", "", "")
		fs.StringVar(&b.out, "out", "", "")
		fs.StringVar(&b.version, "version", "", "")
		fs.StringVar(&b.revision, "revision", "", "")
		fs.Int64Var(&seconds, "time", 0, "")
		act = func() (string, error) {
			b.created = time.Unix(seconds, 0).UTC()
			return b.run()
		}
	case "push":
		fs.StringVar(&from, "from", "", "")
		act = func() (string, error) { return push(ctx, from, b.image) }
	default:
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch err := fs.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil || fs.NArg() > 0:
		return exitUsage
	}
	said, err := act()
	if err != nil {
		fmt.Fprintf(stderr, "image: error: %v\n", err)
		return exitFailure
	}
	fmt.Fprintln(stdout, said)
	return 0
}
