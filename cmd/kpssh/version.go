package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

const versionUsage = `
Usage: @kpssh version

Prints the version of kpssh.

Example:
    $ @kpssh version
`

func versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Short: "print the version", Usage: versionUsage,
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("version takes no arguments")
			}
			_, err := fmt.Fprintf(env.Stdout, "kpssh %s (%s %s/%s)\n", env.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
