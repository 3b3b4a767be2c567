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
	tar, err := os.ReadFile(archive)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the image: %w: `make image` makes it", err)
	}
	if err != nil {
		return fmt.Errorf("reading the image: %w", err)
	}
	return lab.LoadImage(ctx, id, node, tar)
}
