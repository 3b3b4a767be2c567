package shim

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	// talkTime bounds everything that a client says, up to the start of a run.
	talkTime = 2 * time.Minute
	// writeTime bounds a single frame to a client that does not read.
	writeTime = 30 * time.Second
)

// session is one conversation. Its challenge lives here and nowhere else, so an order is good for
// this process only, and once.
type session struct {
	host      *Host
	in        *wire.Reader
	out       io.Writer
	challenge []byte
	trust     *trust
	answer    signing.Receipt // what is known of the order so far, for a receipt
	greeted   bool            // a hello is out: a receipt can be read
	running   bool            // started is written: what follows is no refusal any more
}

// Serve holds one session and returns nil when it ended with a run, facts, a collected receipt or a
// client that left before it asked for anything, and a signing.Refusal otherwise.
func (h *Host) Serve(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	if d, ok := in.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = d.SetReadDeadline(time.Now().Add(talkTime))
	}
	s := &session{host: h, in: wire.NewReader(in), out: patient{out}}
	defer func() {
		if p := recover(); p != nil {
			err = refuse(signing.ReasonMalformed, "internal error: %.200v", p)
		}
		if err != nil {
			s.refused(ctx, err)
		}
	}()
	if err := s.hello(ctx); err != nil {
		return err
	}
	first, payload, err := s.next()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	if first == wire.Collect {
		return s.collect(ctx, string(payload))
	}
	if first, payload, err = s.documents(first, payload); err != nil {
		return err
	}
	if first == wire.Probe {
		return s.facts()
	}
	return s.order(ctx, first, payload)
}

// hello reads the documents and says who the host is, what it believes, who holds it and what ran.
func (s *session) hello(ctx context.Context) error {
	h := s.host
	s.challenge = make([]byte, signing.ChallengeSize)
	if _, err := rand.Read(s.challenge); err != nil {
		return unwritable(err)
	}
	s.answer = signing.Receipt{HostID: h.id, BootID: h.cfg.BootID, Challenge: s.challenge}
	var err error
	if s.trust, err = loadTrust(h.dir); err != nil {
		return stateRefusal(err)
	}
	rec, err := h.runState()
	if err != nil {
		return unwritable(err)
	}
	posture := h.cfg.Posture()
	envelope, err := signing.Sign(ctx, &signing.Hello{
		Protocol: wire.Protocol, ShimVersion: h.cfg.Build.Version, ShimDigest: posture.ShimDigest,
		HostID: h.id, BootID: h.cfg.BootID, Challenge: s.challenge,
		Root: s.trust.rootRef, Allowlist: s.trust.listRef, Claim: rec.Claim, LastRun: rec.Run.ref(),
		Scripts: h.scripts(), Clock: h.cfg.Now(), ClockSynced: clockSynced(), Findings: posture.Findings,
	}, h.signer)
	if err != nil {
		return fmt.Errorf("signing hello: %w", err)
	}
	// In one piece, which wakes the client once. A client that has gone has asked for nothing.
	greeting := bytes.NewBufferString(wire.Preamble)
	_ = wire.Write(greeting, wire.Hello, envelope)
	s.greeted = true
	_, _ = s.out.Write(greeting.Bytes())
	return nil
}

// next reads a frame; what is wrong with it becomes a refusal.
func (s *session) next() (wire.Type, []byte, error) {
	t, payload, err := s.in.Next()
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return t, payload, err
	case errors.Is(err, wire.ErrTooLarge):
		return t, nil, refuse(signing.ReasonTooLarge, "%v", err)
	}
	return t, nil, refuse(signing.ReasonMalformed, "%v", err)
}

func (s *session) facts() error {
	facts, seen := Facts(s.host.cfg.root, s.host.cfg.Now(), s.host.cfg.BootID)
	if facts.Leftovers = s.host.leftovers(); !seen && facts.Leftovers != nil {
		facts.Leftovers = []string{unseen} // nobody knows that it is no other cluster's
	}
	data, err := json.Marshal(facts)
	if err != nil {
		return fmt.Errorf("encoding facts: %w", err)
	}
	_ = wire.Write(s.out, wire.Facts, data)
	return nil
}

// collect answers with the receipt of the last run, when that is the one asked for.
func (s *session) collect(ctx context.Context, order string) error {
	rec, err := s.host.runState()
	if err != nil {
		return unwritable(err)
	}
	if digest, ok := strings.CutPrefix(order, "sha256:"); ok && len(digest) == 64 {
		s.answer.Order = order
	}
	if rec.Run == nil || rec.Run.Receipt.Order != order {
		return refuse(signing.ReasonUnknownRun, "no run of order %.80q", order)
	}
	switch rec.Run.State {
	case signing.RunFinished:
		s.sendSpool(rec.Run.Receipt)
		_ = wire.Write(s.out, wire.Receipt, rec.Run.Envelope)
		return nil
	case signing.RunInterrupted:
		return s.send(ctx, rec.Run.Receipt)
	default:
		s.answer.Running = order
		return refuse(signing.ReasonBusy, "order %s still runs", order)
	}
}

// refused is the one place where a refusal is answered and logged.
func (s *session) refused(ctx context.Context, err error) {
	if s.running {
		fmt.Fprintf(s.host.cfg.Log, "kpssh-shim: error: order %q: %.400q\n", s.answer.Order, detail(err))
		return
	}
	reason := signing.ReasonOf(err)
	if reason == "" {
		reason = signing.ReasonMalformed
	}
	fmt.Fprintf(s.host.cfg.Log, "kpssh-shim: refused: %s: order %q: %.400q\n", reason, s.answer.Order, detail(err))
	if !s.greeted {
		// Nobody finds a receipt in front of a hello; the relay passes a line of text on.
		refuseText(s.out, reason, detail(err))
		return
	}
	now := s.host.cfg.Now()
	s.answer.Outcome, s.answer.Reason = signing.OutcomeRefused, reason
	s.answer.Started, s.answer.Finished = now, now
	if s.send(ctx, s.answer) != nil {
		_ = s.send(ctx, signing.Receipt{
			HostID: s.host.id, Outcome: signing.OutcomeRefused, Reason: reason, Started: now, Finished: now,
		})
	}
}

func detail(err error) string {
	var r *signing.Refusal
	if errors.As(err, &r) {
		return r.Detail
	}
	return err.Error()
}

func (s *session) send(ctx context.Context, receipt signing.Receipt) error {
	envelope, err := signing.Sign(ctx, &receipt, s.host.signer)
	if err != nil {
		return fmt.Errorf("signing receipt: %w", err)
	}
	_ = wire.Write(s.out, wire.Receipt, envelope)
	return nil
}

// patient is a client's end with a bound on how long one frame may take.
type patient struct{ io.Writer }

func (p patient) Write(b []byte) (int, error) {
	if d, ok := p.Writer.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(time.Now().Add(writeTime))
	}
	return p.Writer.Write(b)
}
