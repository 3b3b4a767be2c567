package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

const (
	receiptDir = "receipts"
	// runsFile holds runs alone. A refusal leaves the host as it was, so that whoever may be refused, which is whoever
	// has the SSH key, cannot wash the runs out of it; it is in the host's log and in the controller's trail.
	runsFile = "runs"
	// keptRuns is how many runs a host keeps: 1 MiB in all.
	keptRuns     = 64
	runsSize     = keptRuns * slotSize
	receiptMagic = "KPSSHRC1"
)

// keptRun is what a host keeps of a run: what was ordered, signed by the dispatch key, and what became of it, signed by
// the host. Neither holds a secret: an order carries commitments.
type keptRun struct {
	// Seq counts the runs of this host, from 1.
	Seq     uint64          `json:"-"`
	Order   json.RawMessage `json:"order"`
	Receipt json.RawMessage `json:"receipt"`
}

// trail is the file of the kept runs: a ring of slots whose blocks are written when it is made, so that a full disk
// loses none. Run n has slot n modulo keptRuns; a write that is cut short is no slot.
//
// Nothing is synced for it. A run is in the state file, durably, before it is here, and stays in there until the next
// one has ended. Whoever starts the next run first writes what is missing here and waits until it has reached the disk's
// cache, which is nothing to wait for unless a process died; the sync of "started" then flushes that cache. (A file system
// that never writes in place, such as btrfs, may still lose a run of the trail to a power cut; the state file it does not.)
type trail struct {
	dir  *dir
	file *os.File
}

// openTrail opens the trail for writing, making it when it is missing.
func openTrail(d *dir) (*trail, error) {
	sub, err := d.sub(receiptDir)
	if err != nil {
		return nil, err
	}
	f, err := sub.open(runsFile, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		sub.close()
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() < runsSize {
		_, err = f.WriteAt(make([]byte, runsSize-st.Size()), st.Size())
	}
	t := &trail{dir: sub, file: f}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("making room for receipts: %w", err)
	}
	return t, nil
}

func (t *trail) close() {
	_ = t.file.Close()
	t.dir.close()
}

// write puts a run into its place, as far as other processes see.
func (t *trail) write(run keptRun) error {
	data, err := encodeSlot(receiptMagic, run.Seq, run)
	if err != nil {
		return err
	}
	t.dir.step("receipt write")
	if _, err := t.file.WriteAt(data, int64(run.Seq%keptRuns)*slotSize); err != nil {
		return fmt.Errorf("keeping receipt: %w", err)
	}
	return nil
}

// writeOut sends a run on its way to the disk; with wait it returns when it is in the disk's cache.
func (t *trail) writeOut(seq uint64, wait bool) error {
	flags := unix.SYNC_FILE_RANGE_WRITE
	if wait {
		flags |= unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	}
	t.dir.step("receipt out")
	err := unix.SyncFileRange(int(t.file.Fd()), int64(seq%keptRuns)*slotSize, slotSize, flags)
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("writing receipts out: %w", err)
	}
	t.dir.step("receipt done")
	return nil
}

// at is the run in a place, if there is a whole one.
func (t *trail) at(place uint64) (keptRun, bool) {
	var run keptRun
	seq, ok, err := readSlot(t.file, int64(place)*slotSize, receiptMagic, &run)
	run.Seq = seq
	return run, err == nil && ok && seq%keptRuns == place
}

func (t *trail) has(seq uint64) bool {
	run, ok := t.at(seq % keptRuns)
	return ok && run.Seq == seq
}

// all are the kept runs, oldest first. What is older than the last keptRuns, in the place of one that was never written,
// is left out.
func (t *trail) all() []keptRun {
	var slots [keptRuns]keptRun
	var newest uint64
	for place := range slots {
		if run, ok := t.at(uint64(place)); ok {
			slots[place], newest = run, max(newest, run.Seq)
		}
	}
	var runs []keptRun
	for seq := newest - min(newest, keptRuns) + 1; seq <= newest; seq++ {
		if run := slots[seq%keptRuns]; run.Seq == seq {
			runs = append(runs, run)
		}
	}
	return runs
}

// keeper writes the trail beside the runs of a session. A trail that cannot be written hinders no run: what is wrong
// with it goes to the log.
type keeper struct {
	host  *Host
	trail *trail // nil when it cannot be had
}

func (h *Host) openKeeper() *keeper {
	k := &keeper{host: h}
	var err error
	k.trail, err = openTrail(h.dir)
	k.note(err)
	return k
}

func (k *keeper) note(err error) {
	if err != nil {
		fmt.Fprintf(k.host.cfg.Log, "kpssh-shim: error: receipts: %v\n", err)
	}
}

func (k *keeper) close() {
	if k.trail != nil {
		k.trail.close()
	}
}

// next is the number of the run that follows last, which is in the trail when it returns. The caller holds the run
// lock: a run that has not ended by now never will.
func (k *keeper) next(ctx context.Context, last *lastRun) uint64 {
	if last == nil || last.Seq == 0 {
		// No run, or one of a shim that did not count. Where a state file was lost, the trail still says how far it was.
		if k.trail == nil {
			return 1
		}
		runs := k.trail.all()
		if len(runs) == 0 {
			return 1
		}
		return runs[len(runs)-1].Seq + 1
	}
	if k.trail != nil {
		k.note(k.catchUp(ctx, last))
	}
	return last.Seq + 1
}

// catchUp writes the run that a crash kept out of the trail: soon it cannot be read in the state file any more.
func (k *keeper) catchUp(ctx context.Context, last *lastRun) error {
	if !k.trail.has(last.Seq) {
		run, err := k.host.keptOf(ctx, last)
		if err != nil {
			return err
		}
		if err := k.trail.write(run); err != nil {
			return err
		}
	}
	return k.trail.writeOut(last.Seq, true)
}

// keep writes a run that has ended.
func (k *keeper) keep(last *lastRun) {
	if k.trail != nil && last.Envelope != nil {
		k.note(k.trail.write(keptRun{Seq: last.Seq, Order: last.Order, Receipt: last.Envelope}))
	}
}

// writeOut sends it on its way to the disk, and waits for nothing.
func (k *keeper) writeOut(last *lastRun) {
	if k.trail != nil {
		k.note(k.trail.writeOut(last.Seq, false))
	}
}

// keptOf is what is kept of a run that is over. One that never came to its end gets a receipt that says so, like
// the one that a collect gets.
func (h *Host) keptOf(ctx context.Context, last *lastRun) (keptRun, error) {
	run := keptRun{Seq: last.Seq, Order: last.Order, Receipt: last.Envelope}
	if last.State == signing.RunFinished {
		return run, nil
	}
	receipt := last.Receipt
	receipt.Outcome = signing.OutcomeInterrupted
	var err error
	if run.Receipt, err = signing.Sign(ctx, &receipt, h.signer); err != nil {
		return run, fmt.Errorf("signing receipt: %w", err)
	}
	return run, nil
}

// kept are the runs that this host still knows, oldest first, and the one that goes on, which has no receipt yet.
// It changes nothing on the host.
func (h *Host) kept(ctx context.Context) ([]keptRun, error) {
	var runs []keptRun
	sub, err := h.dir.existing(receiptDir)
	if err == nil {
		defer sub.close()
		var f *os.File
		if f, err = sub.open(runsFile, unix.O_RDONLY); err == nil {
			t := &trail{dir: sub, file: f}
			runs = t.all()
			_ = f.Close()
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	rec, err := h.runState()
	if err != nil || rec.Run == nil || rec.Run.Seq == 0 {
		return runs, err
	}
	if slices.ContainsFunc(runs, func(r keptRun) bool { return r.Seq == rec.Run.Seq }) {
		return runs, nil
	}
	last := keptRun{Seq: rec.Run.Seq, Order: rec.Run.Order}
	if rec.Run.State != signing.RunStarted {
		if last, err = h.keptOf(ctx, rec.Run); err != nil {
			return nil, err
		}
	}
	return append(runs, last), nil
}

// record makes a line of an audit trail of a run, from what its receipt says, which must verify.
func (h *Host) record(run keptRun) (*wire.Record, *signing.Receipt, error) {
	r, err := signing.OpenReceipt(run.Receipt, h.signer.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("opening receipt of run %d: %w", run.Seq, err)
	}
	return &wire.Record{
		Source: wire.SourceHost, Seq: run.Seq, Mode: wire.ModeVerified, HostID: r.HostID, Claim: r.Claim,
		Profile: r.Profile, Version: r.Version, Phase: string(r.Phase), Script: r.Script, Parameters: r.Parameters,
		Outcome: string(r.Outcome), Reason: string(r.Reason), ExitCode: r.ExitCode, Signal: r.Signal,
		OrderDigest: r.Order, Order: run.Order, Receipt: run.Receipt,
	}, r, nil
}
