package adminlogin

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

// Root runs commands as root over a login.
type Root struct {
	transport Transport
	// prefix goes before "sh -c …"; empty for root itself.
	prefix string
	// password is what sudo asks for on stdin, with its line end; empty where it does not ask.
	password []byte
}

// BecomeRoot finds out how the login becomes root: it is, sudo needs no password, or sudo is given one.
func BecomeRoot(ctx context.Context, env *cli.Env, t Transport, l Login) (*Root, error) {
	id, err := t.Run(ctx, "id -u", nil)
	if err != nil {
		return nil, fmt.Errorf("asking who %s is: %w", l.User, err)
	}
	if strings.TrimSpace(string(id)) == "0" {
		return &Root{transport: t}, nil
	}
	_, err = t.Run(ctx, "LC_ALL=C sudo -n true", nil)
	if err == nil {
		return &Root{transport: t, prefix: "sudo -n -- "}, nil
	}
	var failed *CommandError
	if !errors.As(err, &failed) {
		return nil, err
	}
	if failed.Code == 127 {
		return nil, cli.Hint(fmt.Errorf("%s is not root on %s, and there is no sudo", l.User, l.Host), "log in as root")
	}
	password, err := env.ReadSecret(fmt.Sprintf("[sudo] password for %s on %s: ", l.User, l.Host))
	if errors.Is(err, cli.ErrNoTerminal) {
		return nil, cli.Hint(fmt.Errorf("sudo on %s wants a password, and there is no terminal to ask on", l.Host),
			"let %s use sudo without a password for the enrolment, or log in as root", l.User)
	}
	if err != nil {
		return nil, err
	}
	// -k: without it a sudo that remembers the user would leave the password to the command's stdin.
	r := &Root{transport: t, prefix: "LC_ALL=C sudo -k -S -p '' -- ", password: append(password, '\n')}
	if _, err := r.Run(ctx, "true", nil); err != nil {
		return nil, fmt.Errorf("becoming root on %s: %w", l.Host, err)
	}
	return r, nil
}

// Run runs a script with sh as root.
func (r *Root) Run(ctx context.Context, script string, stdin []byte) ([]byte, error) {
	if len(r.password) == 0 {
		return r.transport.Run(ctx, r.prefix+"sh -c "+Quote(script), stdin)
	}
	if len(stdin) == 0 {
		return r.transport.Run(ctx, r.prefix+"sh -c "+Quote(script), r.password)
	}
	// sudo-rs reads beyond the line of the password, so that the script's input must come another way:
	// through a file of the user, who could become root without it.
	out, err := r.transport.Run(ctx, "umask 077; f=$(mktemp) && cat >\"$f\" && echo \"$f\"", stdin)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	path := lines[len(lines)-1]
	if !pathPattern.MatchString(path) {
		return nil, fmt.Errorf("making a file on the host: it answers %.200q", path)
	}
	out, err = r.transport.Run(ctx, r.prefix+"sh -c "+Quote("exec <"+path+"; rm -f "+path+"; "+script), r.password)
	if err != nil {
		// Where sudo refused, the file is still there; where the connection is gone, so is this.
		_, _ = r.transport.Run(ctx, "rm -f "+path, nil)
	}
	return out, err
}

var pathPattern = regexp.MustCompile(`^/[A-Za-z0-9/._-]+$`)
