package remote

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// keepaliveMisses is how many intervals may pass without an answer.
const keepaliveMisses = 3

var (
	errClosed    = errors.New("connection closed")
	errKeepalive = errors.New("host answered no keepalive")
	errHalfOpen  = errors.New("host left a channel request unanswered")
)

// Conn is a connection to a host, logged in. Its methods may be called concurrently.
type Conn struct {
	target    Target
	address   string
	hostKey   ssh.PublicKey
	userKey   string
	login     time.Duration
	lingering atomic.Int32 // tunnels that the host has not let go of
	ssh       ssh.Conn
	transport *kexConn
	done      chan struct{}
	retired   atomic.Bool
	interval  time.Duration

	mu        sync.Mutex
	cause     error
	keepalive *time.Timer
}

func newConn(h *handshake, conn ssh.Conn, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request, onClose func()) *Conn {
	c := &Conn{
		target:    h.target,
		address:   h.target.hostPort(),
		hostKey:   h.hostKey,
		login:     h.took,
		ssh:       conn,
		transport: h.conn,
		done:      make(chan struct{}),
		interval:  h.target.Keepalive,
	}
	if used := h.usedKey.Load(); used != nil {
		c.userKey = *used
	}
	if c.interval <= 0 {
		c.interval = DefaultKeepalive
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Timers instead of a goroutine: a pool holds thousands of idle connections.
	c.keepalive = time.AfterFunc(c.interval, c.ping)
	go rejectChannels(channels)
	go func() {
		ssh.DiscardRequests(requests) // ends with the connection
		c.finish(onClose)
	}()
	return c
}

// rejectChannels refuses what a host has no business opening.
func rejectChannels(channels <-chan ssh.NewChannel) {
	for channel := range channels {
		_ = channel.Reject(ssh.Prohibited, "")
	}
}

func (c *Conn) finish(onClose func()) {
	c.abort(errClosed)
	c.mu.Lock()
	c.keepalive.Stop()
	c.mu.Unlock()
	close(c.done)
	if onClose != nil {
		onClose()
	}
}

func (c *Conn) ping() {
	watchdog := time.AfterFunc((keepaliveMisses-1)*c.interval, func() { c.abort(errKeepalive) })
	defer watchdog.Stop()
	if _, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		c.abort(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.keepalive.Reset(c.interval)
	}
}

// abort closes the connection for a reason, of which the first counts.
func (c *Conn) abort(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	_ = c.ssh.Close() // already closed is as good
}

// Close ends the connection and every stream on it.
func (c *Conn) Close() error {
	c.abort(errClosed)
	return nil
}

// Done is closed when the connection is gone.
func (c *Conn) Done() <-chan struct{} { return c.done }

// HostKeyFingerprint is the "SHA256:…" fingerprint of the key that the host proved to hold.
func (c *Conn) HostKeyFingerprint() string { return ssh.FingerprintSHA256(bareKey(c.hostKey)) }

// UserKeyFingerprint is the fingerprint of the key that the host accepted, so that a key can be
// retired once no host needs it.
func (c *Conn) UserKeyFingerprint() string { return c.userKey }

// LoginTime is how long it took from dialling the host to the accepted key, jump hosts before it not counted.
func (c *Conn) LoginTime() time.Duration { return c.login }

// Retire keeps a pool from handing the connection out again: its host has stopped making sense.
func (c *Conn) Retire() { c.retired.Store(true) }

func (c *Conn) usable() bool {
	select {
	case <-c.done:
		return false
	default:
		return !c.retired.Load()
	}
}

// lost tells whether the connection is being closed, by us or by the network.
func (c *Conn) lost() bool {
	if c.transport.transportError() != nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause != nil
}

// interrupted is the error of everything that was going on when the connection was lost.
func (c *Conn) interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &Unreachable{Address: c.address, Reason: ReasonTimeout, Err: context.Cause(ctx)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil && !errors.Is(c.cause, errClosed) {
		err = c.cause
	}
	return &Unreachable{Address: c.address, Reason: ReasonInterrupted, Err: err}
}

// blame puts the failure to reach t on this connection, its jump host's, when that is what was lost.
func (c *Conn) blame(t Target, err error) error {
	if Class(err) == ClassUnreachable && c.lost() {
		return atJump(*t.Via, c.interrupted(context.Background(), err))
	}
	return err
}
