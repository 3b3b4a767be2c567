package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// Defaults of a Target.
const (
	DefaultPort = 22
	// DefaultHandshakeTimeout is long because UseDNS or GSSAPI can hold a login for 20 s and more.
	DefaultHandshakeTimeout = 45 * time.Second
	DefaultKeepalive        = 15 * time.Second
)

// maxJumps bounds a chain.
const maxJumps = 8

// MaxKeys is below sshd's default MaxAuthTries of 6, the first of which the "none" request takes.
const MaxKeys = 5

// Target is a host to log in to.
type Target struct {
	// Address is an IP address (IPv6 with or without brackets) or a DNS name.
	Address string
	// Port is 22 when zero.
	Port int
	User string
	// Keys are tried in order; at most MaxKeys. RSA keys sign with SHA-2 only. A certificate is a key of its own.
	Keys    []ssh.Signer
	HostKey HostKeyPolicy
	// Via is the jump host that forwards the connection, with a login and a pin of its own. It is reached first, and
	// may itself lie behind another. Nil dials directly.
	Via *Target
	// HandshakeTimeout bounds everything up to the accepted key; 45 s when zero.
	HandshakeTimeout time.Duration
	// Keepalive is the interval between signs of life, 15 s when zero. Three without one end the
	// connection.
	Keepalive time.Duration
}

// host is the address without brackets.
func (t Target) host() string { return strings.TrimSuffix(strings.TrimPrefix(t.Address, "["), "]") }

func (t Target) port() int {
	if t.Port == 0 {
		return DefaultPort
	}
	return t.Port
}

// hostPort is the dial address.
func (t Target) hostPort() string { return net.JoinHostPort(t.host(), strconv.Itoa(t.port())) }

// hops is how many jump hosts are on the way.
func (t Target) hops() int {
	n := 0
	for via := t.Via; via != nil && n <= maxJumps; via = via.Via {
		n++
	}
	return n
}

// hop is the number of a jump host: the one that is dialled directly is 1.
func (t Target) hop() int { return t.hops() + 1 }

func (t Target) handshakeTimeout() time.Duration {
	if t.HandshakeTimeout <= 0 {
		return DefaultHandshakeTimeout
	}
	return t.HandshakeTimeout
}

// key is the same for targets that may share a connection: who logs in where, on which way, with which keys. The
// host key policy is asked again at every reuse.
func (t Target) key() string {
	h := sha256.New()
	if t.Via != nil {
		fmt.Fprintf(h, "%q ", t.Via.jumpKey())
	}
	fmt.Fprintf(h, "%q %q", t.hostPort(), t.User)
	for _, fingerprint := range keyFingerprints(t.Keys) {
		fmt.Fprintf(h, " %q", fingerprint)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// jumpKey keeps hosts apart that pin their jump host differently: the wrong pin of one must not cut the others off.
func (t Target) jumpKey() string { return "jump " + t.key() + " " + t.HostKey.identity() }

// place names the sshd that is dialled, whoever logs in: it is the one that counts attempts.
func (t Target) place() string {
	if t.Via == nil {
		return t.hostPort()
	}
	return t.Via.jumpKey() + " " + t.hostPort()
}

func (t Target) validate() error {
	switch {
	case t.Address == "":
		return errors.New("no address")
	case t.Port < 0 || t.Port > 65535:
		return fmt.Errorf("port %d is not one", t.Port)
	case t.User == "":
		return errors.New("no user")
	case len(t.Keys) == 0:
		return errors.New("no key to log in with")
	case len(t.Keys) > MaxKeys:
		return fmt.Errorf("%d keys to log in with, at most %d", len(t.Keys), MaxKeys)
	case t.HostKey.isZero():
		return errors.New("no host key pinned")
	case t.Via == nil:
		return nil
	case t.hops() > maxJumps:
		return fmt.Errorf("more than %d jump hosts", maxJumps)
	case !t.Via.HostKey.Pinned():
		return fmt.Errorf("jump host %d: no host key pinned", t.Via.hop())
	}
	if err := t.Via.validate(); err != nil {
		return fmt.Errorf("jump host %d: %w", t.Via.hop(), err)
	}
	return nil
}
