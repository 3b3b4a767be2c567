package signing

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// step is one version of a role's keys: who they are, how many must sign, and who does.
type step struct {
	keys      []int
	threshold int
	sigs      []int
	refused   bool
}

func signersOf(all []Signer, which []int) []Signer {
	var some []Signer
	for _, i := range which {
		some = append(some, all[i])
	}
	return some
}

func tenSigners(t testing.TB) []Signer {
	t.Helper()
	var all []Signer
	for i := range 10 {
		// Both algorithms, mixed.
		if i%2 == 0 {
			all = append(all, ed25519Signer(t, fmt.Sprint("key ", i)))
		} else {
			all = append(all, p256Signer(t, fmt.Sprint("key ", i)))
		}
	}
	return all
}

// The cases of theupdateframework/tuf-conformance:tuf_conformance/test_updater_key_rotations.py
// (root_rotation_cases) under their names there, and after them cases of this format. Its cases of
// rollback, expiry and fast-forward recovery, which a host's memory is needed for, are among the
// vectors of test/vectors.
func TestRootRotation(t *testing.T) {
	all := tenSigners(t)
	each(t, map[string][]step{
		"1-of-1-key-rotation": {
			{[]int{1}, 1, []int{1}, false}, {[]int{2}, 1, []int{2, 1}, false}, {[]int{2}, 1, []int{2}, false}},
		"1-of-1-key-rotation-unused-signatures": {
			{[]int{1}, 1, []int{3, 1, 4}, false}, {[]int{2}, 1, []int{3, 2, 1, 4}, false}, {[]int{2}, 1, []int{3, 2, 4}, false}},
		"3-of-5-sign-with-different-keycombos": {
			{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 2, 3, 4}, 3, []int{0, 4, 1}, false},
			{[]int{0, 1, 2, 3, 4}, 3, []int{0, 1, 3}, false}, {[]int{0, 1, 2, 3, 4}, 3, []int{0, 1, 3}, false}},
		"3-of-5-one-key-rotated": {
			{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 3, 4, 5}, 3, []int{0, 4, 1}, false}},
		"3-of-5-one-key-rotated-with-intermediate-step": {
			{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 3, 4, 5}, 3, []int{0, 2, 4, 5}, false},
			{[]int{0, 1, 3, 4, 5}, 3, []int{0, 4, 5}, false}},
		"3-of-5-all-keys-rotated-with-intermediate-step": {
			{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{5, 6, 7, 8, 9}, 3, []int{0, 2, 4, 5, 6, 7}, false},
			{[]int{5, 6, 7, 8, 9}, 3, []int{5, 6, 7}, false}},
		"1-of-3-threshold-increase-to-2-of-3": {
			{[]int{1, 2, 3}, 1, []int{1}, false}, {[]int{1, 2, 3}, 2, []int{1, 2}, false}},
		"2-of-3-threshold-decrease-to-1-of-3": {
			{[]int{1, 2, 3}, 2, []int{1, 2}, false}, {[]int{1, 2, 3}, 1, []int{1, 2}, false}, {[]int{1, 2, 3}, 1, []int{1}, false}},
		"1-of-2-threshold-increase-to-2-of-2": {
			{[]int{1}, 1, []int{1}, false}, {[]int{1, 2}, 2, []int{1, 2}, false}},
		"1-of-1-key-rotation-fail-not-signed-with-old-key": {
			{[]int{1}, 1, []int{1}, false}, {[]int{2}, 1, []int{2, 3, 4}, true}},
		"1-of-1-key-rotation-fail-not-signed-with-new-key": {
			{[]int{1}, 1, []int{1}, false}, {[]int{2}, 1, []int{1, 3, 4}, true}},
		"3-of-5-one-key-rotate-fails-not-signed-with-3-new-keys": {
			{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 3, 4, 5}, 3, []int{0, 2, 4}, true}},
		"3-of-5-one-key-rotate-fails-not-signed-with-3-old-keys": {
			{[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false}, {[]int{0, 1, 3, 4, 5}, 3, []int{0, 4, 5}, true}},
		"1-of-3-threshold-bump-to-2-of-3-fails-new-threshold-not-reached": {
			{[]int{1, 2, 3}, 1, []int{1}, false}, {[]int{1, 2, 3}, 2, []int{2}, true}},
		"2-of-3-threshold-decr-to-1-of-3-fails-old-threshold-not-eached": {
			{[]int{1, 2, 3}, 2, []int{1, 2}, false}, {[]int{1, 2, 3}, 1, []int{1}, true}},

		"all four keys replaced at once, with eight signatures": {
			{[]int{0, 1, 2, 3}, 4, []int{0, 1, 2, 3}, false}, {[]int{4, 5, 6, 7}, 4, []int{4, 5, 6, 7, 0, 1, 2, 3}, false}},
		"a first root that its own keys did not sign": {{[]int{1}, 1, []int{2}, true}},
		"a first root below its own threshold":        {{[]int{1, 2}, 2, []int{1}, true}},
	}, func(t *testing.T, steps []step) {
		var current *Root
		for i, s := range steps {
			p := newPool(t)
			p.rootDoc.Version = int64(i + 1)
			p.rootDoc.Root = role(s.threshold, signersOf(all, s.keys)...)
			envelope := sign(t, p.rootDoc, signersOf(all, s.sigs)...)
			var next *Root
			var err error
			if current == nil {
				next, err = OpenFirstRoot(envelope)
			} else {
				next, err = NextRoot(current, envelope)
			}
			if s.refused {
				wantReason(t, err, ReasonUntrusted)
				continue
			}
			if err != nil {
				t.Fatalf("version %d: %v", i+1, err)
			}
			current = next
		}
	})
}

// The cases of non_root_rotation_cases and test_keys.py there, for the allowlist and for the order.
func TestOtherRolesFollowTheRoot(t *testing.T) {
	all := tenSigners(t)
	each(t, map[string]step{
		"1-of-1-key-rotation":                                             {[]int{2}, 1, []int{2}, false},
		"1-of-1-key-rotation-unused-signatures":                           {[]int{1}, 1, []int{3, 1, 4}, false},
		"1-of-1-key-rotation-fail-not-signed-with-new-key":                {[]int{2}, 1, []int{1, 3, 4}, true},
		"3-of-5-one-key-signature-wrong-not-signed-with-3-expected-keys":  {[]int{0, 1, 3, 4, 5}, 3, []int{0, 2, 4}, true},
		"2-of-5-one-key-signature-mising-threshold-not-reached":           {[]int{0, 1, 3, 4, 5}, 3, []int{0, 4}, true},
		"3-of-5-sign-first-combo":                                         {[]int{0, 1, 2, 3, 4}, 3, []int{0, 2, 4}, false},
		"3-of-5-sign-second-combo":                                        {[]int{0, 1, 2, 3, 4}, 3, []int{0, 4, 1}, false},
		"3-of-5-sign-third-combo":                                         {[]int{0, 1, 2, 3, 4}, 3, []int{0, 1, 3}, false},
		"3-of-5-sign-fourth-combo":                                        {[]int{0, 1, 2, 3, 4}, 3, []int{1, 2, 3}, false},
		"3-of-5-sign-fifth-combo":                                         {[]int{0, 1, 2, 3, 4}, 3, []int{2, 3, 4}, false},
		"test_root_has_keys_but_not_snapshot: signed by the keys of root": {[]int{1}, 1, []int{9}, true},
		"test_root_has_keys_but_not_snapshot: five of five are needed":    {[]int{0, 1, 2, 3, 4}, 5, []int{0, 1, 2, 3}, true},
	}, func(t *testing.T, s step) {
		p := newPool(t)
		p.rootDoc.Root = role(1, all[9])
		p.rootDoc.Author = role(s.threshold, signersOf(all, s.keys)...)
		p.rootDoc.Dispatch = p.rootDoc.Author
		want := Reason("")
		if s.refused {
			want = ReasonUntrusted
		}
		_, err := OpenAllowlist(sign(t, p.allowlist, signersOf(all, s.sigs)...), p.rootDoc)
		wantReason(t, err, want)
		_, err = OpenOrder(sign(t, p.order, signersOf(all, s.sigs)...), p.rootDoc)
		wantReason(t, err, want)
	})
}

// After test_rollback.py of the same suite, for the root: the rest are floors, which hosts keep.
func TestRootGoesForwardByOne(t *testing.T) {
	p := newPool(t)
	p.rootDoc.Version = 5
	current, err := OpenFirstRoot(sign(t, p.rootDoc, p.root))
	if err != nil {
		t.Fatal(err)
	}
	each(t, map[string]struct {
		version int64
		want    Reason
	}{
		"the next":                          {6, ""},
		"the same again":                    {5, ReasonRollback},
		"the same version, other bytes":     {5, ReasonRollback},
		"the one before":                    {4, ReasonRollback},
		"the first":                         {1, ReasonRollback},
		"one skipped":                       {7, ReasonRollback},
		"fast-forward to the last number":   {math.MaxInt64, ReasonRollback},
		"no version":                        {0, ReasonMalformed},
		"a version below zero":              {-1, ReasonMalformed},
		"the smallest number, which wraps":  {math.MinInt64, ReasonMalformed},
		"the smallest number but a few":     {math.MinInt64 + 5, ReasonMalformed},
		"the version after a wrapping five": {math.MinInt64 + 6, ReasonMalformed},
	}, func(t *testing.T, c struct {
		version int64
		want    Reason
	}) {
		next := *p.rootDoc
		next.Version = c.version
		if c.want == ReasonRollback {
			next.Expires = next.Expires.Add(time.Hour)
		}
		payload, err := encode(&next)
		if err != nil {
			t.Fatal(err)
		}
		_, err = NextRoot(current, signPayload(t, TypeRoot, payload, p.root))
		wantReason(t, err, c.want)
	})
}

func TestAnExpiredRootIsStillFollowed(t *testing.T) {
	p := newPool(t)
	current := *p.rootDoc
	current.Issued, current.Expires = issued.Add(-2*time.Hour), issued.Add(-time.Hour)
	p.rootDoc.Version = 2
	if _, err := NextRoot(&current, sign(t, p.rootDoc, p.root)); err != nil {
		t.Error(err)
	}
}

// The same key must not count twice, however it is presented (GHSA-3633-5h82-39pq of go-tuf).
func TestOneKeyCountsOnce(t *testing.T) {
	p := newPool(t)
	a, b := p256Signer(t, "a"), ed25519Signer(t, "b")
	p.rootDoc.Root = role(2, a, b)
	payload, err := encode(p.rootDoc)
	if err != nil {
		t.Fatal(err)
	}
	o := &opened{payloadType: TypeRoot, payload: payload}
	var sigs []signature
	for i := range 8 {
		// ECDSA signs differently each time.
		sig, err := a.Sign(context.Background(), o.pae())
		if err != nil {
			t.Fatal(err)
		}
		sigs = append(sigs, signature{keyID: fmt.Sprint("key ", i), sig: sig})
	}
	o.signatures = sigs
	wantReason(t, o.verify(p.rootDoc.Root), ReasonUntrusted)

	t.Run("also when a caller's role lists it twice", func(t *testing.T) {
		wantReason(t, o.verify(role(2, a, a)), ReasonUntrusted)
		wantReason(t, o.verify(role(2, a, a, a, b)), ReasonUntrusted)
	})
	t.Run("and two keys are two", func(t *testing.T) {
		sig, err := b.Sign(context.Background(), o.pae())
		if err != nil {
			t.Fatal(err)
		}
		o.signatures = append(o.signatures[:7], signature{sig: sig})
		wantReason(t, o.verify(p.rootDoc.Root), "")
	})
}

func TestMalformedRoots(t *testing.T) {
	a, b := ed25519Signer(t, "a"), ed25519Signer(t, "b")
	var many []Signer
	for i := range MaxKeys + 1 {
		many = append(many, ed25519Signer(t, fmt.Sprint("many ", i)))
	}
	each(t, map[string]func(r *Root){
		"threshold 0":       func(r *Root) { r.Root.Threshold = 0 },
		"threshold below 0": func(r *Root) { r.Author.Threshold = -1 },
		"test_snapshot_threshold: threshold above the number of keys": func(r *Root) { r.Dispatch.Threshold = 2 },
		"threshold above what an envelope holds":                      func(r *Root) { r.Author = role(MaxSignatures+1, many[:MaxSignatures+1]...) },
		"a role without keys":                                         func(r *Root) { r.Author.Keys = nil },
		"a role that is missing":                                      func(r *Root) { r.Dispatch = RoleKeys{} },
		"a key twice":                                                 func(r *Root) { r.Root = role(1, a, b, a) },
		"test_duplicate_keys_root: a key twice, threshold 2":          func(r *Root) { r.Root = role(2, a, a) },
		"too many keys":                                               func(r *Root) { r.Root = role(1, many...) },
		"version 0":                                                   func(r *Root) { r.Version = 0 },
		"never issued":                                                func(r *Root) { r.Issued = time.Time{} },
		"never expires":                                               func(r *Root) { r.Expires = time.Time{} },
		"expired before it was issued":                                func(r *Root) { r.Expires = r.Issued.Add(-time.Second) },
		"expires in the year 10000":                                   func(r *Root) { r.Expires = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	}, func(t *testing.T, spoil func(*Root)) {
		p := newPool(t)
		old := *p.rootDoc
		bad := *p.rootDoc
		bad.Version = 2
		spoil(&bad)
		_, err := Sign(context.Background(), &bad, p.root)
		wantReason(t, err, ReasonMalformed)

		bad.normalise()
		payload, err := encode(&bad)
		if err != nil {
			return // Not even the bytes can be made.
		}
		envelope := signPayload(t, TypeRoot, payload, p.root)
		_, err = NextRoot(&old, envelope)
		wantReason(t, err, ReasonMalformed)
		_, err = OpenFirstRoot(envelope)
		wantReason(t, err, ReasonMalformed)
	})
}

func TestOpeningWithoutTrust(t *testing.T) {
	p := newPool(t)
	s := p.slots(t)
	for _, root := range []*Root{nil, {}, {Author: RoleKeys{Threshold: 0, Keys: p.rootDoc.Author.Keys}, Dispatch: RoleKeys{Threshold: -1, Keys: p.rootDoc.Dispatch.Keys}, Root: RoleKeys{Threshold: 1}}} {
		_, err := OpenAllowlist(s["allowlist"].envelope, root)
		wantReason(t, err, ReasonUntrusted)
		_, err = OpenOrder(s["order"].envelope, root)
		wantReason(t, err, ReasonUntrusted)
		_, err = NextRoot(root, s["root"].envelope)
		wantReason(t, err, ReasonUntrusted)
	}
	_, err := OpenHello(s["hello"].envelope, Key{})
	wantReason(t, err, ReasonUntrusted)
	_, err = OpenReceipt(s["receipt"].envelope, p.author.Public())
	wantReason(t, err, ReasonUntrusted)
}

func TestCheckExpiry(t *testing.T) {
	at := func(h int) time.Time { return issued.Add(time.Duration(h) * time.Hour) }
	each(t, map[string]struct {
		expires time.Time
		floors  []time.Time
		want    Reason
	}{
		"before":                                  {at(2), []time.Time{at(1)}, ""},
		"one second before":                       {at(2), []time.Time{at(2).Add(-time.Second)}, ""},
		"at the very second":                      {at(2), []time.Time{at(2)}, ReasonExpired},
		"after":                                   {at(2), []time.Time{at(3)}, ReasonExpired},
		"clock at 1970, an author signed later":   {at(2), []time.Time{time.Unix(0, 0), at(3)}, ReasonExpired},
		"clock at 1970, nothing is newer":         {at(2), []time.Time{time.Unix(0, 0), at(1)}, ""},
		"the latest counts, wherever it stands":   {at(2), []time.Time{at(3), time.Unix(0, 0), {}}, ReasonExpired},
		"beyond 2038":                             {time.Date(2106, 2, 8, 0, 0, 0, 0, time.UTC), []time.Time{time.Date(2106, 2, 7, 6, 28, 16, 0, time.UTC)}, ""},
		"the same instant in another zone":        {at(2), []time.Time{at(2).In(time.FixedZone("", 7200))}, ReasonExpired},
		"a document that never said when":         {time.Time{}, []time.Time{at(0)}, ReasonExpired},
		"no time at all":                          {at(2), nil, ReasonExpired},
		"only times that nobody set":              {time.Time{}, []time.Time{{}}, ReasonExpired},
		"clock far in the future, refused safely": {at(2), []time.Time{time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC)}, ReasonExpired},
	}, func(t *testing.T, c struct {
		expires time.Time
		floors  []time.Time
		want    Reason
	}) {
		wantReason(t, CheckExpiry(c.expires, c.floors...), c.want)
	})
}

func TestAddSignature(t *testing.T) {
	ctx := context.Background()
	all := tenSigners(t)
	p := newPool(t)
	p.rootDoc.Root = role(2, all[0], all[1])
	envelope := sign(t, p.rootDoc, all[0])
	if _, err := OpenFirstRoot(envelope); ReasonOf(err) != ReasonUntrusted {
		t.Fatalf("one of two was enough: %v", err)
	}
	second, err := AddSignature(ctx, envelope, all[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFirstRoot(second); err != nil {
		t.Fatal(err)
	}
	again, err := AddSignature(ctx, second, all[1])
	if err != nil || string(again) != string(second) {
		t.Errorf("signing again changed the envelope: %v", err)
	}
	in, err := Inspect(second, all[2].Public())
	if err != nil {
		t.Fatal(err)
	}
	if in.Type != TypeRoot || in.Signatures != 2 || len(in.SignedBy) != 2 || string(in.Payload) != string(payloadOf(t, envelope)) {
		t.Errorf("Inspect says %+v", in)
	}
	full := second
	for _, s := range all[2:8] {
		if full, err = AddSignature(ctx, full, s); err != nil {
			t.Fatal(err)
		}
	}
	_, err = AddSignature(ctx, full, all[8])
	wantReason(t, err, ReasonTooLarge)
	_, err = AddSignature(ctx, sign(t, p.order, p.dispatch), all[1])
	wantReason(t, err, ReasonWrongType)
	_, err = AddSignature(ctx, signPayload(t, TypeRoot, []byte("{}"), all[0]), all[1])
	wantReason(t, err, ReasonMalformed)
	_, err = AddSignature(ctx, nil, all[1])
	wantReason(t, err, ReasonMalformed)
}

func TestMerge(t *testing.T) {
	ctx := context.Background()
	all := append(tenSigners(t), p256Signer(t, "merge"))
	one, two, last := all[0], all[1], all[10]
	p := newPool(t)
	p.rootDoc.Root = role(2, one, two)
	start := sign(t, p.rootDoc, one)
	add := func(envelope []byte, signers ...Signer) []byte {
		t.Helper()
		for _, s := range signers {
			var err error
			if envelope, err = AddSignature(ctx, envelope, s); err != nil {
				t.Fatal(err)
			}
		}
		return envelope
	}
	keys := []Key{one.Public(), two.Public(), last.Public()}

	apart := add(sign(t, p.rootDoc, last), two) // its first signer never saw start
	merged, err := Merge(start, apart, keys...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFirstRoot(merged); err != nil {
		t.Error(err)
	}
	in, err := Inspect(merged, keys...)
	if err != nil || in.Signatures != 3 || len(in.SignedBy) != 3 {
		t.Errorf("merged carries %+v, %v", in, err)
	}
	// An ECDSA key signs differently each time: that is no second signature.
	for name, other := range map[string][]byte{
		"the same copy": apart, "the first": start, "itself": merged, "a key that signed twice": sign(t, p.rootDoc, last),
	} {
		again, err := Merge(merged, other, keys...)
		if err != nil || !bytes.Equal(again, merged) {
			t.Errorf("merging %s changed what was merged: %v", name, err)
		}
	}

	changed := *p.rootDoc
	changed.Expires = changed.Expires.Add(time.Second)
	for _, c := range []struct {
		name            string
		envelope, other []byte
		want            Reason
	}{
		{"one second more", start, sign(t, &changed, two), ReasonUntrusted},
		{"a key that is not listed", start, add(apart, all[3]), ReasonUntrusted},
		{"another type", start, sign(t, p.allowlist, two), ReasonWrongType},
		{"a document of a session", sign(t, p.order, p.dispatch), sign(t, p.order, two), ReasonWrongType},
		{"a payload that no signer would make", signPayload(t, TypeRoot, []byte("{}"), one), signPayload(t, TypeRoot, []byte("{}"), two), ReasonMalformed},
		{"nothing", start, nil, ReasonMalformed},
		{"onto nothing", nil, start, ReasonMalformed},
		{"more than an envelope takes", add(start, all[2:9]...), sign(t, p.rootDoc, two), ReasonTooLarge},
	} {
		_, err := Merge(c.envelope, c.other, keys...)
		if ReasonOf(err) != c.want {
			t.Errorf("%s: %v, not %s", c.name, err, c.want)
		}
	}
}

func TestSignLeavesTheDocumentAlone(t *testing.T) {
	p := newPool(t)
	zone := time.FixedZone("", 3600)
	p.hello.Clock = p.hello.Clock.In(zone).Add(300 * time.Millisecond)
	before := slices.Clone(p.hello.Findings)
	clock := p.hello.Clock
	envelope := sign(t, p.hello, p.host)
	if !slices.Equal(before, p.hello.Findings) || p.hello.Clock != clock {
		t.Error("the caller's document changed")
	}
	got, err := OpenHello(envelope, p.host.Public())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(got.Findings) || got.Clock.Location() != time.UTC || got.Clock.Nanosecond() != 0 {
		t.Errorf("not canonical: %v %v", got.Findings, got.Clock)
	}
}
