package shim

import (
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// maxBaseline is how many bytes of the state file's slot what a host brings may take. A host that brings more is
// looked at as one of which nothing is known.
const maxBaseline = 2 << 10

// baseline is what is kept of the host from the start of a run on: what it brings, noted when the first phase of a
// claim begins. It is part of the state file's record, so that it is durable when the script starts, at no cost of its
// own. One that is there already is of a membership that nobody has found clean yet, and holds on.
func (h *Host) baseline(held string, rec record) []string {
	if held != "" || rec.Claim.UID == "" || rec.Baseline != nil {
		return rec.Baseline
	}
	brought, ended := within(func() []string { return append(traces(h.cfg.root, movable), mounts(h.cfg.root, false)...) })
	if !ended || len(strings.Join(brought, "")) > maxBaseline {
		return nil
	}
	return append([]string{}, brought...)
}

// forgetBaseline ends the watch over a host that was found clean: what somebody puts there from now on is his own.
// A claim that was taken meanwhile keeps it.
func (h *Host) forgetBaseline(found signing.Claim) {
	l, err := h.dir.tryLock(runLock)
	if err != nil {
		return
	}
	defer l.release()
	store, rec, err := openSlots(h.dir)
	if err != nil {
		return
	}
	defer store.close()
	if rec.Claim == found {
		rec.Baseline = nil
		_ = store.write(rec)
	}
}
