// Command kpssh makes keys, signs what hosts may run, and enrols hosts. It is a kubectl plugin too:
// installed as kubectl-kpssh it answers to "kubectl kpssh".
package main

import (
	"context"
	"os"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

var version = "dev" // set by the linker

func main() {
	os.Exit(cli.Execute(context.Background(), cli.System(version), commands(), os.Args[1:]))
}

func commands() *cli.Command {
	return &cli.Command{
		Name:  "kpssh",
		Usage: usage,
		Sub: []*cli.Command{
			initCommand(),
			{
				Name: "profile", Short: "allow what hosts may run: render, lint, sign, diff, verify", Usage: profileUsage,
				Sub: []*cli.Command{
					profileRenderCommand(), profileLintCommand(), profileSignCommand(), profileDiffCommand(), profileVerifyCommand(),
				},
			},
			{
				Name: "host", Short: "bring hosts into the pool, list them, take them out of use", Usage: hostUsage,
				Sub: []*cli.Command{hostEnrollCommand(), hostListCommand(), hostDrainCommand(), hostUndrainCommand(), hostResetCommand()},
			},
			{
				Name: "root", Short: "make, sign and show root documents", Usage: rootUsage,
				Sub: []*cli.Command{
					rootNewCommand(), rootAddKeyCommand(), rootRemoveKeyCommand(), rootRotateCommand(), rootSignCommand(), rootShowCommand(),
				},
			},
			{
				Name: "trust", Short: "see what hosts believe", Usage: trustUsage,
				Sub: []*cli.Command{trustStatusCommand()},
			},
			{
				Name: "keys", Short: "make keys, show and replace them", Usage: keysUsage,
				Sub: []*cli.Command{keysNewCommand(), keysShowCommand(), keysRotateCommand()},
			},
			{
				Name: "verify", Short: "check a document like a host or a controller does", Usage: verifyUsage,
				Sub: []*cli.Command{
					verifyRootCommand(), verifyAllowlistCommand(), verifyWalkCommand(), verifyOrderCommand(),
					verifyHelloCommand(), verifyReceiptCommand(),
				},
			},
			auditCommand(),
			versionCommand(),
		},
	}
}
