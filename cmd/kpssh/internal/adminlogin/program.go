package adminlogin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
)

// sshFailed is the exit code with which OpenSSH reports its own failure.
const sshFailed = 255

// Program logs in with the operator's own ssh program, with all that their configuration can do.
// words is the program and its options, split at spaces.
func Program(env *cli.Env, words string, l Login) (Transport, error) {
	argv := strings.Fields(words)
	if len(argv) == 0 {
		return nil, cli.Usagef("--ssh-command is empty")
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, fmt.Errorf("looking for the ssh program: %w", err)
	}
	argv[0] = path
	if l.Port != 0 {
		argv = append(argv, "-p", strconv.Itoa(l.Port))
	}
	return &program{env: env, argv: append(argv, "-T", "-l", l.User, "--", l.Host)}, nil
}

type program struct {
	env  *cli.Env
	argv []string
}

// HostKey implements Transport: the program does not tell.
func (p *program) HostKey() string { return "" }

// Close implements Transport.
func (p *program) Close() error { return nil }

// Run implements Transport.
func (p *program) Run(ctx context.Context, command string, stdin []byte) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.argv[0], append(p.argv[1:len(p.argv):len(p.argv)], command)...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, stderr capped
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == sshFailed:
		return nil, fmt.Errorf("%s: %s", p.argv[0], dispatch.Sanitise(stderr.String(), maxSaid))
	case errors.As(err, &exit):
		return out.Bytes(), &CommandError{Code: exit.ExitCode(), Stderr: dispatch.Sanitise(stderr.String(), maxSaid)}
	case out.full:
		return nil, errors.New("the host printed too much")
	}
	return out.Bytes(), err
}

// capped keeps the beginning of what is written to it.
type capped struct {
	bytes.Buffer
	full bool
}

// Write implements io.Writer.
func (c *capped) Write(p []byte) (int, error) {
	if room := maxOutput - c.Len(); len(p) > room {
		c.full = true
		c.Buffer.Write(p[:room])
	} else {
		c.Buffer.Write(p)
	}
	return len(p), nil
}
