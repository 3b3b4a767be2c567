//go:build e2e

package threats

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// A list that was good once is not good any more, and a script that it alone allows is gone.
func TestA4_AnOldAllowlistIsNotTakenBack(t *testing.T) {
	t.Parallel()
	one, two := "join: "+mark+"; echo one", "join: "+mark+"; echo two"
	w := newWorld(t, one, two)
	h := newHost(t, w)
	h.mustRun(one, "uid-1", 1)
	v1 := w.ListEnv
	held := h.open() // a session that was opened while the old list stood
	late := held.plan(one, "uid-1", 3)
	w.NewList(func(l *signing.Allowlist) { l.Scripts = l.Scripts[1:] })
	h.mustRun(two, "uid-1", 2)
	digest := func(envelope []byte) string {
		d, err := signing.PayloadDigest(envelope)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	before := h.snapshot()
	held.submit(late)
	if a := held.answered(); a.Reason != signing.ReasonRollback || a.output != "" {
		t.Errorf("A4 a session held open: %s %q", a.Outcome, a.Reason)
	}
	held.end()
	if h.snapshot() != before {
		t.Error("A4 a session held open changed the state")
	}
	h.forget()
	for name, c := range map[string]struct {
		want   signing.Reason
		attack func(*session, *plan)
	}{
		"A4 the script that the new list dropped": {signing.ReasonNotAllowed, func(*session, *plan) {}},
		"A4 the old list again":                   {signing.ReasonRollback, func(_ *session, p *plan) { p.List, p.Order.Allowlist = v1, digest(v1) }},
		"A4 an order that names the old list":     {signing.ReasonRollback, func(_ *session, p *plan) { p.Order.Allowlist = digest(v1) }},
		"A4 another list of the same version": {signing.ReasonRollback, func(_ *session, p *plan) {
			twin := w.List
			twin.Expires = twin.Expires.Add(hour)
			twin.Scripts = append(slices.Clone(twin.Scripts), allow(one))
			p.List = sign(t, &twin, w.Author)
			p.Order.Allowlist = digest(p.List)
		}},
	} {
		t.Run(name, func(t *testing.T) { h.refuses(t, c.want, one, "uid-1", 3, c.attack) })
	}
	s := h.open()
	if s.hello.Allowlist != (signing.DocumentRef{Version: 2, Digest: digest(w.ListEnv)}) {
		t.Errorf("the floor is %+v", s.hello.Allowlist)
	}
	s.end()
}

// Who keeps new documents from a host has until the old ones expire; then orders stop, and documents are still taken.
// The clock of the host passes the expiry here; TestA18_… has clocks that are wrong.
func TestA5_AFrozenHostStopsWhenItsDocumentsExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	w.List.Expires = time.Now().Add(3 * time.Second)
	w.ListEnv = sign(t, &w.List, w.Author)
	h := newHost(t, w)
	h.mustRun(join, "uid-1", 1)
	eventually(t, "the list to expire", func() bool { return time.Now().After(w.List.Expires) })
	h.refuses(t, signing.ReasonExpired, join, "uid-1", 2, full)
	s := h.open()
	if s.hello.Allowlist.Version != 1 || s.hello.Root.Version != 1 {
		t.Errorf("A5 the hello tells of root %d, allowlist %d", s.hello.Root.Version, s.hello.Allowlist.Version)
	}
	s.end()
	w.NewList(func(l *signing.Allowlist) { l.Issued, l.Expires = time.Now(), time.Now().Add(year) })
	h.mustRun(join, "uid-1", 2)

	// The same for the root, which a host follows although it has expired.
	w.NewRoot(func(r *signing.Root) { r.Expires = time.Now().Add(-hour) })
	if a := h.order(join, "uid-1", 3); a.Reason != signing.ReasonExpired {
		t.Errorf("A5 under an expired root: %s %q", a.Outcome, a.Reason)
	}
	w.NewRoot(func(r *signing.Root) { r.Issued, r.Expires = time.Now(), time.Now().Add(year) })
	h.mustRun(join, "uid-1", 3)
	if h.marks() != 3 {
		t.Errorf("%d runs", h.marks())
	}
}

// keyIDs puts signatures under key ids into an envelope.
func keyIDs(t testing.TB, kind string, payload []byte, by []signing.Signer, ids ...string) []byte {
	t.Helper()
	e := envelope{PayloadType: kind, Payload: payload}
	for i, id := range ids {
		e.Signatures = append(e.Signatures, envelopeSignature{KeyID: id, Sig: signature(t, kind, payload, by[i])})
	}
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// One stolen key of two is one, under however many names.
func TestA10_OneKeyCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	second := newSigner(t)
	both := []signing.Signer{w.Root[0], second}
	w.NewRoot(func(r *signing.Root) {
		w.Root = both
		r.Root, r.Author, r.Dispatch = role(2, both...), role(2, w.Author, second), role(2, w.Dispatch, second)
	})
	w.ListEnv = sign(t, &w.List, w.Author, second)
	h := newHost(t, w)
	h.mustRun(join, "uid-1", 5, func(_ *session, p *plan) { p.By = []signing.Signer{w.Dispatch, second} })
	h.forget()
	twice := func(kind string, payload []byte, by signing.Signer) []byte {
		return keyIDs(t, kind, payload, []signing.Signer{by, by, by}, by.Public().ID(), second.Public().ID(), "")
	}
	next := w.RootDoc
	next.Version++
	list := w.List
	list.Version++
	for name, attack := range map[string]func(*session, *plan){
		"A10 a root": func(_ *session, p *plan) {
			p.Roots = [][]byte{twice(signing.TypeRoot, payloadOf(t, sign(t, &next, both...)), both[0])}
		},
		"A10 an allowlist": func(_ *session, p *plan) {
			p.List = twice(signing.TypeAllowlist, payloadOf(t, sign(t, &list, w.Author)), w.Author)
		},
		"A10 an order": func(s *session, p *plan) {
			s.bind(p)
			p.Env = twice(signing.TypeOrder, payloadOf(t, sign(t, &p.Order, w.Dispatch)), w.Dispatch)
		},
		"A10 one signature": func(_ *session, p *plan) { p.By = []signing.Signer{w.Dispatch} },
	} {
		t.Run(name, func(t *testing.T) { h.refuses(t, signing.ReasonUntrusted, join, "uid-1", 6, attack) })
	}
	// A document that lists one key twice is none.
	for name, keys := range map[string][]signing.Key{
		"A10 a key listed twice":                {both[0].Public(), both[0].Public()},
		"A10 a key listed in a second spelling": {both[0].Public(), respelled(both[0].Public())},
	} {
		t.Run(name, func(t *testing.T) {
			root := next
			root.Root = signing.RoleKeys{Keys: keys, Threshold: 2}
			h.refuses(t, signing.ReasonMalformed, join, "uid-1", 6, func(_ *session, p *plan) {
				p.By = []signing.Signer{w.Dispatch, second}
				p.Roots = [][]byte{forge(t, signing.TypeRoot, encode(t, root), both...)}
			})
		})
	}
}

// respelled is the same key with its ASN.1 length in the long form, which a lenient parser reads as well.
func respelled(k signing.Key) signing.Key {
	long := append([]byte{k.Public[0], 0x81}, k.Public[1:]...)
	return signing.Key{Algorithm: k.Algorithm, Public: long}
}

// encode is the payload of a document that signing.Sign would refuse, in the form in which it writes good ones.
func encode(t testing.TB, doc any) []byte {
	t.Helper()
	if r, ok := doc.(signing.Root); ok {
		r.Issued, r.Expires = r.Issued.UTC().Truncate(time.Second), r.Expires.UTC().Truncate(time.Second)
		for _, role := range []*signing.RoleKeys{&r.Root, &r.Author, &r.Dispatch} {
			if role.Keys == nil {
				role.Keys = []signing.Key{}
			}
		}
		doc = r
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		t.Fatal(err)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

// A root that makes no sense is refused, as the next one and as the first, and the old one stays.
func TestA11_AMalformedRootIsRefusedAndTheOldOneStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	h := joined(t, w)
	var many []signing.Signer
	for range signing.MaxKeys + 1 {
		many = append(many, newSigner(t))
	}
	for name, spoil := range map[string]func(*signing.Root){
		"A11 threshold 0":                        func(r *signing.Root) { r.Root.Threshold = 0 },
		"A11 a threshold below 0":                func(r *signing.Root) { r.Author.Threshold = -1 },
		"A11 a threshold above its keys":         func(r *signing.Root) { r.Dispatch.Threshold = 2 },
		"A11 a role without keys":                func(r *signing.Root) { r.Author.Keys = nil },
		"A11 a role that is missing":             func(r *signing.Root) { r.Dispatch = signing.RoleKeys{} },
		"A11 a key twice":                        func(r *signing.Root) { r.Root.Keys = append(r.Root.Keys, r.Root.Keys[0]) },
		"A11 too many keys":                      func(r *signing.Root) { r.Root = role(1, many...) },
		"A11 version 0":                          func(r *signing.Root) { r.Version = 0 },
		"A11 a version below 0":                  func(r *signing.Root) { r.Version = math.MinInt64 + 2 },
		"A11 never issued":                       func(r *signing.Root) { r.Issued = time.Time{} },
		"A11 expires before it was issued":       func(r *signing.Root) { r.Expires = r.Issued.Add(-hour) },
		"A11 a threshold that overflows":         func(r *signing.Root) { r.Author.Threshold = math.MaxInt },
		"A11 an algorithm that nobody knows":     func(r *signing.Root) { r.Author.Keys = []signing.Key{{Algorithm: "none", Public: []byte{}}} },
		"A11 a threshold above what fits a file": func(r *signing.Root) { r.Author = role(signing.MaxSignatures+1, many[:signing.MaxSignatures+1]...) },
	} {
		t.Run(name, func(t *testing.T) {
			bad := w.RootDoc
			bad.Version = 2
			bad.Root.Keys, bad.Author.Keys = slices.Clone(bad.Root.Keys), slices.Clone(bad.Author.Keys)
			spoil(&bad)
			envelope := forge(t, signing.TypeRoot, encode(t, bad), w.Root...)
			h.refuses(t, signing.ReasonMalformed, join, "uid-1", 6, func(_ *session, p *plan) { p.Roots = [][]byte{envelope} })

			fresh := &host{box: newBox(t), t: t, w: w}
			fresh.write(t, "etc/kpssh/root.json", string(envelope))
			if _, errs, code := fresh.command(binaries.shim, "enroll", "--json"); code != 1 || !strings.HasPrefix(errs, "kpssh-shim: error: ") {
				t.Errorf("enrolling with it: exit %d, %q", code, errs)
			}
		})
	}
	h.mustRun(join, "uid-1", 6)
}

// step is one version of the root: whose keys it lists, how many must sign, and who signs it.
type step struct {
	keys      []int
	threshold int
	sigs      []int
	refused   bool
}

// rootRotations are the cases of theupdateframework/tuf-conformance:tuf_conformance/test_updater_key_rotations.py
// (root_rotation_cases).
var rootRotations = map[string][]step{
	"1-of-1 key rotation": {
		{[]int{1}, 1, []int{1}, false}, {[]int{2}, 1, []int{2, 1}, false}, {[]int{2}, 1, []int{2}, false}},
	"1-of-1 key rotation, unused signatures": {
		{[]int{1}, 1, []int{3, 1, 4}, false}, {[]int{2}, 1, []int{3, 2, 1, 4}, false}, {[]int{2}, 1, []int{3, 2, 4}, false}},
	"3-of-5 signed with different combinations": {
		{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 2, 3, 4}, 3, []int{0, 4, 1}, false},
		{[]int{0, 1, 2, 3, 4}, 3, []int{0, 1, 3}, false}, {[]int{0, 1, 2, 3, 4}, 3, []int{0, 1, 3}, false}},
	"3-of-5 one key rotated": {
		{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 3, 4, 5}, 3, []int{0, 4, 1}, false}},
	"3-of-5 one key rotated, with an intermediate step": {
		{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 3, 4, 5}, 3, []int{0, 2, 4, 5}, false},
		{[]int{0, 1, 3, 4, 5}, 3, []int{0, 4, 5}, false}},
	"3-of-5 all keys rotated, with an intermediate step": {
		{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{5, 6, 7, 8, 9}, 3, []int{0, 2, 4, 5, 6, 7}, false},
		{[]int{5, 6, 7, 8, 9}, 3, []int{5, 6, 7}, false}},
	"1-of-3 threshold raised to 2-of-3": {
		{[]int{1, 2, 3}, 1, []int{1}, false}, {[]int{1, 2, 3}, 2, []int{1, 2}, false}},
	"2-of-3 threshold lowered to 1-of-3": {
		{[]int{1, 2, 3}, 2, []int{1, 2}, false}, {[]int{1, 2, 3}, 1, []int{1, 2}, false}, {[]int{1, 2, 3}, 1, []int{1}, false}},
	"1-of-1 threshold raised to 2-of-2": {
		{[]int{1}, 1, []int{1}, false}, {[]int{1, 2}, 2, []int{1, 2}, false}},
	"1-of-1 key rotation fails: not signed with the old key": {
		{[]int{1}, 1, []int{1}, false}, {[]int{2}, 1, []int{2, 3, 4}, true}},
	"1-of-1 key rotation fails: not signed with the new key": {
		{[]int{1}, 1, []int{1}, false}, {[]int{2}, 1, []int{1, 3, 4}, true}},
	"3-of-5 one key rotated fails: not signed with 3 new keys": {
		{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 3, 4, 5}, 3, []int{0, 2, 4}, true}},
	"3-of-5 one key rotated fails: not signed with 3 old keys": {
		{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 3, 4, 5}, 3, []int{0, 4, 5}, true}},
	"1-of-3 threshold raised to 2-of-3 fails: new threshold not reached": {
		{[]int{1, 2, 3}, 1, []int{1}, false}, {[]int{1, 2, 3}, 2, []int{2}, true}},
	"2-of-3 threshold lowered to 1-of-3 fails: old threshold not reached": {
		{[]int{1, 2, 3}, 2, []int{1, 2}, false}, {[]int{1, 2, 3}, 1, []int{1}, true}},
}

// otherRotations are the cases of non_root_rotation_cases there, for author and dispatch at once.
var otherRotations = map[string]step{
	"1-of-1 key rotation":                                         {[]int{2}, 1, []int{2}, false},
	"1-of-1 key rotation, unused signatures":                      {[]int{1}, 1, []int{3, 1, 4}, false},
	"1-of-1 key rotation fails: not signed with the new key":      {[]int{2}, 1, []int{1, 3, 4}, true},
	"3-of-5 one signature wrong: not signed with 3 expected keys": {[]int{0, 1, 3, 4, 5}, 3, []int{0, 2, 4}, true},
	"2-of-5 one signature missing: threshold not reached":         {[]int{0, 1, 3, 4, 5}, 3, []int{0, 4}, true},
	"3-of-5 first combination":                                    {[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false},
	"3-of-5 second combination":                                   {[]int{0, 1, 2, 3, 4}, 3, []int{0, 4, 1}, false},
	"3-of-5 third combination":                                    {[]int{0, 1, 2, 3, 4}, 3, []int{0, 1, 3}, false},
	"3-of-5 fourth combination":                                   {[]int{0, 1, 2, 3, 4}, 3, []int{1, 2, 3}, false},
	"3-of-5 fifth combination":                                    {[]int{0, 1, 2, 3, 4}, 3, []int{2, 3, 4}, false},
}

func some(all []signing.Signer, which []int) []signing.Signer {
	var picked []signing.Signer
	for _, i := range which {
		picked = append(picked, all[i])
	}
	return picked
}

// The next root is version N+1, signed by the threshold of N's root keys and of its own.
func TestA12_ARootIsFollowedByItsSuccessorOnly(t *testing.T) {
	t.Parallel()
	var all []signing.Signer
	for range 10 {
		all = append(all, newSigner(t))
	}
	for _, name := range slices.Sorted(maps.Keys(rootRotations)) {
		t.Run("A12 root: "+name, func(t *testing.T) {
			w := newWorld(t, join)
			var h *host
			for i, s := range rootRotations[name] {
				w.RootDoc.Version, w.RootDoc.Root = int64(i+1), role(s.threshold, some(all, s.keys)...)
				w.Roots[w.RootDoc.Version] = sign(t, &w.RootDoc, some(all, s.sigs)...)
				if h == nil {
					h = joined(t, w)
				}
				if !s.refused {
					h.mustRun(join, "uid-1", 6)
					continue
				}
				h.forget()
				h.refuses(t, signing.ReasonUntrusted, join, "uid-1", 6, full)
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(otherRotations)) {
		t.Run("A12 author and dispatch: "+name, func(t *testing.T) {
			s := otherRotations[name]
			w := newWorld(t, join)
			h := joined(t, w)
			keys := role(s.threshold, some(all, s.keys)...)
			w.NewRoot(func(r *signing.Root) { r.Author, r.Dispatch = keys, keys })
			w.List.Version++
			w.ListEnv = sign(t, &w.List, some(all, s.sigs)...)
			a := h.order(join, "uid-1", 6, func(_ *session, p *plan) { p.By = some(all, s.sigs) })
			if want := signing.ReasonUntrusted; s.refused != (a.Reason == want) || !s.refused && a.Outcome != signing.OutcomeOK {
				t.Errorf("the list: %s %q", a.Outcome, a.Reason)
			}
			// The order alone, under a list that is good.
			w.NewList(func(*signing.Allowlist) {})
			w.ListEnv = sign(t, &w.List, some(all, s.keys)...)
			a = h.order(join, "uid-1", 7, func(_ *session, p *plan) { p.By = some(all, s.sigs) })
			if want := signing.ReasonUntrusted; s.refused != (a.Reason == want) || !s.refused && a.Outcome != signing.OutcomeOK {
				t.Errorf("the order: %s %q", a.Outcome, a.Reason)
			}
		})
	}
}

// Exactly one version on: nothing is skipped, repeated or taken back, whoever signs it.
func TestA12_ARootGoesForwardByOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	for range 4 {
		w.NewRoot(func(*signing.Root) {})
	}
	h := joined(t, w)
	for name, version := range map[string]int64{
		"one skipped": 7, "two skipped": 8, "the last number": math.MaxInt64, "the same version, other bytes": 5, "the one before": 4, "the first": 1,
	} {
		t.Run("A12 "+name, func(t *testing.T) {
			root := w.RootDoc
			root.Version, root.Expires = version, root.Expires.Add(hour)
			h.refuses(t, signing.ReasonRollback, join, "uid-1", 6, func(_ *session, p *plan) {
				p.Roots = [][]byte{sign(t, &root, w.Root...)}
			})
		})
	}
	// A host that is behind walks every step, up to 64 in one session.
	for range 64 {
		w.NewRoot(func(r *signing.Root) {
			w.Root = []signing.Signer{newSigner(t)}
			r.Root = role(1, w.Root...)
		})
	}
	h.mustRun(join, "uid-1", 6)
	s := h.open()
	if s.hello.Root.Version != w.RootDoc.Version {
		t.Errorf("after 64 steps: version %d, want %d", s.hello.Root.Version, w.RootDoc.Version)
	}
	s.frame(wire.Root, w.Roots[1])
	if a := s.answered(); a.Reason != signing.ReasonUntrusted {
		t.Errorf("the first root again: %s %q", a.Outcome, a.Reason)
	}
	s.end()
}

// Whoever once had the author's key may have driven the version of the list to its end; a new author starts anew.
func TestA14_ANewAuthorResetsTheFloor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	w.List.Version = math.MaxInt64
	w.ListEnv = sign(t, &w.List, w.Author)
	h := joined(t, w)
	for name, version := range map[string]int64{"the first": 1, "the last but one": math.MaxInt64 - 1, "the last, other bytes": math.MaxInt64} {
		t.Run("A14 the same author, "+name, func(t *testing.T) {
			list := w.List
			list.Version, list.Expires = version, list.Expires.Add(hour)
			h.refuses(t, signing.ReasonRollback, join, "uid-1", 6, func(_ *session, p *plan) { p.List = sign(t, &list, w.Author) })
		})
	}
	old, stolen := w.ListEnv, w.Author
	w.Author = newSigner(t)
	w.NewRoot(func(r *signing.Root) { r.Author = role(1, w.Author) })
	w.List.Version = 1
	w.ListEnv = sign(t, &w.List, w.Author)
	h.mustRun(join, "uid-1", 6)
	h.forget()
	s := h.open()
	if s.hello.Allowlist.Version != 1 || s.hello.Root.Version != 2 {
		t.Errorf("allowlist %d under root %d", s.hello.Allowlist.Version, s.hello.Root.Version)
	}
	s.end()
	list := w.List
	list.Version = 2
	for name, envelope := range map[string][]byte{"its last list": old, "a list that it signs now": sign(t, &list, stolen)} {
		t.Run("A14 the old author, "+name, func(t *testing.T) {
			h.refuses(t, signing.ReasonUntrusted, join, "uid-1", 7, func(_ *session, p *plan) { p.List = envelope })
		})
	}
	// The root itself cannot be driven anywhere: it goes by one.
	root := w.RootDoc
	root.Version = math.MaxInt64
	t.Run("A14 a root at its end", func(t *testing.T) {
		h.refuses(t, signing.ReasonRollback, join, "uid-1", 7, func(_ *session, p *plan) { p.Roots = [][]byte{sign(t, &root, w.Root...)} })
	})
}
