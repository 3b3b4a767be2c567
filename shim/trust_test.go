package shim

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/shimtest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const noop = "true"

func TestHostThatIsBehindWalksEveryRoot(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	for range 10 {
		w.NewRoot(func(r *signing.Root) {
			// The root key changes with each step: only the one before vouches for the next.
			w.Root = []signing.Signer{newSigner(t)}
			r.Root.Keys = shimtest.Role(1, w.Root...).Keys
		})
	}
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	if v := w.connect().hello.Root.Version; v != 11 {
		t.Errorf("root version %d", v)
	}
}

func TestTooManyRootsAreRefused(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	for range 65 {
		w.NewRoot(func(*signing.Root) {})
	}
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 1); r.Reason != signing.ReasonTooLarge {
		t.Errorf("65 roots in one session: %s %s", r.Outcome, r.Reason)
	}
	// What was taken stays, and the next session goes on from there.
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
}

func TestDispatchKeyIsReplacedInBand(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	old, next := w.Dispatch, newSigner(t)
	w.NewRoot(func(r *signing.Root) { r.Dispatch.Keys = shimtest.Role(1, old, next).Keys })
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 2)
	w.Dispatch = next
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 3)
	w.NewRoot(func(r *signing.Root) { r.Dispatch.Keys = shimtest.Role(1, next).Keys })
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 4)
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 5, func(p *plan) { p.By = []signing.Signer{old} }); r.Reason != signing.ReasonUntrusted {
		t.Errorf("order by the dropped key: %s %s", r.Outcome, r.Reason)
	}
}

// A1: an order by a key that was good once is not good after the root that drops it, in the very
// session that brings that root.
func TestRootTakesEffectBeforeItsOrder(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	stolen := w.Dispatch
	w.NewRoot(func(r *signing.Root) { w.Dispatch = newSigner(t); r.Dispatch.Keys = shimtest.Role(1, w.Dispatch).Keys })
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 1, func(p *plan) { p.By = []signing.Signer{stolen} }); r.Reason != signing.ReasonUntrusted {
		t.Errorf("%s %s", r.Outcome, r.Reason)
	}
}

func TestScriptThatTheNewListDropsIsGone(t *testing.T) {
	const s1, s2 = "echo one", "echo two"
	w := newWorld(t, "join: "+s1, "join: "+s2)
	w.mustRun(signing.PhaseJoin, s1, "uid-1", 1)
	old := w.ListEnv
	w.NewList(func(l *signing.Allowlist) { l.Scripts = l.Scripts[1:] })
	w.mustRun(signing.PhaseJoin, s2, "uid-1", 2)
	if r, _ := w.order(signing.PhaseJoin, s1, "uid-1", 3); r.Reason != signing.ReasonNotAllowed {
		t.Errorf("order for the dropped script: %s %s", r.Outcome, r.Reason)
	}
	w.ListEnv = old
	if r, _ := w.order(signing.PhaseJoin, s1, "uid-1", 3); r.Reason != signing.ReasonRollback {
		t.Errorf("the old list again: %s %s", r.Outcome, r.Reason)
	}
	if v := w.connect().hello.Allowlist.Version; v != 2 {
		t.Errorf("allowlist version %d after the attempt", v)
	}
}

// A4: a session that was opened before the list was replaced does not run what the new list drops.
func TestSessionHeldOpenDoesNotOutliveItsList(t *testing.T) {
	const s1, s2 = "echo one", "echo two"
	w := newWorld(t, "join: "+s1, "join: "+s2)
	w.mustRun(signing.PhaseJoin, s1, "uid-1", 1)
	held := w.connect()
	order := held.plan(signing.PhaseJoin, s1, "uid-1", 3)
	w.NewList(func(l *signing.Allowlist) { l.Scripts = l.Scripts[1:] })
	w.mustRun(signing.PhaseJoin, s2, "uid-1", 2)
	before := w.snapshot()
	held.submit(order)
	if r, out := held.finish(); r.Reason != signing.ReasonRollback || out != "" {
		t.Errorf("%s %s, output %q", r.Outcome, r.Reason, out)
	}
	if after := w.snapshot(); after != before {
		t.Errorf("state was\n%s\nand is\n%s", before, after)
	}
}

func TestExpiredListGivesWayToANewerOne(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	w.clock = issued.Add(year + time.Hour)
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 2); r.Reason != signing.ReasonExpired {
		t.Errorf("after expiry: %s %s", r.Outcome, r.Reason)
	}
	w.NewList(func(l *signing.Allowlist) { l.Issued, l.Expires = w.clock, w.clock.Add(year) })
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 2)
}

// A clock set back does not bring an expired list to life: the newest time that an author signed
// is a floor, and so is the time of the build.
func TestClockSetBackRevivesNothing(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.NewList(func(l *signing.Allowlist) { l.Issued, l.Expires = issued.Add(6*year), issued.Add(7*year) })
	w.clock = time.Unix(0, 0)
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 1); r.Reason != signing.ReasonExpired {
		t.Errorf("root that expired before the list was issued, clock in 1970: %s %s", r.Outcome, r.Reason)
	}
}

// A host without a clock works: what is signed is enough.
func TestClockIn1970IsNoObstacle(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.clock = time.Unix(0, 0)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
}

func TestLeaveHasAGrace(t *testing.T) {
	w := newWorld(t, "leave: "+noop, "join: "+noop)
	w.List.Scripts[0].GraceSeconds = int64((48 * time.Hour).Seconds())
	w.ListEnv = sign(w.T, &w.List, w.Author)
	w.clock = w.List.Expires.Add(24 * time.Hour)
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 1); r.Reason != signing.ReasonExpired {
		t.Errorf("join: %s %s", r.Outcome, r.Reason)
	}
	w.mustRun(signing.PhaseLeave, noop, "uid-1", 1)
	w.clock = w.List.Expires.Add(72 * time.Hour)
	if r, _ := w.order(signing.PhaseLeave, noop, "uid-1", 1); r.Reason != signing.ReasonExpired {
		t.Errorf("leave after the grace: %s %s", r.Outcome, r.Reason)
	}
}

// A14: a thief of the author's key drives the floor up; a new author starts again.
func TestNewAuthorResetsTheFloor(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.List.Version = 1<<62 - 1
	w.NewList(func(*signing.Allowlist) {})
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	old := w.ListEnv
	w.Author = newSigner(t)
	w.NewRoot(func(r *signing.Root) { r.Author.Keys = shimtest.Role(1, w.Author).Keys })
	w.List.Version = 0
	w.NewList(func(*signing.Allowlist) {})
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 2)
	w.ListEnv = old
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 3); r.Reason != signing.ReasonUntrusted {
		t.Errorf("the old author's list: %s %s", r.Outcome, r.Reason)
	}
}

// While old and new author stand side by side, the old list stays in force and its version is no
// floor any more (TUF 5.3.11).
func TestAddedAuthorResetsTheFloorAndKeepsTheList(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.List.Version = 1 << 40
	w.NewList(func(*signing.Allowlist) {})
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	old := w.Author
	w.Author = newSigner(t)
	w.NewRoot(func(r *signing.Root) { r.Author.Keys = shimtest.Role(1, old, w.Author).Keys })
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 2)
	w.List.Version = 0
	w.NewList(func(*signing.Allowlist) {})
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 3)
	if v := w.connect().hello.Allowlist.Version; v != 1 {
		t.Errorf("allowlist version %d", v)
	}
}

// The list that is in force, brought once more behind the root that reset its floor, is a floor again: an older one of
// the author who stayed is refused.
func TestTheListBroughtBehindARootIsAFloorAgain(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	older := w.ListEnv
	w.NewList(func(*signing.Allowlist) {})
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 2)
	w.NewRoot(func(r *signing.Root) { r.Author.Keys = shimtest.Role(1, w.Author, newSigner(t)).Keys })
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 3, func(p *plan) { p.List = w.ListEnv })
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 4, func(p *plan) { p.List = older }); r.Reason != signing.ReasonRollback {
		t.Errorf("an older list: %s %s", r.Outcome, r.Reason)
	}
}

// The new root alone takes the old author's list out of force.
func TestDroppedAuthorAllowsNothing(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	w.NewRoot(func(r *signing.Root) { r.Author.Keys = shimtest.Role(1, newSigner(t)).Keys })
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 2, func(p *plan) { p.List = nil }); r.Reason != signing.ReasonNotAllowed {
		t.Errorf("%s %s", r.Outcome, r.Reason)
	}
	if ref := w.connect().hello.Allowlist; ref != (signing.DocumentRef{}) {
		t.Errorf("hello names allowlist %+v", ref)
	}
}

// Two sessions that bring documents do not undo each other.
func TestDocumentsNeverGoBackUnderConcurrency(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	d, err := openDir(w.cfg.State, mustUID())
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	stale, err := loadTrust(d)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.NewRoot(func(*signing.Root) {})
	}
	now := stale
	for v := int64(2); v <= 4; v++ {
		if now, err = now.rollRoot(d, w.Roots[v]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stale.rollRoot(d, w.Roots[2]); signing.ReasonOf(err) != signing.ReasonRollback {
		t.Errorf("a session that began before: %v", err)
	}
	if again, err := stale.rollRoot(d, w.Roots[4]); err != nil || again.root.Version != 4 {
		t.Errorf("the same step once more: %v", err)
	}
}

func TestAdmission(t *testing.T) {
	for name, tc := range map[string]struct {
		held  signing.Claim
		phase signing.Phase
		claim string
		fence int64
		want  signing.Claim // zero: refused
	}{
		"join of a free host, newer fence":         {signing.Claim{Fence: 3}, signing.PhaseJoin, "a", 4, signing.Claim{UID: "a", Fence: 4}},
		"join of a free host, same fence":          {signing.Claim{Fence: 3}, signing.PhaseJoin, "a", 3, signing.Claim{}},
		"install of a new host":                    {signing.Claim{}, signing.PhaseInstall, "a", 1, signing.Claim{UID: "a", Fence: 1}},
		"install of a new host without a fence":    {signing.Claim{}, signing.PhaseInstall, "a", 0, signing.Claim{}},
		"join again under the same claim":          {signing.Claim{UID: "a", Fence: 3}, signing.PhaseJoin, "a", 3, signing.Claim{UID: "a", Fence: 3}},
		"join under the same claim, newer fence":   {signing.Claim{UID: "a", Fence: 3}, signing.PhaseJoin, "a", 9, signing.Claim{UID: "a", Fence: 9}},
		"join under the same claim, older fence":   {signing.Claim{UID: "a", Fence: 3}, signing.PhaseJoin, "a", 2, signing.Claim{}},
		"join of a held host by another":           {signing.Claim{UID: "a", Fence: 3}, signing.PhaseJoin, "b", 9, signing.Claim{}},
		"join without a claim":                     {signing.Claim{Fence: 3}, signing.PhaseJoin, "", 9, signing.Claim{}},
		"leave of the claim":                       {signing.Claim{UID: "a", Fence: 3}, signing.PhaseLeave, "a", 3, signing.Claim{UID: "a", Fence: 3}},
		"leave of the claim, older fence":          {signing.Claim{UID: "a", Fence: 3}, signing.PhaseLeave, "a", 2, signing.Claim{}},
		"leave of another claim":                   {signing.Claim{UID: "a", Fence: 3}, signing.PhaseLeave, "b", 9, signing.Claim{}},
		"leave without a claim of a held host":     {signing.Claim{UID: "a", Fence: 3}, signing.PhaseLeave, "", 9, signing.Claim{}},
		"leave again after it":                     {signing.Claim{Fence: 3}, signing.PhaseLeave, "a", 3, signing.Claim{Fence: 3}},
		"leave of a host that nobody holds":        {signing.Claim{Fence: 3}, signing.PhaseLeave, "", 3, signing.Claim{Fence: 3}},
		"leave with an old fence after it":         {signing.Claim{Fence: 3}, signing.PhaseLeave, "a", 2, signing.Claim{}},
		"uninstall goes by the rules of leave":     {signing.Claim{UID: "a", Fence: 3}, signing.PhaseUninstall, "b", 9, signing.Claim{}},
		"join by a partitioned leader after a new": {signing.Claim{UID: "new", Fence: 8}, signing.PhaseJoin, "old", 7, signing.Claim{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := admit(tc.held, &signing.Order{Phase: tc.phase, Claim: tc.claim, Fence: tc.fence})
			refused := tc.want == (signing.Claim{})
			if refused != (signing.ReasonOf(err) == signing.ReasonStaleFence) || !refused && got != tc.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestLeaveFreesTheHostOnlyWhenItWorked(t *testing.T) {
	w := newWorld(t, "join: "+noop, "leave: false", "leave: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 5)
	if r, _ := w.order(signing.PhaseLeave, "false", "uid-1", 5); r.Outcome != signing.OutcomeFailed {
		t.Fatalf("%+v", r)
	}
	if claim := w.connect().hello.Claim; claim != (signing.Claim{UID: "uid-1", Fence: 5}) {
		t.Errorf("after a leave that failed: %+v", claim)
	}
	w.mustRun(signing.PhaseLeave, noop, "uid-1", 5)
	if claim := w.connect().hello.Claim; claim != (signing.Claim{Fence: 5}) {
		t.Errorf("after a leave that worked: %+v", claim)
	}
	if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 5); r.Reason != signing.ReasonStaleFence {
		t.Errorf("join under the fence that left: %s %s", r.Outcome, r.Reason)
	}
	w.mustRun(signing.PhaseJoin, noop, "uid-2", 6)
}

// padded is an envelope with a field that no reader knows, and that JSON for HTML would spell six times as long.
func padded(envelope []byte) []byte {
	return append(bytes.TrimSuffix(bytes.Clone(envelope), []byte("}")), []byte(`,"x":"`+strings.Repeat("<", 1000)+`"}`)...)
}

// Whoever has the SSH key can pad a document that the author signed. The host keeps it without, so that it opens again.
func TestPaddedDocumentsAreKeptWithoutThePadding(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	w.NewRoot(func(*signing.Root) {})
	w.NewList(func(*signing.Allowlist) {})
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 2, func(p *plan) {
		p.Roots, p.List = [][]byte{padded(w.Roots[2])}, padded(w.ListEnv)
	})
	if hello := w.connect().hello; hello.Root.Version != 2 || hello.Allowlist.Version != 2 {
		t.Errorf("root %d, allowlist %d", hello.Root.Version, hello.Allowlist.Version)
	}
	for _, name := range []string{rootFile, allowlistFile} {
		data, err := os.ReadFile(w.cfg.State + "/" + name)
		if err != nil || bytes.Contains(data, []byte("<")) || bytes.Contains(data, []byte(`\u003c`)) {
			t.Errorf("%s keeps the padding, or %v", name, err)
		}
	}
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 3)
}

// A list that cannot be read allows nothing and ends no session: the next list comes by one.
func TestKeptListThatDoesNotOpenIsNoList(t *testing.T) {
	for name, content := range map[string]func(kept []byte) []byte{
		"nothing":      func([]byte) []byte { return nil },
		"no JSON":      func([]byte) []byte { return []byte("garbage") },
		"no envelope":  func([]byte) []byte { return []byte(`{"author":"x","envelope":{}}`) },
		"one too long": func(kept []byte) []byte { return append(kept, make([]byte, maxAllowlistFile)...) },
		"cut off":      func(kept []byte) []byte { return kept[:len(kept)/2] },
		"a broken one": func(kept []byte) []byte { return bytes.Replace(kept, []byte(`"payload":"`), []byte(`"payload":"!`), 1) },
		"a padded one": func(kept []byte) []byte {
			return bytes.Replace(kept, []byte(`{"payloadType"`), []byte(`{"x":"`+strings.Repeat(`\u003c`, 1000)+`","payloadType"`), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "join: "+noop)
			w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
			kept, err := os.ReadFile(w.cfg.State + "/" + allowlistFile)
			if err != nil {
				t.Fatal(err)
			}
			w.swap(allowlistFile, func(path string) error { return os.WriteFile(path, content(kept), 0o600) })
			if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 2, func(p *plan) { p.List = nil }); r.Reason != signing.ReasonNotAllowed {
				t.Errorf("%s %s", r.Outcome, r.Reason)
			}
			if ref := w.connect().hello.Allowlist; ref != (signing.DocumentRef{}) {
				t.Errorf("hello names allowlist %+v", ref)
			}
			w.mustRun(signing.PhaseJoin, noop, "uid-1", 3)
		})
	}
}
