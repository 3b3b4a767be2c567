package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// collectEnded fetches the receipt of the run that the session's hello names as ended.
func (d *Dispatcher) collectEnded(s *session, j *job) (*Result, error) {
	result, err := d.fetch(s, j, ofRun(s.hello.LastRun))
	if err != nil {
		return nil, err
	}
	result.Reused = true
	return result, nil
}

// fetch asks for the receipt of one order, in a session that has asked for nothing yet.
func (d *Dispatcher) fetch(s *session, j *job, expected expectation) (*Result, error) {
	a, err := s.ask(d.options.ReceiptMargin, frame{wire.Collect, []byte(expected.order)})
	if err != nil {
		return nil, err
	}
	if err := expected.check(j.host.HostID, s.hello.Challenge, a); err != nil {
		return nil, err
	}
	if a.receipt.Outcome != signing.OutcomeRefused { // which would answer the question and not the order
		d.note(j, &expected, a)
	}
	return d.verdict(a, j.clean, j.docs, s.hello.Claim)
}

// await dials until the host has a receipt for the order, or the order's time and the margin are up, or the
// host has been away for too long: its caller may have better things to do than to wait for a dead one.
func (d *Dispatcher) await(ctx context.Context, j *job, expected expectation, timeout time.Duration) (*Result, error) {
	began := time.Now()
	deadline := began.Add(timeout + d.options.ReceiptMargin)
	pause := d.options.CollectInterval
	heard := began
	for {
		result, err := d.fetchAgain(ctx, j, expected)
		if err == nil {
			result.Reused = !expected.known
			return result, nil
		}
		switch {
		case ctx.Err() != nil:
			return nil, interrupted(context.Cause(ctx))
		case isUnknown(err) && time.Since(began) > d.options.SettleTime:
			return nil, interrupted(errors.New("the order never reached the host"))
		case !worthWaiting(err):
			return nil, err
		case answered(err):
			heard = time.Now()
		case time.Since(heard) > d.options.AwayTime:
			return nil, giveUp(err)
		}
		if time.Now().Add(pause).After(deadline) {
			return nil, giveUp(err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, interrupted(context.Cause(ctx))
		}
		pause = min(pause*3/2, 20*d.options.CollectInterval)
	}
}

func (d *Dispatcher) fetchAgain(ctx context.Context, j *job, expected expectation) (*Result, error) {
	s, err := d.open(ctx, j.host)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return d.fetch(s, j, expected)
}

// worthWaiting tells a run that still goes on, or a host that may come back, from an answer. A run
// that the host does not know of may be in an order that the lost connection carried and that the
// host has not read yet.
func worthWaiting(err error) bool {
	var cut *errCut
	if errors.As(err, &cut) || isUnknown(err) {
		return true
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Class == Busy
	}
	return fromRemote(err).Class == Unreachable
}

// answered says whether the host was there to say that there is no receipt yet.
func answered(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Class == Busy || isUnknown(err))
}

func isUnknown(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Class == Refused && e.Reason == string(signing.ReasonUnknownRun)
}

// giveUp is how waiting ends without an answer.
func giveUp(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Class == Busy {
		return &Error{Class: Timeout, Reason: ReasonNoReceipt, Detail: "the run should have ended by its deadline and still goes on"}
	}
	var cut *errCut
	if errors.As(err, &cut) {
		err = cut.cause
	}
	return interrupted(fmt.Errorf("waiting for the receipt: %w", err))
}
