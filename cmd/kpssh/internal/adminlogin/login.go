// Package adminlogin runs commands on a host over the login that its operator has already: keys from
// files and the agent, host keys from known_hosts, sudo where the user is not root. Where that is
// not enough (jump hosts, hardware keys, passwords) the operator's own ssh program does it.
package adminlogin

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Login names a host and the user to log in as.
type Login struct {
	User string
	// Host is an IP address without brackets, or a DNS name.
	Host string
	Port int // 0 when not given
}

// Parse parses user@host[:port]; an IPv6 address with a port needs brackets.
func Parse(text string) (Login, error) {
	bad := fmt.Errorf("%q is not user@host[:port]", text)
	at := strings.LastIndex(text, "@")
	if at < 1 || strings.ContainsAny(text, " \t\r\n'\"\\") {
		return Login{}, bad
	}
	l := Login{User: text[:at], Host: text[at+1:]}
	if inner, found := strings.CutPrefix(l.Host, "["); found && strings.HasSuffix(inner, "]") {
		l.Host = strings.TrimSuffix(inner, "]")
	} else if found || strings.Count(l.Host, ":") == 1 {
		var err error
		if l.Host, l.Port, err = splitPort(l.Host); err != nil {
			return Login{}, fmt.Errorf("%q is not user@host[:port]: %v", text, err)
		}
	}
	// A leading dash would become an option of the ssh program.
	if l.Host == "" || strings.HasPrefix(l.Host, "-") || strings.HasPrefix(l.User, "-") {
		return Login{}, bad
	}
	return l, nil
}

func splitPort(text string) (string, int, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%q is not a port", port)
	}
	return host, int(n), nil
}

// Address is the dial address.
func (l Login) Address() string {
	port := l.Port
	if port == 0 {
		port = 22
	}
	return net.JoinHostPort(l.Host, strconv.Itoa(port))
}

// Transport runs one command at a time on a host.
type Transport interface {
	// Run runs a command for sh, gives it stdin, and returns what it printed, bounded. An error of the
	// command is a *CommandError.
	Run(ctx context.Context, command string, stdin []byte) ([]byte, error)
	// HostKey is the SHA256: fingerprint of the host key of the connection, empty when not known.
	HostKey() string
	Close() error
}

// CommandError is a command that ran and failed.
type CommandError struct {
	Code   int
	Stderr string // one harmless line
}

// Error implements error.
func (e *CommandError) Error() string {
	if e.Stderr == "" {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return fmt.Sprintf("exit status %d: %s", e.Code, e.Stderr)
}

const (
	// maxOutput bounds what is kept of a command's output.
	maxOutput = 1 << 20
	// maxSaid bounds what an error repeats of a host's words.
	maxSaid = 4 << 10
)

// Quote quotes a word for sh.
func Quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
