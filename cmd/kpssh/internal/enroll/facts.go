// Package enroll brings kpssh-shim onto a host over an administrator's login and checks the statement
// that the host makes about itself.
package enroll

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/adminlogin"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

// Facts are what is asked of a host before anything is changed on it.
type Facts struct {
	Arch        string // as Go names it
	CPUs        int
	MemoryBytes int64
	Hostname    string
}

// MemTotal is what the kernel has left of the memory; the controller's probe compares with the same
// figure.
const factsScript = `uname -s; uname -m; getconf _NPROCESSORS_ONLN; while read -r k v u; do case $k in MemTotal:) echo "$v";; esac; done </proc/meminfo; uname -n`

// Ask asks a host for its facts.
func Ask(ctx context.Context, t adminlogin.Transport) (Facts, error) {
	out, err := t.Run(ctx, factsScript, nil)
	if err != nil {
		return Facts{}, fmt.Errorf("asking the host what it is: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	// A chatty login prints before the answer, never within it.
	if len(lines) < 5 {
		return Facts{}, fmt.Errorf("asking the host what it is: %d lines instead of 5: %.200q", len(lines), out)
	}
	lines = lines[len(lines)-5:]
	if lines[0] != "Linux" {
		return Facts{}, fmt.Errorf("the host runs %.200q; kpssh-shim needs Linux", lines[0])
	}
	f := Facts{Arch: goArch(lines[1]), Hostname: strings.ToLower(lines[4])}
	if f.Arch == "" {
		return Facts{}, fmt.Errorf("the host's architecture %.200q is not known", lines[1])
	}
	if f.CPUs, err = strconv.Atoi(lines[2]); err != nil || f.CPUs < 1 {
		return Facts{}, fmt.Errorf("the host's number of CPUs is %.200q", lines[2])
	}
	kib, err := strconv.ParseInt(lines[3], 10, 64)
	if err != nil || kib < 1 || kib > 1<<40 {
		return Facts{}, fmt.Errorf("the host's memory is %.200q", lines[3])
	}
	f.MemoryBytes = kib << 10
	return f, nil
}

func goArch(machine string) string {
	switch machine {
	case "x86_64", "amd64":
		return "amd64"
	case "aarch64", "arm64":
		return "arm64"
	case "armv6l", "armv7l", "armv8l":
		return "arm"
	case "riscv64", "ppc64le", "s390x":
		return machine
	}
	return ""
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Name is the name of the SSHHost: the one asked for, or the host's own up to its first dot.
func Name(asked, hostname string) (string, error) {
	if asked != "" {
		if !namePattern.MatchString(asked) {
			return "", cli.Usagef("--name %.200q is not the name of an object (lower case letters, digits and -)", asked)
		}
		return asked, nil
	}
	short, _, _ := strings.Cut(hostname, ".")
	if !namePattern.MatchString(short) || short == "localhost" {
		return "", cli.Hint(fmt.Errorf("the host calls itself %.200q, which cannot name an SSHHost", hostname), "name it with --name")
	}
	return short, nil
}
