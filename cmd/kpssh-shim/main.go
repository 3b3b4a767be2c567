// A session is one short process: it neither asks its control group for a CPU limit nor follows its changes.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command kpssh-shim is the host's end of karpenter-provider-ssh: the login shell of user kpssh,
// and the root stage behind it that runs what a signed order names.
package main

import (
	"os"

	"github.com/kpssh/karpenter-provider-ssh/shim"
)

// Set by the linker.
var version, built string

func main() {
	os.Exit(shim.Main(shim.Process{
		Args: os.Args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Version: version, Built: built,
	}))
}
