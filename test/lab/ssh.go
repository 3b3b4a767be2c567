package lab

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// adminKey logs in as root on every host of a lab.
type adminKey struct{ signer ssh.Signer }

// newSSHKey makes a key and its PEM form.
func newSSHKey(comment string) (ssh.Signer, []byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making an SSH key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, nil, fmt.Errorf("making an SSH key: %w", err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("making an SSH key: %w", err)
	}
	return signer, pem.EncodeToMemory(block), nil
}

func newAdminKey(path string) (*adminKey, error) {
	signer, content, err := newSSHKey("kpssh-lab admin")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return nil, fmt.Errorf("keeping the admin's SSH key: %w", err)
	}
	return &adminKey{signer: signer}, nil
}

// AdminKeyPath is the private key that logs in as root on every host.
func (l *Lab) AdminKeyPath() string { return filepath.Join(l.site.dir, "admin.key") }

// line is a public key as authorized_keys and known_hosts write it.
func line(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

// Exec runs a command on the host as root and returns its standard output. Arguments arrive as given. When the command
// fails, errors.As finds an *ssh.ExitError, and the message has standard error.
func (h *Host) Exec(ctx context.Context, command ...string) (string, error) {
	return h.ExecInput(ctx, nil, command...)
}

// ExecInput is Exec with standard input.
func (h *Host) ExecInput(ctx context.Context, stdin io.Reader, command ...string) (string, error) {
	client, err := h.login(ctx)
	if err != nil {
		return "", fmt.Errorf("logging in to %s: %w", h.Name, err)
	}
	defer func() { _ = client.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer stop()
	session, err := client.NewSession()
	if err != nil {
		return "", errors.Join(ctx.Err(), fmt.Errorf("opening a session on %s: %w", h.Name, err))
	}
	var stdout, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = stdin, &stdout, &stderr
	if err := session.Run(quote(command)); err != nil {
		return stdout.String(), errors.Join(ctx.Err(),
			fmt.Errorf("running %s on %s: %w: %s", abridge(command), h.Name, err, bytes.TrimSpace(stderr.Bytes())))
	}
	return stdout.String(), nil
}

// login connects as root.
func (h *Host) login(ctx context.Context) (*ssh.Client, error) {
	address := net.JoinHostPort(h.Address, "22")
	conn, err := h.lab.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	// A host that accepts and then says nothing must not hold the handshake for ever.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c, channels, requests, err := ssh.NewClientConn(conn, address, &ssh.ClientConfig{
		User:            "root",
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(h.lab.admin.signer)},
		HostKeyCallback: ssh.FixedHostKey(h.hostKey),
	})
	if err != nil {
		return nil, errors.Join(ctx.Err(), err, conn.Close())
	}
	return ssh.NewClient(c, channels, requests), nil
}

// abridge is a command as an error message shows it: scripts are long.
func abridge(command []string) string {
	const most = 80
	text := strings.Join(strings.Fields(strings.Join(command, " ")), " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return text
}

// quote makes one shell word of each argument.
func quote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
