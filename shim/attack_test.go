package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// A recorded session is good for nothing: its challenge died with the process it was made for.
func TestReplayedSessionNeverRuns(t *testing.T) {
	const replays = 1000
	script, marker := marking(t, "")
	w := newWorld(t, "join: "+script)
	c := w.connect()
	p := c.plan(signing.PhaseJoin, script, "uid-1", 1)
	p.Secrets["KPSSH_BOOTSTRAP_TOKEN"] = token
	c.submit(p)
	c.finish()
	_ = c.end()
	recorded := c.sent.Bytes()
	before := w.snapshot()
	stale := 0
	for range replays {
		again := w.connect()
		go func() { _, _ = again.conn.Write(recorded) }()
		r, _ := again.finish()
		if err := again.end(); r.Reason == signing.ReasonStaleChallenge && signing.ReasonOf(err) == signing.ReasonStaleChallenge {
			stale++
		}
		_ = again.conn.Close()
	}
	if stale != replays || runs(t, marker) != 1 {
		t.Errorf("%d of %d replays were stale, %d runs in all", stale, replays, runs(t, marker))
	}
	if w.snapshot() != before {
		t.Error("the state changed")
	}
}

// Every byte of every frame is under a signature or a digest of something that is.
func TestNoFlippedByteIsAccepted(t *testing.T) {
	script, marker := marking(t, "")
	w := newWorld(t, "join: "+script)
	w.mustRun(signing.PhaseJoin, script, "uid-1", 1)
	w.forget(script)
	before := w.snapshot()
	parts := map[wire.Type]int{wire.Order: 1, wire.Parameters: 1, wire.Script: 1, wire.Secrets: 1}
	for part := range parts {
		t.Run(part.String(), func(t *testing.T) {
			for at, size := 0, 1; at < size; at++ {
				c := w.connect()
				p := c.plan(signing.PhaseJoin, script, "uid-1", 1)
				p.Params["KPSSH_NODE_NAME"] = "node-a"
				p.Secrets["KPSSH_BOOTSTRAP_TOKEN"] = token
				frames := framesOf(t, p, c.hello.Challenge)
				size = len(frames[part])
				frames[part][at] ^= 1 << (at % 8)
				for _, kind := range []wire.Type{wire.Order, wire.Parameters, wire.Script, wire.Secrets} {
					c.write(kind, frames[kind])
				}
				if r, _ := c.finish(); r.Outcome != signing.OutcomeRefused {
					t.Fatalf("byte %d of %d: %s", at, size, r.Outcome)
				}
				_ = c.end()
				_ = c.conn.Close()
			}
		})
	}
	if runs(t, marker) != 1 || w.snapshot() != before {
		t.Errorf("%d runs, state changed: %v", runs(t, marker), w.snapshot() != before)
	}
}

func framesOf(t testing.TB, p *plan, challenge []byte) map[wire.Type][]byte {
	t.Helper()
	params, secrets := p.Bind(t, challenge)
	return map[wire.Type][]byte{
		wire.Order: sign(t, &p.Order, p.By...), wire.Parameters: bytes.Clone(params), wire.Script: bytes.Clone(p.Script), wire.Secrets: secrets,
	}
}

// Every document in the place of every other: only the order is one.
func TestNoOtherDocumentIsAnOrder(t *testing.T) {
	script, marker := marking(t, "")
	w := newWorld(t, "join: "+script)
	w.mustRun(signing.PhaseJoin, script, "uid-1", 1)
	h, err := Open(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	documents := map[string]func(*client) []byte{
		"root":      func(*client) []byte { return w.Roots[1] },
		"allowlist": func(*client) []byte { return w.ListEnv },
		"hello": func(c *client) []byte {
			hello := *c.hello
			return sign(w.T, &hello, w.Dispatch)
		},
		"receipt": func(c *client) []byte {
			return sign(w.T, &signing.Receipt{
				HostID: c.hello.HostID, Challenge: c.hello.Challenge, Outcome: signing.OutcomeRefused, Reason: signing.ReasonBusy,
			}, w.Dispatch, h.signer)
		},
	}
	for name, document := range documents {
		for _, slot := range []wire.Type{wire.Root, wire.Allowlist, wire.Order} {
			if name == slot.String() {
				continue
			}
			c := w.connect()
			c.write(slot, document(c))
			c.hangUp()
			if r, _ := c.finish(); r.Reason != signing.ReasonWrongType {
				t.Errorf("%s as %s: %q", name, slot, r.Reason)
			}
			_ = c.end()
		}
	}
	if runs(t, marker) != 1 {
		t.Errorf("%d runs", runs(t, marker))
	}
}

// Each of the listed scripts runs in its own phase and in no other.
func TestPhaseAndScriptGoTogether(t *testing.T) {
	phases := []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave, signing.PhaseUninstall}
	var scripts []string
	for _, p := range phases {
		scripts = append(scripts, fmt.Sprintf("%s: echo %s", p, p))
	}
	w := newWorld(t, scripts...)
	for _, phase := range phases {
		for _, of := range phases {
			fence := int64(1)
			r, _ := w.order(phase, fmt.Sprintf("echo %s", of), "uid-1", fence)
			if ran := r.Outcome == signing.OutcomeOK; ran != (phase == of) {
				t.Errorf("script of %s ordered as %s: %s %s", of, phase, r.Outcome, r.Reason)
			}
			if phase == signing.PhaseLeave && phase == of {
				w.claim("uid-1", 1) // take it back for the rest
			}
		}
	}
}

func (w *world) claim(uid string, fence int64) {
	w.t.Helper()
	h, err := Open(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	defer h.Close()
	store, rec, err := openSlots(h.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	defer store.close()
	rec.Claim = signing.Claim{UID: uid, Fence: fence}
	if err := store.write(rec); err != nil {
		w.t.Fatal(err)
	}
}

func TestOneRunAtATime(t *testing.T) {
	const sessions = 50
	script, marker := marking(t, "read -r _ < $KPSSH_MARK")
	w := newWorld(t, "join: "+script)
	gate := newGate(t)
	clients := make([]*client, sessions)
	for i := range clients {
		clients[i] = w.connect()
	}
	receipts := make(chan *signing.Receipt, sessions)
	var all sync.WaitGroup
	begin := time.Now()
	for _, c := range clients {
		p := c.plan(signing.PhaseJoin, script, "uid-1", 1)
		p.Params["KPSSH_MARK"] = gate.path
		p.List = w.ListEnv
		all.Go(func() {
			c.submit(p)
			r, _ := c.finish()
			receipts <- r
		})
	}
	busy, running := 0, ""
	for range sessions - 1 {
		r := <-receipts
		if r.Reason != signing.ReasonBusy {
			t.Fatalf("%s %s while a run goes on", r.Outcome, r.Reason)
		}
		if busy++; running == "" {
			running = r.Running
		}
		if r.Running != running || running == "" {
			t.Errorf("busy with %q, then with %q", running, r.Running)
		}
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("refusing took %v", took)
	}
	gate.open()
	r := <-receipts
	all.Wait()
	if r.Outcome != signing.OutcomeOK || r.Order != running || busy != sessions-1 || runs(t, marker) != 1 {
		t.Errorf("%s of %s (busy ones named %s), %d busy, %d runs", r.Outcome, r.Order, running, busy, runs(t, marker))
	}
}

func FuzzSession(f *testing.F) {
	w := newWorld(f, "join: echo fuzz")
	c := w.connect()
	c.submit(c.plan(signing.PhaseJoin, "echo fuzz", "uid-1", 1))
	if _, _, err := c.read(); err != nil {
		f.Fatal(err)
	}
	f.Add(c.sent.Bytes())
	f.Add([]byte{0, 0, 0, 0, byte(wire.Probe)})
	f.Add([]byte{0, 0, 0, 1, byte(wire.Collect), 'x'})
	before := w.snapshot()
	f.Fuzz(func(t *testing.T, stream []byte) {
		if bytes.HasPrefix(stream, []byte{0, 0, 0, 0, byte(wire.Probe)}) {
			return // asks the host's tools; there is nothing of the stream in that
		}
		h, err := Open(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		var out bytes.Buffer
		_ = h.Serve(t.Context(), bytes.NewReader(stream), &out)
		r := wire.NewReader(&out)
		if err := r.Hello(func([]byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
		for {
			kind, payload, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if kind == wire.Receipt {
				if _, err := signing.OpenReceipt(payload, h.ReceiptKey()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if snapshot(t, w.cfg.State) != before {
			t.Error("the state changed")
		}
	})
}
