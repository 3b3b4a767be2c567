package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

func imageLoad(ctx context.Context, args []string, _, stderr io.Writer) error {
	var id, node, archive string
	err := parse("image-load", args, stderr, func(f *flag.FlagSet) {
		f.StringVar(&id, "lab", "", "id of the lab; needed if several are up")
		f.StringVar(&node, "node", "", "the host's name, such as host-a")
		f.StringVar(&archive, "archive", "", "an image as docker-archive or OCI tar, for this machine's architecture")
	})
	if err != nil {
		return err
	}
	if node == "" || archive == "" {
		return usageError{errors.New("image-load needs -node and -archive")}
	}
	if _, err := os.Stat(archive); err != nil {
		return fmt.Errorf("finding the image: %w: `make image` makes it", err)
	}
	return lab.LoadImage(ctx, id, node, archive)
}
