package shim

import (
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// bring sends the documents that a plan holds, and then one more frame.
func (c *client) bring(p *plan, then wire.Type, payload []byte) {
	for _, r := range p.Roots {
		c.write(wire.Root, r)
	}
	if p.List != nil {
		c.write(wire.Allowlist, p.List)
	}
	c.write(then, payload)
}

func TestAProbeMayBringDocuments(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.NewRoot(func(*signing.Root) {})
	w.NewRoot(func(*signing.Root) {})
	c := w.connect()
	c.bring(c.plan(signing.PhaseJoin, noop, "uid-1", 1), wire.Probe, nil)
	kind, _, err := c.r.Next()
	if err != nil || kind != wire.Facts {
		t.Fatalf("answer is a %s frame, %v; log: %s", kind, err, w.logged())
	}
	hello := w.connect().hello
	if hello.Root.Version != 3 || hello.Allowlist.Version != 1 || hello.LastRun != nil || hello.Claim != (signing.Claim{}) {
		t.Errorf("the next hello says %+v", hello)
	}
}

func TestAProbeWithDocumentsThatAreRefused(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	good := w.connect().plan(signing.PhaseJoin, noop, "uid-1", 1)
	forged := w.RootDoc
	forged.Version++
	for name, tc := range map[string]struct {
		roots [][]byte
		list  []byte
		then  wire.Type
		want  signing.Reason
	}{
		"a root by a stranger":       {[][]byte{sign(w.T, &forged, newSigner(t))}, nil, wire.Probe, signing.ReasonUntrusted},
		"an allowlist by a stranger": {nil, sign(w.T, &w.List, newSigner(t)), wire.Probe, signing.ReasonUntrusted},
		"an allowlist for a root":    {[][]byte{good.List}, nil, wire.Probe, signing.ReasonWrongType},
		"a secret behind them":       {nil, nil, wire.Secrets, signing.ReasonUnexpectedFrame},
	} {
		t.Run(name, func(t *testing.T) {
			before := w.snapshot()
			c := w.connect()
			c.bring(&plan{Roots: tc.roots, List: tc.list}, tc.then, nil)
			if r, out := c.finish(); r.Outcome != signing.OutcomeRefused || r.Reason != tc.want || out != "" {
				t.Errorf("%s %s", r.Outcome, r.Reason)
			}
			if w.snapshot() != before {
				t.Error("the state changed")
			}
		})
	}
}

// A client that is cut off has not lost what the host took, and a receipt is not fetched in the same breath.
func TestDocumentsAreKeptWhateverComesBehindThem(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.NewRoot(func(*signing.Root) {})
	c := w.connect()
	c.bring(c.plan(signing.PhaseJoin, noop, "uid-1", 1), wire.Collect, []byte(signing.Digest(nil)))
	if r, _ := c.finish(); r.Reason != signing.ReasonUnexpectedFrame {
		t.Errorf("collect behind documents: %s %s", r.Outcome, r.Reason)
	}
	if v := w.connect().hello.Root.Version; v != 2 {
		t.Errorf("root version %d", v)
	}
	w.NewRoot(func(*signing.Root) {})
	c = w.connect()
	c.write(wire.Root, w.Roots[3])
	c.hangUp()
	if r, _ := c.finish(); r.Reason != signing.ReasonMalformed {
		t.Errorf("end of the stream behind documents: %s %s", r.Outcome, r.Reason)
	}
	if v := w.connect().hello.Root.Version; v != 3 {
		t.Errorf("root version %d", v)
	}
}
