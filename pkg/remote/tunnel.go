package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// maxLingering is how many tunnels a jump host may owe us the end of before no new ones are asked of its
	// connection. An sshd that forwards to a dead host owes each until TCP gives up.
	maxLingering = 256
	// tunnelBuffer is what a tunnel holds beside the channel's own window, in bytes.
	tunnelBuffer = 16 << 10
)

// tunnel is an opener: it has the host, as a jump host, connect to the target.
func (c *Conn) tunnel(ctx context.Context, t Target) (net.Conn, error) {
	type opened struct {
		channel ssh.Channel
		err     error
	}
	result := make(chan opened, 1)
	request := ssh.Marshal(struct {
		Host       string
		Port       uint32
		Originator string
		OriginPort uint32
	}{t.host(), uint32(t.port()), "127.0.0.1", 0}) //nolint:gosec // validate bounds the port
	go func() {
		channel, requests, err := c.ssh.OpenChannel("direct-tcpip", request)
		if err == nil {
			go ssh.DiscardRequests(requests)
		}
		result <- opened{channel, err}
	}()
	select {
	case r := <-result:
		if r.err != nil {
			return nil, c.noTunnel(ctx, t, r.err)
		}
		return newTunnel(c, t, r.channel), nil
	case <-ctx.Done():
		// x/crypto cannot give up waiting, and a jump host waits for a dead host for minutes: that is no reason to
		// end the connection, which others use.
		c.linger(1)
		go func() {
			if r := <-result; r.err == nil {
				_ = newTunnel(c, t, r.channel).Close()
			}
			c.linger(-1)
		}()
		return nil, unreachable(ctx, t, ReasonTimeout, context.Cause(ctx))
	}
}

func (c *Conn) linger(change int32) {
	if c.lingering.Add(change) > maxLingering {
		c.Retire()
	}
}

// noTunnel tells a jump host that does not forward from one that cannot reach the target.
func (c *Conn) noTunnel(ctx context.Context, t Target, err error) error {
	var refused *ssh.OpenChannelError
	switch {
	case !errors.As(err, &refused):
		return atJump(*t.Via, c.interrupted(ctx, err))
	case refused.Reason == ssh.Prohibited || refused.Reason == ssh.UnknownChannelType:
		return atJump(*t.Via, &Unreachable{Address: c.address, Reason: ReasonForwarding, Err: fmt.Errorf(
			"jump refuses forwarding to %s: its sshd needs AllowTcpForwarding, and the key's line in authorized_keys port-forwarding after restrict, and a permitopen that names this place", t.hostPort())})
	}
	return unreachable(ctx, t, ReasonDial, fmt.Errorf("jump host %d (%s) cannot connect there: %s", t.Via.hop(), c.address, knownTrouble(refused)))
}

// knownTrouble hides other text of the peer than what a C library says of a connect.
func knownTrouble(e *ssh.OpenChannelError) string {
	switch e.Message {
	case "Connection refused", "No route to host", "Network is unreachable", "Connection timed out", "Host is down",
		"Name or service not known", "Temporary failure in name resolution":
		return e.Message
	}
	return e.Reason.String()
}

// tunnel is a connection through a jump host.
type tunnel struct {
	ssh.Channel
	jump    *Conn
	address tunnelAddr
	out     *io.PipeReader
	in      *io.PipeWriter

	mu     sync.Mutex
	closed bool // by us
	ended  bool // by the jump host
}

func newTunnel(jump *Conn, t Target, channel ssh.Channel) *tunnel {
	tun := &tunnel{Channel: channel, jump: jump, address: tunnelAddr(t.hostPort())}
	tun.out, tun.in = io.Pipe()
	go tun.pump()
	return tun
}

// pump feeds Read through a pipe, because a read from the channel itself only ends when the jump host closes it.
func (t *tunnel) pump() {
	_, err := io.CopyBuffer(t.in, onlyReader{t.Channel}, make([]byte, tunnelBuffer))
	_ = t.in.CloseWithError(err) // nil is io.EOF
	_, _ = io.Copy(io.Discard, t.Channel)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if t.closed {
		t.jump.linger(-1)
	}
}

type onlyReader struct{ io.Reader }

// Read implements net.Conn.
func (t *tunnel) Read(p []byte) (int, error) { return t.out.Read(p) }

// Close implements net.Conn. It does not wait for the jump host.
func (t *tunnel) Close() error {
	t.mu.Lock()
	first, ended := !t.closed, t.ended
	t.closed = true
	t.mu.Unlock()
	if !first {
		return nil
	}
	if !ended {
		t.jump.linger(1)
	}
	_ = t.out.CloseWithError(net.ErrClosed)
	_ = t.Channel.Close() // a lost connection has closed it already
	return nil
}

// tunnelAddr is the address that the jump host was asked for.
type tunnelAddr string

// Network implements net.Addr.
func (tunnelAddr) Network() string { return "tcp" }

// String implements net.Addr.
func (a tunnelAddr) String() string { return string(a) }

// LocalAddr implements net.Conn.
func (t *tunnel) LocalAddr() net.Addr { return tunnelAddr("through " + t.jump.address) }

// RemoteAddr implements net.Conn.
func (t *tunnel) RemoteAddr() net.Addr { return t.address }

// SetDeadline implements net.Conn. There are none: who waits closes the tunnel.
func (*tunnel) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (*tunnel) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (*tunnel) SetWriteDeadline(time.Time) error { return nil }
