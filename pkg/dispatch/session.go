package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// command is what a session asks sshd for. The host looks at none of it: its login shell is the shim.
const command = "kpssh"

// maxSpool is the most output that a host keeps and sends: more is no shim of ours.
const maxSpool = 1<<20 + 64<<10

// frame is one frame to be sent.
type frame struct {
	kind    wire.Type
	payload []byte
}

// session is one conversation with a host whose hello has verified.
type session struct {
	host    Host
	conn    *remote.Conn
	release func() // gives the connection back
	detach  func() // from the caller's context
	stream  *remote.Stream
	in      *wire.Reader
	hello   *signing.Hello
}

func (s *session) close() {
	s.detach()
	_ = s.stream.Close()
	s.release()
}

// open connects and reads the hello. A connection that was good once may have died unnoticed, so it
// tries again with a new one; nothing but the question has been sent until then.
func (d *Dispatcher) open(ctx context.Context, host Host) (*session, error) {
	if host.HostID == "" || len(host.ReceiptKey.Public) == 0 {
		return nil, &Error{Class: Config, Reason: ReasonIdentityMissing, Detail: "no hostID and receipt key from enrolment: run \"kpssh host enroll\""}
	}
	const attempts = 2
	for attempt := 1; ; attempt++ {
		conn, release, err := d.options.Pool.Get(ctx, host.Target)
		if err != nil {
			return nil, err
		}
		s, err := d.greet(ctx, host, conn)
		d.options.Logins.note(host, conn)
		if err == nil {
			s.release = release
			return s, nil
		}
		retry := remote.Class(err) == remote.ClassUnreachable && attempt < attempts && ctx.Err() == nil
		if remote.Class(err) == remote.ClassUnreachable {
			conn.Retire()
		}
		release()
		if !retry {
			return nil, err
		}
	}
}

// greet starts a session on a connection.
func (d *Dispatcher) greet(ctx context.Context, host Host, conn *remote.Conn) (*session, error) {
	// The stream outlives the wait for its hello, so that its context cannot be one with a deadline.
	streamCtx, abort := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d.options.HelloTimeout, func() { abort(context.DeadlineExceeded) })
	stream, err := conn.Start(streamCtx, command)
	if err != nil {
		abort(err)
		return nil, err
	}
	s := &session{
		host: host, conn: conn, stream: stream, in: wire.NewReader(stream),
		detach: func() { abort(context.Canceled) },
	}
	err = s.in.Hello(func(envelope []byte) error {
		refused := s.believe(envelope)
		if refused != nil {
			// It may have been noise before the real one, which then is on its way already.
			timer.Reset(d.options.HelloTimeout / 10)
		}
		return refused
	})
	if err != nil {
		err = s.noHello(err)
	}
	if !timer.Stop() && err == nil {
		err = &remote.Unreachable{Address: host.Target.Address, Reason: remote.ReasonTimeout, Err: context.DeadlineExceeded}
	}
	if err != nil {
		abort(err)
		_ = stream.Close()
		return nil, err
	}
	return s, nil
}

// believe accepts the hello of the enrolled host and nothing else.
func (s *session) believe(envelope []byte) error {
	hello, err := signing.OpenHello(envelope, s.host.ReceiptKey)
	if err != nil {
		return err
	}
	if hello.HostID != s.host.HostID {
		return &signing.Refusal{Reason: signing.ReasonWrongHost, Detail: fmt.Sprintf("it is host %s", hello.HostID)}
	}
	if hello.Protocol != wire.Protocol {
		return &signing.Refusal{Reason: signing.ReasonUnsupportedProto, Detail: fmt.Sprintf("it speaks protocol %d, we %d", hello.Protocol, wire.Protocol)}
	}
	s.hello = hello
	return nil
}

// noHello tells a host that says why it has nothing to say from one that is another or none.
func (s *session) noHello(err error) error {
	var none *wire.NoHelloError
	if !errors.As(err, &none) {
		return err
	}
	if none.Refused != nil {
		return &Error{Class: Untrusted, Reason: ReasonWrongIdentity, Detail: fmt.Sprintf("hello does not verify as the enrolled host's: %v", none.Refused)}
	}
	var unreachable *remote.Unreachable
	if errors.As(none.Cause, &unreachable) {
		return unreachable
	}
	said := none.Noise
	if errors.Is(none.Cause, io.EOF) || errors.Is(none.Cause, io.ErrUnexpectedEOF) {
		var exit *remote.ExitError
		if err := s.stream.Wait(); errors.As(err, &exit) {
			if reason := refusedBy(exit); reason != "" {
				return &Error{Class: Refused, Reason: reason, Detail: "the host's shim has no session: " + Sanitise(exit.Stderr(), maxErrorOutput)}
			}
			said = append(said, exit.Stderr()...)
		} else if remote.Class(err) == remote.ClassUnreachable {
			return err
		}
	}
	return &Error{
		Class: Untrusted, Reason: ReasonNoHello,
		Detail: "host does not speak the shim's protocol: is kpssh-shim installed and the login shell of the user?",
		Output: Sanitise(string(said), maxErrorOutput),
	}
}

// refusedBy reads the one line that a shim writes where it cannot sign. It is a hint, by nobody.
func refusedBy(exit *remote.ExitError) string {
	const refused, prefix = 125, "kpssh-shim: refused: "
	if exit.Code != refused {
		return ""
	}
	for line := range strings.Lines(exit.Stderr()) {
		rest, ok := strings.CutPrefix(line, prefix)
		if !ok {
			continue
		}
		reason, _, _ := strings.Cut(rest, ":")
		if reason = strings.TrimSpace(reason); slices.Contains(reasons(), signing.Reason(reason)) {
			return reason
		}
	}
	return ""
}

// reasons is signing's closed list.
func reasons() []signing.Reason {
	return []signing.Reason{
		signing.ReasonMalformed, signing.ReasonTooLarge, signing.ReasonUntrusted, signing.ReasonWrongType,
		signing.ReasonWrongHost, signing.ReasonStaleChallenge, signing.ReasonRollback, signing.ReasonExpired,
		signing.ReasonNotAllowed, signing.ReasonParam, signing.ReasonPin, signing.ReasonStaleFence, signing.ReasonBusy,
		signing.ReasonStateUnwritable, signing.ReasonShimTooOld, signing.ReasonSecretMismatch, signing.ReasonUnknownRun,
		signing.ReasonNotEnrolled, signing.ReasonNotRoot, signing.ReasonUnexpectedFrame, signing.ReasonUnsupportedProto,
	}
}

// answer is what a host sent back: a receipt that verifies under its key, and output that nobody has
// held against it yet.
type answer struct {
	receipt  *signing.Receipt
	envelope []byte
	output   *output
}

// errCut is the end of a session without a receipt, from which nothing can be concluded.
type errCut struct{ cause error }

func (e *errCut) Error() string { return fmt.Sprintf("session ended without a receipt: %v", e.cause) }
func (e *errCut) Unwrap() error { return e.cause }

// encode puts frames into one piece.
func encode(frames []frame) ([]byte, error) {
	var request bytes.Buffer
	for _, f := range frames {
		if err := wire.Write(&request, f.kind, f.payload); err != nil {
			return nil, &Error{Class: Config, Reason: ReasonRequest, Detail: err.Error()}
		}
	}
	return request.Bytes(), nil
}

// ask sends frames and reads the answer for at most limit. It reads while it sends, since a refusal
// comes before all was read.
func (s *session) ask(limit time.Duration, frames ...frame) (*answer, error) {
	request, err := encode(frames)
	if err != nil {
		return nil, err
	}
	var late atomic.Bool
	timer := time.AfterFunc(limit, func() {
		late.Store(true)
		_ = s.stream.Close()
	})
	defer timer.Stop()
	go func() { _, _ = s.stream.Write(request) }() // what went wrong shows in the answer
	a, err := s.read()
	if err != nil && late.Load() {
		return nil, &Error{Class: Timeout, Reason: ReasonNoReceipt, Detail: fmt.Sprintf("host sent no receipt within %v", limit)}
	}
	return a, err
}

func (s *session) read() (*answer, error) {
	a := &answer{output: newOutput()}
	for {
		kind, payload, err := s.in.Next()
		switch {
		case errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrUnknownType):
			return nil, violation("%v", err)
		case err != nil:
			return nil, &errCut{err}
		case kind == wire.Output:
			_, _ = a.output.Write(payload)
			if a.output.total > maxSpool {
				return nil, violation("more than %d bytes of output", maxSpool)
			}
		case kind == wire.Receipt:
			a.envelope = payload
			if a.receipt, err = signing.OpenReceipt(payload, s.host.ReceiptKey); err != nil {
				return nil, violation("receipt: %v", err)
			}
			return a, nil
		default:
			return nil, violation("%s frame where a receipt is due", kind)
		}
	}
}

func violation(format string, args ...any) error {
	return &Error{Class: Untrusted, Reason: ReasonProtocol, Detail: fmt.Sprintf(format, args...)}
}
