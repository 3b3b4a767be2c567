package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// maxStderr is how much of a command's stderr is kept: its end.
	maxStderr = 16 << 10
	// closeGrace is how long a host has to close its side of a channel that we closed.
	closeGrace = 5 * time.Second
)

var errStreamClosed = errors.New("stream closed")

// Stream is a running command: Read is its stdout, Write its stdin. Close it in any case.
type Stream struct {
	caller  context.Context // of Start
	ctx     context.Context // ends with caller, and when the stream is closed or done
	cancel  context.CancelFunc
	conn    *Conn
	channel ssh.Channel
	stdout  *io.PipeReader
	sink    *io.PipeWriter // of stdout
	stderr  tail
	done    chan struct{}
	exit    error // valid after done
}

// Start runs command. When ctx ends the stream is closed; whether the command ends is up to the
// host.
func (c *Conn) Start(ctx context.Context, command string) (*Stream, error) {
	type opened struct {
		stream *Stream
		err    error
	}
	result := make(chan opened, 1)
	go func() {
		stream, err := c.start(ctx, command)
		result <- opened{stream, err}
	}()
	select {
	case r := <-result:
		return r.stream, r.err
	case <-ctx.Done():
		// x/crypto cannot give up waiting for the answer. Do not let such waits pile up on a
		// connection whose host stays silent: give it a little time, then end it.
		c.Retire()
		timer := time.AfterFunc(closeGrace, func() { c.abort(errHalfOpen) })
		go func() {
			r := <-result
			timer.Stop()
			if r.stream != nil {
				_ = r.stream.Close()
			}
		}()
		return nil, c.interrupted(ctx, ctx.Err())
	}
}

func (c *Conn) start(ctx context.Context, command string) (*Stream, error) {
	channel, requests, err := c.ssh.OpenChannel("session", nil)
	if err != nil {
		var refused *ssh.OpenChannelError
		if errors.As(err, &refused) {
			return nil, &Unreachable{Address: c.address, Reason: ReasonSession, Err: fmt.Errorf("host refuses a session: %v", refused.Reason)}
		}
		return nil, c.interrupted(ctx, err)
	}
	s := &Stream{caller: ctx, conn: c, channel: channel, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.stdout, s.sink = io.Pipe()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(&s.stderr, channel.Stderr()) // ends with the channel
	}()
	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		s.pump()
	}()
	go func() {
		s.wait(requests, drained)
		<-pumped // the caller may still be reading
		s.cancel()
	}()
	ok, err := channel.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{command}))
	if err != nil || !ok {
		s.shut()
		if err == nil {
			return nil, &Unreachable{Address: c.address, Reason: ReasonSession, Err: errors.New("host refuses to start a command")}
		}
		return nil, c.interrupted(ctx, err)
	}
	context.AfterFunc(s.ctx, s.shut)
	return s, nil
}

// pump feeds Read through a pipe, because a read from the channel itself only ends when the host
// closes it.
func (s *Stream) pump() {
	_, err := io.Copy(s.sink, s.channel)
	if err == nil && s.conn.lost() {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		err = s.conn.interrupted(s.caller, err)
	}
	_ = s.sink.CloseWithError(err) // nil is io.EOF
	// Whatever else arrives is drained, so that the host is not left waiting for a window.
	_, _ = io.Copy(io.Discard, s.channel)
}

// shut closes the channel, and the connection when the host does not follow.
func (s *Stream) shut() {
	s.cancel()
	_ = s.sink.CloseWithError(s.conn.interrupted(s.caller, errStreamClosed))
	timer := time.AfterFunc(closeGrace, func() { s.conn.abort(errHalfOpen) })
	_ = s.channel.Close() // a lost connection has closed it already
	<-s.done
	timer.Stop()
}

// wait takes the exit status from the channel's requests, which end with the channel.
func (s *Stream) wait(requests <-chan *ssh.Request, drained <-chan struct{}) {
	var code *int
	var signal string
	for request := range requests {
		switch request.Type {
		case "exit-status":
			if len(request.Payload) >= 4 {
				status := int(binary.BigEndian.Uint32(request.Payload))
				code = &status
			}
		case "exit-signal":
			var message struct {
				Signal     string
				CoreDumped bool
				Error      string
				Lang       string
			}
			if ssh.Unmarshal(request.Payload, &message) == nil {
				signal = signalName(message.Signal)
			}
		}
		if request.WantReply {
			_ = request.Reply(false, nil)
		}
	}
	<-drained
	switch {
	case signal != "":
		s.exit = &ExitError{Code: -1, Signal: signal, stderr: s.stderr.String()}
	case code == nil:
		s.exit = s.conn.interrupted(s.caller, errors.New("command ended without an exit status"))
	case *code != 0:
		s.exit = &ExitError{Code: *code, stderr: s.stderr.String()}
	}
	close(s.done)
}

// signalName accepts the names of RFC 4254 section 6.10 and hides other text of the peer.
func signalName(name string) string {
	switch ssh.Signal(name) {
	case ssh.SIGABRT, ssh.SIGALRM, ssh.SIGFPE, ssh.SIGHUP, ssh.SIGILL, ssh.SIGINT, ssh.SIGKILL,
		ssh.SIGPIPE, ssh.SIGQUIT, ssh.SIGSEGV, ssh.SIGTERM, ssh.SIGUSR1, ssh.SIGUSR2:
		return name
	}
	return "UNKNOWN"
}

// Read reads the command's stdout. At a lost connection it gives an *Unreachable, not io.EOF.
func (s *Stream) Read(p []byte) (int, error) { return s.stdout.Read(p) }

// Write writes to the command's stdin.
func (s *Stream) Write(p []byte) (int, error) {
	n, err := s.channel.Write(p)
	if err != nil {
		return n, s.conn.interrupted(s.caller, err)
	}
	return n, nil
}

// CloseWrite ends the command's stdin.
func (s *Stream) CloseWrite() error {
	if err := s.channel.CloseWrite(); err != nil && !errors.Is(err, io.EOF) {
		return s.conn.interrupted(s.caller, err)
	}
	return nil
}

// Close ends the stream without waiting for the command.
func (s *Stream) Close() error {
	s.cancel()
	return nil
}

// Wait waits for the command's end: nil, an *ExitError, or an *Unreachable when how it ended is not
// known. Read stdout to its end first, or the host may wait for that.
func (s *Stream) Wait() error {
	select {
	case <-s.done:
		return s.exit
	case <-s.ctx.Done():
	}
	select {
	case <-s.done: // the stream's context also ends with the command
		return s.exit
	default:
		return s.conn.interrupted(s.caller, errStreamClosed)
	}
}

// Stderr is the end of what the command has written to stderr so far, at most 16 KiB of it. It is
// the peer's text: sanitise it before it reaches a log.
func (s *Stream) Stderr() string { return s.stderr.String() }

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > maxStderr {
		p = p[len(p)-maxStderr:]
	}
	if excess := len(t.data) + len(p) - maxStderr; excess > 0 {
		t.data = append(t.data[:0], t.data[excess:]...)
	}
	t.data = append(t.data, p...)
	return n, nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}
