//go:build e2e

package threats

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// workers is how many sessions of one test go on at once: what these tests cost is starting processes.
const workers = 4

// spread calls f for 0 … n-1, several at once, and says how far it is every second when the test is verbose.
func spread(t *testing.T, n int, f func(i int)) {
	t.Helper()
	var next, done atomic.Int64
	finished := make(chan struct{})
	go func() {
		for beat := time.NewTicker(time.Second); ; {
			select {
			case <-finished:
				beat.Stop()
				return
			case <-beat.C:
				if testing.Verbose() {
					fmt.Printf("    %s: %d of %d\n", t.Name(), done.Load(), n)
				}
			}
		}
	}()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
				done.Add(1)
			}
		})
	}
	all.Wait()
	close(finished)
}

// With the SSH key alone somebody reaches the shim and may say to it what they like.
func TestA1_AStolenSSHKeyRunsNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, newWorld(t, join))
	good := h.open()
	p := good.plan(join, "uid-1", 5)
	full(good, p)
	good.submit(p)
	if a := good.answered(); a.Outcome != signing.OutcomeOK {
		t.Fatalf("%s %s", a.Outcome, a.Reason)
	}
	good.end()
	recorded := good.sent.Bytes()
	sshKey := remotetest.Key(t)
	for name, c := range map[string]struct {
		want   signing.Reason
		attack func(*session, *plan)
	}{
		"A1 the replay of a captured session": {signing.ReasonStaleChallenge, func(s *session, p *plan) {
			s.raw(recorded)
			p.Sent = true
		}},
		"A1 an order that nobody signed": {signing.ReasonUntrusted, func(s *session, p *plan) {
			s.bind(p)
			payload, err := json.Marshal(p.Order)
			if err != nil {
				t.Fatal(err)
			}
			p.Env = enclose(signing.TypeOrder, payload)
		}},
		"A1 an order that they signed themselves": {signing.ReasonUntrusted, func(_ *session, p *plan) {
			p.By = []signing.Signer{newSigner(t)}
		}},
		"A1 an order signed with the SSH key": {signing.ReasonUntrusted, func(_ *session, p *plan) {
			p.By = []signing.Signer{sshSigner{sshKey}}
		}},
		"A1 an order signed by the author": {signing.ReasonUntrusted, func(_ *session, p *plan) {
			p.By = []signing.Signer{h.w.Author}
		}},
		"A1 an order signed by root": {signing.ReasonUntrusted, func(_ *session, p *plan) { p.By = h.w.Root }},
	} {
		t.Run(name, func(t *testing.T) { h.refuses(t, c.want, join, "uid-1", 6, c.attack) })
	}
}

// sshSigner signs documents with an SSH key.
type sshSigner struct{ key ssh.Signer }

// Public implements signing.Signer.
func (s sshSigner) Public() signing.Key {
	key, err := signing.KeyOf(s.key.PublicKey().(ssh.CryptoPublicKey).CryptoPublicKey())
	if err != nil {
		panic(err) // it is an ed25519 key
	}
	return key
}

// Sign implements signing.Signer.
func (s sshSigner) Sign(_ context.Context, message []byte) ([]byte, error) {
	sig, err := s.key.Sign(nil, message)
	if err != nil {
		return nil, err
	}
	return sig.Blob, nil
}

// What was recorded on the wire is good for nothing: its challenge died with the process that it was made for.
func TestA2_AThousandReplaysOfARecordedSessionRunNothing(t *testing.T) {
	t.Parallel()
	const replays = 1000
	h := newHost(t, newWorld(t, join))
	s := h.open()
	p := s.plan(join, "uid-1", 1)
	full(s, p)
	s.submit(p)
	s.answered()
	s.end()
	recorded := s.sent.Bytes()
	before := h.snapshot()
	var stale atomic.Int64
	spread(t, replays, func(int) {
		again := h.open()
		again.raw(recorded)
		a, err := again.read()
		if code := again.end(); err != nil || a.Reason != signing.ReasonStaleChallenge || code != 125 {
			t.Errorf("%+v, %v, exit %d", a.Receipt, err, code)
			return
		}
		stale.Add(1)
	})
	if stale.Load() != replays || h.marks() != 1 || h.snapshot() != before {
		t.Errorf("%d of %d were stale, %d runs in all, state changed: %v", stale.Load(), replays, h.marks(), h.snapshot() != before)
	}
	t.Logf("%d replays, all refused as %s, %d run in all", replays, signing.ReasonStaleChallenge, h.marks())
}

// A script is allowed in its own phase of its own profile and in no other.
func TestA6_AScriptRunsInItsOwnPhaseOnly(t *testing.T) {
	t.Parallel()
	phases := []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave, signing.PhaseUninstall}
	text := func(p signing.Phase) string { return fmt.Sprintf("echo %s >> /var/lib/ran", p) }
	var scripts []string
	for _, p := range phases {
		scripts = append(scripts, fmt.Sprintf("%s: %s", p, text(p)))
	}
	h := newHost(t, newWorld(t, scripts...))
	ran, fence := "", int64(0)
	for _, phase := range phases {
		for _, of := range phases {
			fence++
			a := h.order(fmt.Sprintf("%s: %s", phase, text(of)), "uid-1", fence)
			want := signing.Reason("")
			if phase == of {
				ran += string(of) + "\n"
			} else {
				want = signing.ReasonNotAllowed
			}
			if a.Reason != want || (a.Outcome == signing.OutcomeOK) != (phase == of) {
				t.Errorf("A6 script of %s ordered as %s: %s %q", of, phase, a.Outcome, a.Reason)
			}
		}
	}
	for name, bend := range map[string]func(*plan){
		"A6 another profile":           func(p *plan) { p.Order.Profile = "other" },
		"A6 another version":           func(p *plan) { p.Order.Version = "2" },
		"A6 a script of nobody's":      func(p *plan) { p.Script = []byte("id"); p.Order.Script = signing.Digest(p.Script) },
		"A6 other bytes than it names": func(p *plan) { p.Script = []byte(text(signing.PhaseJoin) + "\n") },
	} {
		t.Run(name, func(t *testing.T) {
			h.refuses(t, signing.ReasonNotAllowed, scripts[1], "uid-1", fence+1, func(_ *session, p *plan) { bend(p) })
		})
	}
	if got := h.read(t, "lib/ran"); got != ran {
		t.Errorf("ran %q, want %q", got, ran)
	}
}

// Every byte of an order, and of what belongs to it, is under a signature or a digest of something that is. The flips
// are exhaustive: one session of the built shim for each byte.
func TestA7_NoFlippedByteIsAccepted(t *testing.T) {
	t.Parallel()
	h := joined(t, newWorld(t, join))
	before := h.snapshot()
	parts := []wire.Type{wire.Order, wire.Parameters, wire.Script, wire.Secrets}
	frames := func(s *session) map[wire.Type][]byte {
		p := s.plan(join, "uid-1", 6)
		full(s, p)
		params, secrets := s.bind(p)
		return map[wire.Type][]byte{
			wire.Order: sign(t, &p.Order, p.By...), wire.Parameters: params, wire.Script: p.Script, wire.Secrets: secrets,
		}
	}
	s := h.open()
	sizes := map[wire.Type]int{}
	total := 0
	for kind, frame := range frames(s) {
		sizes[kind] = len(frame)
		total += len(frame)
	}
	s.end()
	var refused atomic.Int64
	reasons := sync.Map{}
	spread(t, total, func(i int) {
		s := h.open()
		all := frames(s)
		at := i
		kind := parts[0]
		for _, kind = range parts {
			if at < sizes[kind] {
				break
			}
			at -= sizes[kind]
		}
		all[kind] = bytes.Clone(all[kind])
		all[kind][at] ^= 1 << (at % 8)
		for _, k := range parts {
			s.frame(k, all[k])
		}
		a, err := s.read()
		code := s.end()
		if err != nil || a.Outcome != signing.OutcomeRefused || code != 125 {
			t.Errorf("byte %d of %s: %+v, %v, exit %d", at, kind, a.Receipt, err, code)
			return
		}
		reasons.Store(a.Reason, true)
		refused.Add(1)
	})
	if int(refused.Load()) != total || h.marks() != 1 || h.snapshot() != before {
		t.Errorf("%d of %d refused, %d runs in all, state changed: %v", refused.Load(), total, h.marks(), h.snapshot() != before)
	}
	// The order itself, unflipped, is a good one.
	h.mustRun(join, "uid-1", 6, full)
	var seen []string
	reasons.Range(func(k, _ any) bool { seen = append(seen, string(k.(signing.Reason))); return true })
	slices.Sort(seen)
	t.Logf("%d bytes (order %d, parameters %d, script %d, secrets %d), each flipped once: 0 accepted; reasons: %s", total,
		sizes[wire.Order], sizes[wire.Parameters], sizes[wire.Script], sizes[wire.Secrets], strings.Join(seen, " "))
}

// Nothing of the shim's is configured by its environment, and nothing of its environment reaches a script.
func TestA7_TheEnvironmentConfiguresNothing(t *testing.T) {
	t.Parallel()
	script := "join: env -0 | tr '\\0' '\\n' | sort"
	h := newHost(t, newWorld(t, script))
	hostile := func(cmd *exec.Cmd) {
		for _, name := range []string{
			"KPSSH_ALLOWED_SIGNERS", "KPSSH_STATE", "KPSSH_ROOT", "KPSSH_ALLOWLIST", "KPSSH_INSECURE", "KPSSH_DEBUG", "KPSSH_SKIP_VERIFY",
			"KPSSH_NODE_NAME", "KPSSH_CLUSTER_ENDPOINT", "KPSSH_BOOTSTRAP_TOKEN", "KPSSH_SOCKET", "KPSSH_HOST_ID", "KPSSH_VERSION",
			"PATH", "HOME", "TMPDIR", "XDG_CONFIG_HOME", "LD_PRELOAD", "BASH_ENV", "ENV",
		} {
			cmd.Env = append(cmd.Env, name+"=/tmp/evil")
		}
	}
	verdict := func(fence int64, bend func(*plan), change ...func(*exec.Cmd)) answer {
		s := h.open(change...)
		p := s.plan(script, "uid-1", fence)
		full(s, p)
		bend(p)
		s.submit(p)
		a := s.answered()
		s.end()
		return a
	}
	for name, bend := range map[string]func(*plan){
		"A7 a good order":            func(*plan) {},
		"A7 an order of a stranger":  func(p *plan) { p.By = []signing.Signer{newSigner(t)} },
		"A7 an unknown parameter":    func(p *plan) { p.Params["KPSSH_ALLOWED_SIGNERS"] = "me" },
		"A7 a name that is none":     func(p *plan) { p.Raw = []byte(`{"LD_PRELOAD":"/tmp/x.so"}`) },
		"A7 a secret in plain sight": func(p *plan) { p.Params[secret] = bootstrapToken },
	} {
		t.Run(name, func(t *testing.T) {
			plain, dressed := verdict(5, bend), verdict(5, bend, hostile)
			if plain.Outcome != dressed.Outcome || plain.Reason != dressed.Reason || plain.output != dressed.output {
				t.Errorf("%s %s %q, and with KPSSH_ variables %s %s %q",
					plain.Outcome, plain.Reason, plain.output, dressed.Outcome, dressed.Reason, dressed.output)
			}
			if strings.Contains(dressed.output, "evil") {
				t.Errorf("the script saw %q", dressed.output)
			}
		})
	}
}

// A document of one type is never taken for one of another, not even when the key that signs this place signed it. The
// two places that are read on the controller's side are in TestA13_NoOtherDocumentIsAnAnswer.
func TestA13_NoDocumentIsTakenForAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	h := joined(t, w)
	receiptKey := h.receiptKey()
	hello := func(s *session) *signing.Hello { return s.hello }
	documents := map[string]func(*session, *plan) (string, []byte){
		"root":      func(*session, *plan) (string, []byte) { return signing.TypeRoot, payloadOf(t, w.Roots[1]) },
		"allowlist": func(*session, *plan) (string, []byte) { return signing.TypeAllowlist, payloadOf(t, w.ListEnv) },
		"order": func(s *session, p *plan) (string, []byte) {
			s.bind(p)
			return signing.TypeOrder, payloadOf(t, sign(t, &p.Order, w.Dispatch))
		},
		"hello": func(s *session, _ *plan) (string, []byte) {
			return signing.TypeHello, payloadOf(t, sign(t, hello(s), receiptKey))
		},
		"receipt": func(s *session, _ *plan) (string, []byte) {
			r := signing.Receipt{HostID: h.id, Challenge: s.hello.Challenge, Outcome: signing.OutcomeRefused, Reason: signing.ReasonBusy}
			return signing.TypeReceipt, payloadOf(t, sign(t, &r, receiptKey))
		},
		"a cosign attestation": func(*session, *plan) (string, []byte) {
			return "application/vnd.in-toto+json", []byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[],"predicateType":"x","predicate":{}}`)
		},
	}
	slots := map[string]struct {
		frame wire.Type
		key   signing.Signer
	}{"root": {wire.Root, w.Root[0]}, "allowlist": {wire.Allowlist, w.Author}, "order": {wire.Order, w.Dispatch}}
	types := map[string]string{"root": signing.TypeRoot, "allowlist": signing.TypeAllowlist, "order": signing.TypeOrder}
	everyone := []signing.Signer{w.Root[0], w.Author, w.Dispatch, receiptKey}
	for _, slot := range slices.Sorted(maps.Keys(slots)) {
		for _, name := range slices.Sorted(maps.Keys(documents)) {
			if slot == name {
				continue
			}
			for how, c := range map[string]struct {
				want   signing.Reason
				signed func(kind string, payload []byte) []byte
			}{
				"as it is":                          {signing.ReasonWrongType, func(kind string, payload []byte) []byte { return forge(t, kind, payload, everyone...) }},
				"signed by this place's key":        {signing.ReasonWrongType, func(kind string, payload []byte) []byte { return forge(t, kind, payload, slots[slot].key) }},
				"relabelled, with a good signature": {signing.ReasonMalformed, func(_ string, payload []byte) []byte { return forge(t, types[slot], payload, slots[slot].key) }},
			} {
				t.Run(fmt.Sprintf("A13 %s as %s, %s", name, slot, how), func(t *testing.T) {
					h.refuses(t, c.want, join, "uid-1", 6, func(s *session, p *plan) {
						kind, payload := documents[name](s, p)
						s.frame(slots[slot].frame, c.signed(kind, payload))
						s.hangUp()
						p.Sent = true
					})
				})
			}
		}
	}
}

// A controller that was paused, or cut off, and comes back has orders of a claim that is over.
func TestA15_AStaleLeaderOrdersNothing(t *testing.T) {
	t.Parallel()
	leave := "leave: " + mark + "; echo left"
	h := newHost(t, newWorld(t, join, leave))
	h.mustRun(join, "uid-old", 5)

	// Its session is open, its order is made; then it is stopped for longer than its lease.
	paused := h.open()
	lateLeave := paused.plan(leave, "uid-old", 5)
	// Meanwhile its successor has the host leave, and claims it anew.
	h.mustRun(leave, "uid-old", 6)
	h.mustRun(join, "uid-new", 7)
	before, marks := h.snapshot(), h.marks()
	paused.submit(lateLeave)
	if a := paused.answered(); a.Reason != signing.ReasonStaleFence || a.output != "" {
		t.Errorf("A15 its leave: %s %q", a.Outcome, a.Reason)
	}
	paused.end()
	for name, c := range map[string]struct {
		script, claim string
		fence         int64
	}{
		"A15 a leave of the old claim":                    {leave, "uid-old", 5},
		"A15 a leave of the old claim under a new fence":  {leave, "uid-old", 99},
		"A15 a leave of nobody's claim":                   {leave, "", 99},
		"A15 a leave of the new claim, with an old fence": {leave, "uid-new", 6},
		"A15 a join of the old claim":                     {join, "uid-old", 99},
		"A15 a join of the new claim, with an old fence":  {join, "uid-new", 6},
	} {
		t.Run(name, func(t *testing.T) {
			h.refuses(t, signing.ReasonStaleFence, c.script, c.claim, c.fence, func(*session, *plan) {})
		})
	}
	if h.marks() != marks || h.snapshot() != before {
		t.Errorf("%d runs, state changed: %v", h.marks()-marks, h.snapshot() != before)
	}
	// A cluster that was restored from an older backup reads the fence in the hello and needs one contact more.
	s := h.open()
	if s.hello.Claim != (signing.Claim{UID: "uid-new", Fence: 7}) {
		t.Errorf("A15 the hello says %+v", s.hello.Claim)
	}
	s.end()
	h.mustRun(leave, "uid-new", s.hello.Claim.Fence)
	h.mustRun(join, "uid-restored", s.hello.Claim.Fence+1)
}

// One run at a time: of fifty orders at once one runs and the others learn at once that something does.
func TestA16_OfFiftySessionsOneRuns(t *testing.T) {
	const sessions = 50
	script := "join: " + mark + `; read -r _ < "$KPSSH_GATE"`
	h := newHost(t, newWorld(t, script))
	gate := h.gate()
	all := make([]*session, sessions)
	for i := range all {
		all[i] = h.open()
	}
	type end struct {
		answer
		took time.Duration
	}
	ends := make(chan end, sessions)
	for _, s := range all {
		p := s.plan(script, "uid-1", 1)
		p.Params["KPSSH_GATE"] = gate.name
		p.List = h.w.ListEnv
		go func() {
			begin := time.Now()
			s.submit(p)
			a, err := s.read()
			if err != nil {
				t.Errorf("%v; log: %s", err, &s.log)
				a = answer{Receipt: &signing.Receipt{}}
			}
			ends <- end{a, time.Since(begin)}
		}()
	}
	running, slowest := "", time.Duration(0)
	for range sessions - 1 {
		e := <-ends
		if e.Outcome != signing.OutcomeRefused || e.Reason != signing.ReasonBusy {
			t.Fatalf("%s %s while a run goes on", e.Outcome, e.Reason)
		}
		if running == "" {
			running = e.Running
		}
		if e.Running != running || running == "" {
			t.Errorf("busy with %q, then with %q", running, e.Running)
		}
		slowest = max(slowest, e.took)
	}
	gate.open()
	last := <-ends
	for _, s := range all {
		s.end()
	}
	if last.Outcome != signing.OutcomeOK || last.Order != running || h.marks() != 1 {
		t.Errorf("%s of %s (the busy ones named %s), %d runs", last.Outcome, last.Order, running, h.marks())
	}
	if slowest > time.Second {
		t.Errorf("the slowest busy came after %v", slowest)
	}
	if state := h.runState(); state != signing.RunFinished {
		t.Errorf("the state is %q", state)
	}
	t.Logf("1 run, %d busy, the slowest after %v", sessions-1, slowest.Round(time.Millisecond))
}

// Whoever has the dispatch key and the SSH key may have a host leave: no host can tell. What the row promises is that
// this is all: nothing that the author did not allow, and nothing on a host that somebody else's claim holds.
func TestD12_AStolenDispatchKeyMayOrderWhatIsAllowedAndNothingElse(t *testing.T) {
	t.Parallel()
	leave := "leave: " + mark
	h := newHost(t, newWorld(t, join, leave))
	h.mustRun(join, "uid-1", 5)
	for name, c := range map[string]struct {
		want   signing.Reason
		attack func(*session, *plan)
	}{
		"D12 a script of their own": {signing.ReasonNotAllowed, func(_ *session, p *plan) {
			p.Script = []byte("cat /etc/shadow")
			p.Order.Script = signing.Digest(p.Script)
		}},
		"D12 a parameter of their own": {signing.ReasonParam, func(_ *session, p *plan) { p.Params["KPSSH_NODE_NAME"] = "a; reboot" }},
		"D12 an allowlist of their own": {signing.ReasonUntrusted, func(_ *session, p *plan) {
			list := h.w.List
			list.Version++
			list.Scripts = append(slices.Clone(list.Scripts), allow("leave: cat /etc/shadow"))
			p.List = sign(t, &list, h.w.Dispatch)
		}},
		"D12 a root of their own": {signing.ReasonUntrusted, func(_ *session, p *plan) {
			root := h.w.RootDoc
			root.Version++
			root.Author = root.Dispatch
			p.Roots = [][]byte{sign(t, &root, h.w.Dispatch)}
		}},
		"D12 a leave for a claim that is another's": {signing.ReasonStaleFence, func(_ *session, p *plan) { p.Order.Claim = "uid-2" }},
	} {
		t.Run(name, func(t *testing.T) { h.refuses(t, c.want, leave, "uid-1", 6, c.attack) })
	}
	// What remains open, as docs/threat-model.md says.
	s := h.open()
	claim := s.hello.Claim
	s.end()
	h.mustRun(leave, claim.UID, claim.Fence)
}
