//go:build e2e

package threats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// liar is what a hostile host does with what its own shim says: it is root there, and has the receipt key.
type liar struct {
	// hello replaces the hello's envelope, answer any later frame; nil lets it pass.
	hello  func(envelope []byte) []byte
	answer func(kind wire.Type, payload []byte) (wire.Type, []byte)
	// after sends what it likes instead of the rest of the session.
	after func(out io.Writer)
}

// behind puts an SSH server in front of a host's shim, with a liar between both, and returns how the controller reaches
// it. The controller's side of these tests is the code that the controller links, in this process.
func (h *host) behind(t testing.TB, lie *liar) dispatch.Host {
	t.Helper()
	server := remotetest.New(t, remotetest.Config{Handler: func(ssh *remotetest.Session) int {
		s := h.start()
		go func() {
			_, _ = io.Copy(s.conn, ssh.Stdin)
			s.hangUp()
		}()
		code := lie.relay(s, ssh.Stdout)
		_ = s.end()
		return code
	}})
	return dispatch.Host{
		Name: "liar", Target: server.Target(remotetest.Key(t)), Mode: dispatch.Verified, HostID: h.id, ReceiptKey: h.key,
	}
}

func (l *liar) relay(s *session, out io.Writer) int {
	var hello []byte
	if err := s.in.Hello(func(envelope []byte) error { hello = slices.Clone(envelope); return nil }); err != nil {
		return 125
	}
	if l.hello != nil {
		hello = l.hello(hello)
	}
	_, _ = io.WriteString(out, wire.Preamble)
	_ = wire.Write(out, wire.Hello, hello)
	if l.after != nil {
		_, _, _ = s.in.Next() // the order has come: the shim answers it
		l.after(out)
		return 0
	}
	for {
		kind, payload, err := s.in.Next()
		if err != nil {
			return 0
		}
		if l.answer != nil {
			kind, payload = l.answer(kind, payload)
		}
		if wire.Write(out, kind, payload) != nil {
			return 0
		}
	}
}

// Documents implements dispatch.Trust.
func (w *world) Documents() (map[int64][]byte, []byte, error) { return w.Roots, w.ListEnv, nil }

// dispatcher is the controller's side.
func (w *world) dispatcher(t testing.TB) *dispatch.Dispatcher {
	t.Helper()
	pool := remote.NewPool(remote.PoolOptions{})
	t.Cleanup(func() { _ = pool.Close() })
	// The box has no sshd whose configuration a doctor could read; entry_….go has a real one.
	tolerated, err := dispatch.ParseTolerance("all")
	if err != nil {
		t.Fatal(err)
	}
	return dispatch.New(dispatch.Options{
		Tolerated: tolerated, Trust: w, Signer: w.Dispatch, Pool: pool, CollectInterval: 10 * time.Millisecond, SettleTime: 200 * time.Millisecond, AwayTime: time.Second,
		HelloTimeout: 5 * time.Second,
	})
}

func request(script string, fence int64) dispatch.Request {
	phase, text := split(script)
	return dispatch.Request{
		Phase: phase, Profile: profile, Version: "1", Script: []byte(text), Claim: "uid-1", Fence: fence, Timeout: 20 * time.Second,
		Parameters: map[string]string{"KPSSH_NODE_NAME": "node-a"},
	}
}

// signed has a hostile host sign what it likes with the key that is its own.
func signed[T signing.Document](t testing.TB, h *host, envelope []byte, open func([]byte, signing.Key) (*T, error), change func(*T)) []byte {
	doc, err := open(envelope, h.key)
	if err != nil {
		t.Error(err)
		return envelope
	}
	change(doc)
	return sign(t, doc, h.receiptKey())
}

// tampered changes the payload of an envelope and leaves its signatures.
func tampered(t testing.TB, text []byte, old, new string) []byte {
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		t.Error(err)
	}
	changed := bytes.Replace(e.Payload, []byte(old), []byte(new), 1)
	if bytes.Equal(changed, e.Payload) {
		t.Errorf("%s is not in %s", old, e.Payload)
	}
	return enclose(e.PayloadType, changed, e.Signatures[0].Sig)
}

// A host that lies about a run is found out, or says only what it might have done anyway: nothing of it is believed
// that is not signed by this host for this order.
func TestD7_AHostileHostIsNotBelieved(t *testing.T) {
	t.Parallel()
	script := "join: " + mark + "; echo ok"
	w := newWorld(t, script)
	honest := newHost(t, w)
	other := newHost(t, w)
	// What the hosts have signed before, to be replayed.
	var first, others []byte
	keep := func(into *[]byte) *liar {
		return &liar{answer: func(kind wire.Type, payload []byte) (wire.Type, []byte) {
			if kind == wire.Receipt {
				*into = slices.Clone(payload)
			}
			return kind, payload
		}}
	}
	d := w.dispatcher(t)
	for h, into := range map[*host]*[]byte{honest: &first, other: &others} {
		if _, err := d.Run(t.Context(), h.behind(t, keep(into)), request(script, 1)); err != nil {
			t.Fatal(err)
		}
	}
	receipt := func(change func(envelope []byte) []byte) *liar {
		return &liar{answer: func(kind wire.Type, payload []byte) (wire.Type, []byte) {
			if kind == wire.Receipt {
				payload = change(payload)
			}
			return kind, payload
		}}
	}
	rewritten := func(change func(*signing.Receipt)) *liar {
		return receipt(func(e []byte) []byte { return signed(t, honest, e, signing.OpenReceipt, change) })
	}
	output := func(change func([]byte) []byte) *liar {
		return &liar{answer: func(kind wire.Type, payload []byte) (wire.Type, []byte) {
			if kind == wire.Output {
				payload = change(payload)
			}
			return kind, payload
		}}
	}
	zero := "sha256:" + strings.Repeat("0", 64)
	fence := int64(1)
	for name, c := range map[string]struct {
		lie    *liar
		reason string
	}{
		"D7 the receipt of run 1 for run 2": {receipt(func([]byte) []byte { return first }), dispatch.ReasonReceiptMismatch},
		"D7 the receipt of another host":    {receipt(func([]byte) []byte { return others }), dispatch.ReasonProtocol},
		"D7 an exit code flipped": {receipt(func(e []byte) []byte {
			return tampered(t, e, `"exitCode":0`, `"exitCode":1`)
		}), dispatch.ReasonProtocol},
		"D7 an outcome changed": {receipt(func(e []byte) []byte {
			return tampered(t, e, `"outcome":"ok"`, `"outcome":"failed"`)
		}), dispatch.ReasonProtocol},
		"D7 a bit of the receipt flipped":       {receipt(func(e []byte) []byte { e = slices.Clone(e); e[len(e)/2] ^= 1; return e }), dispatch.ReasonProtocol},
		"D7 a bit of the output flipped":        {output(func(o []byte) []byte { o = slices.Clone(o); o[0] ^= 1; return o }), dispatch.ReasonReceiptMismatch},
		"D7 output left out":                    {output(func([]byte) []byte { return nil }), dispatch.ReasonReceiptMismatch},
		"D7 output added":                       {output(func(o []byte) []byte { return append(slices.Clone(o), '!') }), dispatch.ReasonReceiptMismatch},
		"D7 signed by it, for another order":    {rewritten(func(r *signing.Receipt) { r.Order = zero }), dispatch.ReasonReceiptMismatch},
		"D7 signed by it, for another host":     {rewritten(func(r *signing.Receipt) { r.HostID = strings.Repeat("0", 32) }), dispatch.ReasonReceiptMismatch},
		"D7 signed by it, for another session":  {rewritten(func(r *signing.Receipt) { r.Challenge = make([]byte, signing.ChallengeSize) }), dispatch.ReasonReceiptMismatch},
		"D7 signed by it, for another claim":    {rewritten(func(r *signing.Receipt) { r.Claim = "uid-9" }), dispatch.ReasonReceiptMismatch},
		"D7 signed by it, for another script":   {rewritten(func(r *signing.Receipt) { r.Script = zero }), dispatch.ReasonReceiptMismatch},
		"D7 signed by it, for other parameters": {rewritten(func(r *signing.Receipt) { r.Parameters = zero }), dispatch.ReasonReceiptMismatch},
		"D7 success with an exit status":        {rewritten(func(r *signing.Receipt) { r.ExitCode = 3 }), dispatch.ReasonReceiptMismatch},
		"D7 a refusal of another session, after the run": {rewritten(func(r *signing.Receipt) {
			r.Outcome, r.Reason, r.Challenge = signing.OutcomeRefused, signing.ReasonBusy, make([]byte, 32)
		}), dispatch.ReasonReceiptMismatch},
		"D7 a hello with another challenge": {&liar{hello: func(e []byte) []byte {
			return signed(t, honest, e, signing.OpenHello, func(h *signing.Hello) { h.Challenge = make([]byte, signing.ChallengeSize) })
		}}, dispatch.ReasonReceiptMismatch},
		"D7 the hello of another host": {&liar{hello: func([]byte) []byte {
			s := other.open()
			defer s.end()
			return sign(t, s.hello, other.receiptKey())
		}}, dispatch.ReasonWrongIdentity},
	} {
		t.Run(name, func(t *testing.T) {
			fence++
			r := request(script, fence)
			r.Script = []byte(fmt.Sprintf("%s # %d", r.Script, fence)) // a run of its own: what ended is not asked for again
			w.NewList(func(l *signing.Allowlist) { l.Scripts = append(l.Scripts, allow("join: "+string(r.Script))) })
			_, err := w.dispatcher(t).Run(t.Context(), honest.behind(t, c.lie), r)
			var e *dispatch.Error
			if !errors.As(err, &e) || e.Reason != c.reason {
				t.Fatalf("%v, want reason %s", err, c.reason)
			}
			if e.Class != dispatch.Untrusted && e.Class != dispatch.Refused || e.Output != "" {
				t.Errorf("class %s, output %q", e.Class, e.Output)
			}
		})
	}
	t.Run("D7 facts are held to their schema", func(t *testing.T) { hostileFacts(t, w, honest) })
}

// What a probe says is for nobody to run: it is words, numbers and addresses, or the probe has failed.
func hostileFacts(t *testing.T, w *world, h *host) {
	var good wire.HostFacts
	d := w.dispatcher(t)
	if p, err := d.Probe(t.Context(), h.behind(t, &liar{})); err != nil {
		t.Fatal(err)
	} else {
		good = p.Facts
	}
	for name, change := range map[string]func(*wire.HostFacts){
		"code in a word":     func(f *wire.HostFacts) { f.Arch = "{{ .Exec }}$(id)" },
		"code in a state":    func(f *wire.HostFacts) { f.KubeletState = "active; reboot" },
		"code in an address": func(f *wire.HostFacts) { f.Addresses = []string{"10.0.0.1; id"} },
		"no processors":      func(f *wire.HostFacts) { f.CPUs = -1 },
		"endless memory":     func(f *wire.HostFacts) { f.MemoryBytes = 1 << 62 },
		"a word of a MiB":    func(f *wire.HostFacts) { f.BootID = strings.Repeat("a", 60_000) },
	} {
		facts := good
		change(&facts)
		data, err := json.Marshal(facts)
		if err != nil {
			t.Fatal(err)
		}
		lie := &liar{answer: func(kind wire.Type, payload []byte) (wire.Type, []byte) { return kind, data }}
		if p, err := w.dispatcher(t).Probe(t.Context(), h.behind(t, lie)); err == nil {
			t.Errorf("D7 %s: believed: %+v", name, p.Facts)
		}
	}
	evil := good
	evil.OS = "Debian\x1b]0;owned\x07\u202e\r\nKPSSH"
	data, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	lie := &liar{answer: func(kind wire.Type, payload []byte) (wire.Type, []byte) { return kind, data }}
	p, err := w.dispatcher(t).Probe(t.Context(), h.behind(t, lie))
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(p.Facts.OS, "\x1b\r\n\x07") || strings.Contains(p.Facts.OS, "\u202e") {
		t.Errorf("D7 a text goes on as %q", p.Facts.OS)
	}
}

// The other two places of the matrix: what the controller reads as hello and as receipt is nothing else, whatever the
// host signs it with.
func TestA13_NoOtherDocumentIsAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	h := newHost(t, w)
	key := h.receiptKey()
	receipt := signing.Receipt{HostID: h.id, Challenge: make([]byte, signing.ChallengeSize), Outcome: signing.OutcomeRefused, Reason: signing.ReasonBusy}
	s := h.open()
	p := s.plan(join, "uid-1", 1)
	s.bind(p)
	documents := map[string][2]any{
		"root": {signing.TypeRoot, payloadOf(t, w.Roots[1])}, "allowlist": {signing.TypeAllowlist, payloadOf(t, w.ListEnv)},
		"order": {signing.TypeOrder, payloadOf(t, sign(t, &p.Order, w.Dispatch))}, "hello": {signing.TypeHello, payloadOf(t, sign(t, s.hello, key))},
		"receipt":              {signing.TypeReceipt, payloadOf(t, sign(t, &receipt, key))},
		"a cosign attestation": {"application/vnd.in-toto+json", []byte(`{"_type":"https://in-toto.io/Statement/v1"}`)},
	}
	s.end()
	for name, doc := range documents {
		envelope := forge(t, doc[0].(string), doc[1].([]byte), key)
		relabelled := map[string][]byte{}
		for slot, kind := range map[string]string{"hello": signing.TypeHello, "receipt": signing.TypeReceipt} {
			relabelled[slot] = forge(t, kind, doc[1].([]byte), key)
		}
		for how, envelopes := range map[string]map[string][]byte{
			"signed by the host": {"hello": envelope, "receipt": envelope}, "relabelled, signed by the host": relabelled,
		} {
			if name != "hello" {
				t.Run(fmt.Sprintf("A13 %s as hello, %s", name, how), func(t *testing.T) {
					lie := &liar{hello: func([]byte) []byte { return envelopes["hello"] }}
					_, err := w.dispatcher(t).Run(t.Context(), h.behind(t, lie), request(join, 1))
					var e *dispatch.Error
					if !errors.As(err, &e) || e.Class != dispatch.Untrusted || e.Reason != dispatch.ReasonWrongIdentity {
						t.Errorf("%v", err)
					}
				})
			}
			if name != "receipt" {
				t.Run(fmt.Sprintf("A13 %s as receipt, %s", name, how), func(t *testing.T) {
					lie := &liar{after: func(out io.Writer) { _ = wire.Write(out, wire.Receipt, envelopes["receipt"]) }}
					_, err := w.dispatcher(t).Run(t.Context(), h.stand(t).behind(t, lie), request(join, 1))
					var e *dispatch.Error
					if !errors.As(err, &e) || e.Class != dispatch.Untrusted || e.Reason != dispatch.ReasonProtocol {
						t.Errorf("%v", err)
					}
				})
			}
		}
	}
	if h.marks() != 0 {
		t.Errorf("an order was sent to a host that had not proved itself: %d runs", h.marks())
	}
}

// The controller does not take in what a hostile host sends without end, whatever the host's shim would do.
func TestD5_TheControllerIsNotFlooded(t *testing.T) {
	// Bytes, a 64th of what is sent. What the server in this same process has in flight is in it, and what died while the
	// collector looked, which on a busy machine is more: P8 of the bench measures it closely, in a process of its own.
	const most = 16 << 20
	w := newWorld(t, join)
	h := newHost(t, w)
	flood := func(kind wire.Type, size int) func(io.Writer) {
		return func(out io.Writer) {
			payload := make([]byte, size)
			for range (1 << 30) / size {
				if wire.Write(out, kind, payload) != nil {
					return
				}
			}
		}
	}
	for name, after := range map[string]func(io.Writer){
		"D5 a GiB of output":       flood(wire.Output, wire.Output.Cap()),
		"D5 a GiB in single bytes": flood(wire.Output, 1),
		"D5 a GiB of no frames":    func(out io.Writer) { _, _ = io.Copy(out, io.LimitReader(zeros{}, 1<<30)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := h.stand(t)
			d := w.dispatcher(t)
			host := h.behind(t, &liar{after: after})
			before := heap()
			stop, peak := make(chan struct{}), uint64(0)
			var watch sync.WaitGroup
			watch.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
						peak = max(peak, heap())
					}
				}
			})
			_, err := d.Run(t.Context(), host, request(join, 1))
			close(stop)
			watch.Wait()
			var e *dispatch.Error
			if !errors.As(err, &e) || e.Class != dispatch.Untrusted {
				t.Errorf("%v", err)
			}
			if peak > before+most {
				t.Errorf("the heap grew by %d KiB, the flooding server in it", (peak-before)>>10)
			}
			t.Logf("the heap grew by %d KiB at most, the flooding server in it", (int64(peak)-int64(before))>>10)
		})
	}
}

// heap is what is live in this process's heap.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
