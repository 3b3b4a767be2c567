package adminlogin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// Options say how to log in.
type Options struct {
	// Identities are private key files; when empty, the agent's keys and ~/.ssh/id_*.
	Identities []string
	KnownHosts string // ~/.ssh/known_hosts when empty
	// HostKey pins the host's key, in place of known_hosts.
	HostKey string
	// AcceptNew takes the key of a host that known_hosts does not name.
	AcceptNew bool
}

// maxKeys is how many keys a login may offer before sshd hangs up.
const maxKeys = 5

// Dial logs in with our own SSH client.
func Dial(ctx context.Context, env *cli.Env, l Login, o Options) (Transport, error) {
	keys, closeAgent, err := signers(env, o.Identities)
	if err != nil {
		return nil, err
	}
	defer closeAgent()
	policy, err := hostKeyPolicy(env, l, o)
	if err != nil {
		return nil, err
	}
	conn, err := remote.Dial(ctx, remote.Target{
		Address: l.Host, Port: l.Port, User: l.User, Keys: keys, HostKey: policy,
	})
	var unknown *unknownHostError
	switch {
	case err == nil:
		return &client{conn: conn}, nil
	case errors.As(err, &unknown):
		return nil, cli.Hint(fmt.Errorf("the host key of %s is not known: %s", l.Address(), unknown.fingerprint),
			"compare it with 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' on the host, then add --host-key %s", unknown.fingerprint)
	case remote.Class(err) == remote.ClassHostKeyMismatch:
		return nil, cli.Hint(err, "either the host was reinstalled, or somebody is in between: find out which before you change known_hosts or --host-key")
	case remote.Class(err) == remote.ClassAuthRejected:
		return nil, cli.Hint(err, "name the right key with -i FILE, or let your own ssh log in: --ssh-command ssh")
	}
	return nil, err
}

type unknownHostError struct{ fingerprint string }

// Error implements error.
func (e *unknownHostError) Error() string { return "not in known_hosts" }

func hostKeyPolicy(env *cli.Env, l Login, o Options) (remote.HostKeyPolicy, error) {
	if o.HostKey != "" {
		policy, err := remote.Pin(o.HostKey)
		if err != nil {
			return policy, cli.Usagef("--host-key: %v", err)
		}
		return policy, nil
	}
	known, err := knownKeys(env, l, o.KnownHosts)
	if err != nil {
		return remote.HostKeyPolicy{}, err
	}
	if known != "" {
		return remote.Pin(known)
	}
	return remote.FirstUse(func(fingerprint string) error {
		if o.AcceptNew {
			env.Warnf("taking the host key of %s on trust: %s", l.Address(), fingerprint)
			return nil
		}
		return &unknownHostError{fingerprint}
	}), nil
}

// knownKeys returns the key lines that known_hosts has for a host, empty when it has none. The
// knownhosts package only answers whether a given key is right, so it is asked about a wrong one.
func knownKeys(env *cli.Env, l Login, path string) (string, error) {
	given := path != ""
	if !given {
		path = filepath.Join(home(env), ".ssh", "known_hosts")
	}
	check, err := knownhosts.New(path)
	if errors.Is(err, fs.ErrNotExist) && !given {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading known hosts: %w", err)
	}
	probe, err := ssh.NewPublicKey(probeKey())
	if err != nil {
		return "", err
	}
	var wrong *knownhosts.KeyError
	err = check(l.Address(), &net.TCPAddr{IP: net.IPv4zero}, probe)
	if !errors.As(err, &wrong) {
		return "", fmt.Errorf("reading known hosts: %w", err)
	}
	var lines []string
	for _, want := range wrong.Want {
		line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(want.Key)))
		// DSA and certificate authorities are of no use here; the other lines still are.
		if _, err := remote.Pin(line); err == nil {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n"), nil
}

// signers are the keys to offer.
func signers(env *cli.Env, identities []string) (keys []ssh.Signer, closeAgent func(), err error) {
	closeAgent = func() {}
	if len(identities) > 0 {
		for _, path := range identities {
			key, err := identity(env, path)
			if err != nil {
				return nil, nil, fmt.Errorf("reading identity %q: %w", path, err)
			}
			keys = append(keys, key)
		}
		return keys, closeAgent, nil
	}
	if socket := env.Getenv("SSH_AUTH_SOCK"); socket != "" {
		if conn, err := net.DialTimeout("unix", socket, 5*time.Second); err == nil {
			if held, err := agent.NewClient(conn).Signers(); err == nil {
				keys = held
			}
			closeAgent = func() { conn.Close() }
		}
	}
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		// A key under a passphrase is not asked for here: it is most likely the agent's.
		pem, err := os.ReadFile(filepath.Join(home(env), ".ssh", name))
		if err != nil {
			continue
		}
		if key, err := ssh.ParsePrivateKey(pem); err == nil {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		closeAgent()
		return nil, nil, cli.Hint(errors.New("there is no key to log in with: the agent has none and ~/.ssh holds none without a passphrase"),
			"name one with -i FILE, or let your own ssh log in: --ssh-command ssh")
	}
	if len(keys) > maxKeys {
		env.Warnf("offering the first %d of %d keys; name the right one with -i FILE", maxKeys, len(keys))
		keys = keys[:maxKeys]
	}
	return keys, closeAgent, nil
}

func identity(env *cli.Env, path string) (ssh.Signer, error) {
	pem, err := env.Read(path)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(pem)
	var locked *ssh.PassphraseMissingError
	if !errors.As(err, &locked) {
		return key, err
	}
	passphrase, err := env.ReadSecret(fmt.Sprintf("Passphrase for %s: ", path))
	if errors.Is(err, cli.ErrNoTerminal) {
		return nil, cli.Hint(errors.New("it is under a passphrase, and there is no terminal to ask on"), "add it to ssh-agent and leave out -i")
	}
	if err != nil {
		return nil, err
	}
	return ssh.ParsePrivateKeyWithPassphrase(pem, passphrase)
}

func home(env *cli.Env) string { return env.Getenv("HOME") }

type client struct{ conn *remote.Conn }

// HostKey implements Transport.
func (c *client) HostKey() string { return c.conn.HostKeyFingerprint() }

// Close implements Transport.
func (c *client) Close() error { return c.conn.Close() }

// Run implements Transport.
func (c *client) Run(ctx context.Context, command string, stdin []byte) ([]byte, error) {
	stream, err := c.conn.Start(ctx, command)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// A command may end without reading all; its exit status says what that means.
		if _, err := stream.Write(stdin); err == nil {
			_ = stream.CloseWrite()
		}
	}()
	out, err := io.ReadAll(io.LimitReader(stream, maxOutput))
	if err != nil {
		return nil, err
	}
	if len(out) == maxOutput {
		return nil, errors.New("the host printed too much")
	}
	err = stream.Wait()
	var exit *remote.ExitError
	if errors.As(err, &exit) {
		return out, &CommandError{Code: exit.Code, Stderr: dispatch.Sanitise(exit.Stderr(), maxSaid)}
	}
	return out, err
}
