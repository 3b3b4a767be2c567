package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// lockTime is how long an order waits for the lock while whoever holds it is only deciding.
const lockTime = 500 * time.Millisecond

// run takes the host for one run and answers with its receipt. From the moment that started is
// written the run does not depend on the client any more.
func (s *session) run(ctx context.Context, j *job) error {
	l, err := s.takeRunLock()
	if err != nil {
		return err
	}
	defer l.release()
	store, rec, err := openSlots(s.host.dir)
	if err != nil {
		return unwritable(err)
	}
	defer store.close()
	held := rec.Claim.UID
	if rec.Claim, err = admit(rec.Claim, j.order); err != nil {
		return err
	}
	if err := s.stillTrusted(); err != nil {
		return err
	}
	script, err := sealedScript(j.script, j.order.Script)
	if err != nil {
		return unwritable(err)
	}
	defer script.Close()
	spool, err := openSpool(s.host.dir)
	if err != nil {
		return unwritable(err)
	}
	defer spool.Close()

	// Nothing is refused any more but for a disk that does not take the start.
	trail := s.host.openKeeper()
	defer trail.close()
	receipt := s.answer
	receipt.Started = s.host.cfg.Now()
	rec.Baseline = s.host.baseline(held, rec)
	rec.Run = &lastRun{
		State: signing.RunStarted, DeadlineSeconds: j.order.TimeoutSeconds, Receipt: receipt,
		Seq: trail.next(ctx, rec.Run), Order: j.envelope,
	}
	if err := store.write(rec); err != nil {
		return unwritable(err)
	}
	s.running = true
	s.host.keepScript(j.order.Script, j.script)
	s.host.dir.step("before run")
	out := newOutput()
	sent := make(chan bool, 1)
	go func() { sent <- s.forward(out) }()
	x := s.execute(j, script, out)
	s.host.dir.step("after run")

	kept, ref := out.kept()
	_, _ = spool.WriteAt(kept, 0)
	rec.Run.Receipt = x.complete(receipt, ref, s.host.cfg.Now())
	if err := s.finish(ctx, store, &rec); err != nil {
		fmt.Fprintf(s.host.cfg.Log, "kpssh-shim: run: order %s: %v\n", j.digest, err)
	}
	trail.keep(rec.Run)
	// The host is free for the next order before this client has read its answer.
	l.release()
	s.logRun(rec.Run.Receipt)
	if <-sent {
		s.reply(out, rec.Run)
	}
	trail.writeOut(rec.Run)
	return nil
}

// stillTrusted refuses an order whose documents were replaced, by another session, after this one
// began: a session that was held open must not run what a newer list has dropped.
func (s *session) stillTrusted() error {
	same, err := s.trust.stillOnDisk(s.host.dir)
	if err != nil {
		return stateRefusal(err)
	}
	if !same {
		return refuse(signing.ReasonRollback, "the host's documents have moved on since this session began")
	}
	return nil
}

// finish signs the receipt and writes it together with the claim that the run leaves behind.
func (s *session) finish(ctx context.Context, store *slots, rec *record) error {
	envelope, err := signing.Sign(ctx, &rec.Run.Receipt, s.host.signer)
	if err != nil {
		return fmt.Errorf("signing receipt: %w", err)
	}
	rec.Run.State, rec.Run.Envelope = signing.RunFinished, envelope
	r := rec.Run.Receipt
	if r.Outcome == signing.OutcomeOK && (r.Phase == signing.PhaseLeave || r.Phase == signing.PhaseUninstall) {
		rec.Claim.UID = ""
	}
	return store.write(*rec)
}

// takeRunLock makes this session the only one that runs something, or refuses with the order that
// runs. Whoever holds the lock without a run is about to start one or to let go: that is waited for.
func (s *session) takeRunLock() (*lock, error) {
	for end := time.Now().Add(lockTime); ; time.Sleep(5 * time.Millisecond) {
		l, err := s.host.dir.tryLock(runLock)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, errLocked) {
			return nil, unwritable(err)
		}
		rec, err := s.host.runState()
		if err != nil {
			return nil, unwritable(err)
		}
		running := ""
		if rec.Run != nil && rec.Run.State == signing.RunStarted {
			running = rec.Run.Receipt.Order
		}
		if running != "" || time.Now().After(end) {
			s.answer.Running = running
			return nil, refuse(signing.ReasonBusy, "order %q runs", running)
		}
	}
}

func (s *session) execute(j *job, script *os.File, out *output) execution {
	clean := newRedactor(j.secrets)
	x := s.host.exec.run(script, s.host.exec.environment(j.params, j.secrets), j.deadline(), func(p []byte) {
		out.write(clean.next(p))
	})
	out.write(clean.rest())
	out.end()
	return x
}

// forward sends the head of the output as it comes and reports whether the client is still there.
func (s *session) forward(out *output) bool {
	there := true
	out.follow(func(p []byte) error {
		err := wire.WriteOutput(s.out, p)
		there = there && err == nil
		return err
	})
	return there
}

// reply ends the session with the tail of the output and the receipt.
func (s *session) reply(out *output, run *lastRun) {
	if wire.WriteOutput(s.out, out.last()) == nil && run.Envelope != nil {
		_ = wire.Write(s.out, wire.Receipt, run.Envelope)
	}
}

func (s *session) logRun(r signing.Receipt) {
	fmt.Fprintf(s.host.cfg.Log, "kpssh-shim: run: %s: order %s profile %s@%s phase %s claim %q exit %d after %d ms\n",
		r.Outcome, r.Order, r.Profile, r.Version, r.Phase, r.Claim, r.ExitCode, r.DurationMillis)
}

func (x execution) complete(r signing.Receipt, output signing.OutputRef, now time.Time) signing.Receipt {
	r.Outcome, r.ExitCode, r.Signal = x.outcome, x.exitCode, x.signal
	r.Output, r.Finished, r.DurationMillis = output, now, x.took.Milliseconds()
	return r
}
