package vectors

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	rotations    = "tuf-conformance, test_updater_key_rotations.py, root_rotation_cases: "
	nonRotations = "tuf-conformance, test_updater_key_rotations.py, non_root_rotation_cases: "
)

// step is one version of a role: its keys, how many of them must sign, and who signs.
type step struct {
	keys      []int
	threshold int
	sigs      []int
}

func (m *maker) ten() []signing.Signer {
	var all []signing.Signer
	for i := range 10 {
		if i%2 == 0 {
			all = append(all, ed(m.t, fmt.Sprint("key ", i)))
		} else {
			all = append(all, p256(m.t, fmt.Sprint("key ", i)))
		}
	}
	return all
}

func pick(all []signing.Signer, which []int) []signing.Signer {
	var some []signing.Signer
	for _, i := range which {
		some = append(some, all[i])
	}
	return some
}

// chain names files of roots as cases have them.
func chain(envelopes ...[]byte) map[string][]byte {
	files := map[string][]byte{}
	for i, e := range envelopes {
		files[fmt.Sprintf("root.%d.json", i+1)] = e
	}
	return files
}

func (m *maker) rootRotations() {
	all := m.ten()
	five := []int{0, 1, 2, 3, 4}
	fiveNext := []int{0, 1, 3, 4, 5}
	three := []int{1, 2, 3}
	for name, c := range map[string]struct {
		steps   []step
		refused bool
	}{
		"1-of-1-key-rotation":                                             {[]step{{[]int{1}, 1, []int{1}}, {[]int{2}, 1, []int{2, 1}}, {[]int{2}, 1, []int{2}}}, false},
		"1-of-1-key-rotation-unused-signatures":                           {[]step{{[]int{1}, 1, []int{3, 1, 4}}, {[]int{2}, 1, []int{3, 2, 1, 4}}, {[]int{2}, 1, []int{3, 2, 4}}}, false},
		"3-of-5-sign-with-different-keycombos":                            {[]step{{five, 3, []int{0, 2, 4}}, {five, 3, []int{0, 4, 1}}, {five, 3, []int{0, 1, 3}}, {five, 3, []int{0, 1, 3}}}, false},
		"3-of-5-one-key-rotated":                                          {[]step{{five, 3, []int{0, 2, 4}}, {fiveNext, 3, []int{0, 4, 1}}}, false},
		"3-of-5-one-key-rotated-with-intermediate-step":                   {[]step{{five, 3, []int{0, 2, 4}}, {fiveNext, 3, []int{0, 2, 4, 5}}, {fiveNext, 3, []int{0, 4, 5}}}, false},
		"3-of-5-all-keys-rotated-with-intermediate-step":                  {[]step{{five, 3, []int{0, 2, 4}}, {[]int{5, 6, 7, 8, 9}, 3, []int{0, 2, 4, 5, 6, 7}}, {[]int{5, 6, 7, 8, 9}, 3, []int{5, 6, 7}}}, false},
		"1-of-3-threshold-increase-to-2-of-3":                             {[]step{{three, 1, []int{1}}, {three, 2, []int{1, 2}}}, false},
		"2-of-3-threshold-decrease-to-1-of-3":                             {[]step{{three, 2, []int{1, 2}}, {three, 1, []int{1, 2}}, {three, 1, []int{1}}}, false},
		"1-of-2-threshold-increase-to-2-of-2":                             {[]step{{[]int{1}, 1, []int{1}}, {[]int{1, 2}, 2, []int{1, 2}}}, false},
		"1-of-1-key-rotation-fail-not-signed-with-old-key":                {[]step{{[]int{1}, 1, []int{1}}, {[]int{2}, 1, []int{2, 3, 4}}}, true},
		"1-of-1-key-rotation-fail-not-signed-with-new-key":                {[]step{{[]int{1}, 1, []int{1}}, {[]int{2}, 1, []int{1, 3, 4}}}, true},
		"3-of-5-one-key-rotate-fails-not-signed-with-3-new-keys":          {[]step{{five, 3, []int{0, 2, 4}}, {fiveNext, 3, []int{0, 2, 4}}}, true},
		"3-of-5-one-key-rotate-fails-not-signed-with-3-old-keys":          {[]step{{five, 3, []int{0, 2, 4}}, {fiveNext, 3, []int{0, 4, 5}}}, true},
		"1-of-3-threshold-bump-to-2-of-3-fails-new-threshold-not-reached": {[]step{{three, 1, []int{1}}, {three, 2, []int{2}}}, true},
		"2-of-3-threshold-decr-to-1-of-3-fails-old-threshold-not-eached":  {[]step{{three, 2, []int{1, 2}}, {three, 1, []int{1}}}, true},
	} {
		var envelopes [][]byte
		for i, s := range c.steps {
			doc := m.rootDoc
			doc.Version, doc.Root = int64(i+1), role(s.threshold, pick(all, s.keys)...)
			envelopes = append(envelopes, m.signRoot(doc, pick(all, s.sigs)...))
		}
		m.add("root", because(c.refused, signing.ReasonUntrusted), rotations+name, words(name), chain(envelopes...), settings{})
	}
}

func because(refused bool, reason signing.Reason) signing.Reason {
	if refused {
		return reason
	}
	return ""
}

func words(name string) string { return strings.ReplaceAll(name, "-", " ") }

// secondRoot adds a case of a good root 1 and a second one, both signed by the root key.
func (m *maker) secondRoot(want signing.Reason, from, about string, change func(*signing.Root)) {
	doc := m.rootDoc
	doc.Version = 2
	change(&doc)
	m.add("root", want, from, about, chain(m.rootEnvelope, m.signRoot(doc, m.root)), settings{})
}

func (m *maker) rootVersions() {
	set := func(version int64) func(*signing.Root) {
		return func(r *signing.Root) { r.Version, r.Expires = version, r.Expires.Add(time.Hour) }
	}
	m.secondRoot("", "", "the next version", set(2))
	m.secondRoot(signing.ReasonRollback, "A12", "the same version with other bytes", set(1))
	m.secondRoot(signing.ReasonRollback, "A12", "a version is skipped", set(3))
	m.secondRoot(signing.ReasonRollback, "A14", "fast-forward to the last version there is", set(math.MaxInt64))
	m.secondRoot(signing.ReasonMalformed, "A12", "version 0", set(0))
	m.secondRoot(signing.ReasonMalformed, "A12", "a version below 0", set(math.MinInt64+1))
	newer := m.rootDoc
	newer.Version = 5
	m.add("root", signing.ReasonRollback, "A12", "the version before", chain(m.signRoot(newer, m.root), m.rootEnvelope), settings{})
}

func (m *maker) malformedRoots() {
	var many []signing.Signer
	for i := range signing.MaxKeys + 1 {
		many = append(many, ed(m.t, fmt.Sprint("many ", i)))
	}
	bad := func(from, about string, change func(*signing.Root)) {
		m.secondRoot(signing.ReasonMalformed, from, about, change)
	}
	key := func(about string, k signing.Key) {
		bad("B4", about, func(r *signing.Root) { r.Dispatch.Keys = append([]signing.Key{}, append(r.Dispatch.Keys, k)...) })
	}
	bad("A11", "threshold 0", func(r *signing.Root) { r.Root.Threshold = 0 })
	bad("A11", "a threshold below 0", func(r *signing.Root) { r.Author.Threshold = -1 })
	bad("A11", "a threshold above the number of keys", func(r *signing.Root) { r.Dispatch.Threshold = 2 })
	bad("A11", "a threshold above what an envelope can carry", func(r *signing.Root) { r.Author = role(9, many[:9]...) })
	bad("A11", "a role without keys", func(r *signing.Root) { r.Author.Keys = []signing.Key{} })
	bad("A11", "a role that is empty", func(r *signing.Root) { r.Dispatch = signing.RoleKeys{Keys: []signing.Key{}} })
	bad("A11", "more keys than a role may have", func(r *signing.Root) { r.Root = role(1, many...) })
	bad("A10", "a key listed twice", func(r *signing.Root) { r.Root = role(1, m.root, m.nobody, m.root) })
	bad("A10", "a key listed twice to meet threshold 2", func(r *signing.Root) { r.Root = role(2, m.root, m.root) })
	bad("", "a root that never expires", func(r *signing.Root) { r.Expires = time.Time{} })
	bad("", "a root that expired before it was issued", func(r *signing.Root) { r.Expires = r.Issued.Add(-time.Second) })
	ed25519, point := m.dispatch.Public().Public, m.author.Public().Public
	key("an ed25519 key that is too short", signing.Key{Algorithm: signing.AlgorithmEd25519, Public: ed25519[:len(ed25519)-1]})
	key("an ed25519 key of small order", signing.Key{Algorithm: signing.AlgorithmEd25519, Public: append(append([]byte{}, ed25519[:12]...), append([]byte{1}, make([]byte, 31)...)...)})
	key("an ed25519 key named as P-256", signing.Key{Algorithm: signing.AlgorithmECDSAP256, Public: ed25519})
	key("a key of an unknown algorithm", signing.Key{Algorithm: "rsa", Public: ed25519})
	offCurve := append([]byte{}, point...)
	offCurve[len(offCurve)-1] ^= 1
	key("a P-256 key off the curve", signing.Key{Algorithm: signing.AlgorithmECDSAP256, Public: offCurve})
	key("a P-256 key with its point compressed", signing.Key{Algorithm: signing.AlgorithmECDSAP256, Public: append(append([]byte{}, point[:26]...), append([]byte{2 + point[len(point)-1]&1}, point[27:59]...)...)})
}

// rootPayloads are payloads that differ from their canonical encoding.
func (m *maker) rootPayloads() {
	good := string(encode(m.t, &m.rootDoc))
	dispatch := good[strings.Index(good, `"dispatch":`) : len(good)-1]
	for about, payload := range map[string]string{
		"a time with a fraction":      strings.Replace(good, ":00Z", ":00.5Z", 1),
		"a time with an offset":       strings.Replace(good, "T12:00:00Z", "T13:00:00+01:00", 1),
		"a time with zeros for a dot": strings.Replace(good, ":00Z", ":00.000Z", 1),
		"a time that is null":         strings.Replace(good, `"2026-05-01T12:00:00Z"`, "null", 1),
		"keys that are null":          strings.Replace(good, dispatch, `"dispatch":{"keys":null,"threshold":1}`, 1),
		"a role that is missing":      strings.Replace(good, ","+dispatch, "", 1),
		"a role that nobody knows":    strings.Replace(good, dispatch, dispatch+`,"admin":{"keys":[],"threshold":0}`, 1),
		"a payload that is null":      "null",
	} {
		if payload == good {
			m.t.Fatalf("%s: nothing changed", about)
		}
		from := "B2"
		if strings.Contains(about, "role that") {
			from = "A11"
		}
		m.add("root", signing.ReasonMalformed, from, about, chain(m.sealed(signing.TypeRoot, []byte(payload), m.root)), settings{})
	}
}

func (m *maker) rootSignatures() {
	two := m.rootDoc
	two.Root = role(2, m.root, m.author)
	payload := encode(m.t, &two)
	sig, other := signature(m.t, signing.TypeRoot, payload, m.root), signature(m.t, signing.TypeRoot, payload, m.author)
	untrusted := func(from, about string, envelope []byte) {
		m.add("root", signing.ReasonUntrusted, from, about, chain(envelope), settings{})
	}
	m.add("root", "", "", "two of two keys", chain(envelope(signing.TypeRoot, payload, sig, other)), settings{})
	untrusted("A10", "one signature twice for threshold 2", envelope(signing.TypeRoot, payload, sig, sig))
	untrusted("A10", "one key twice under two key ids for threshold 2", withKeyIDs(envelope(signing.TypeRoot, payload, other, negated(m.t, other))))
	untrusted("A12", "a first root below its own threshold", envelope(signing.TypeRoot, payload, sig))
	untrusted("A12", "a first root that its own keys did not sign", m.signRoot(m.rootDoc, m.nobody))
	var eight [][]byte
	for _, s := range m.ten()[:7] {
		eight = append(eight, signature(m.t, signing.TypeRoot, encode(m.t, &m.rootDoc), s))
	}
	eight = append(eight, signature(m.t, signing.TypeRoot, encode(m.t, &m.rootDoc), m.root))
	m.add("root", "", "B1", "eight signatures of which the last one counts", chain(envelope(signing.TypeRoot, encode(m.t, &m.rootDoc), eight...)), settings{})
	m.add("root", signing.ReasonTooLarge, "B1", "nine signatures", chain(envelope(signing.TypeRoot, encode(m.t, &m.rootDoc), append(eight, eight[7])...)), settings{})
	m.add("root", signing.ReasonMalformed, "B3", "garbage of the right type and well signed", chain(m.rootEnvelope, m.sealed(signing.TypeRoot, []byte("\x00\x01\x02"), m.root)), settings{})
}

// withKeyIDs gives each signature of an envelope a key id of its own.
func withKeyIDs(envelope []byte) []byte {
	parts := strings.Split(string(envelope), `{"sig":`)
	for i := range parts[1:] {
		parts[i+1] = fmt.Sprintf(`{"keyid":"key-%d","sig":%s`, i, parts[i+1])
	}
	return []byte(strings.Join(parts, ""))
}

func (m *maker) rootExpiry() {
	at := func(want signing.Reason, from, about string, when time.Time, envelopes ...[]byte) {
		m.add("root", want, from, about, chain(envelopes...), settings{At: &when})
	}
	next := m.rootDoc
	next.Version, next.Issued, next.Expires = 2, expires.Add(time.Hour), expires.AddDate(1, 0, 0)
	second := m.signRoot(next, m.root)
	at("", "A5", "one second before it expires", expires.Add(-time.Second), m.rootEnvelope)
	at(signing.ReasonExpired, "A5", "the second it expires", expires, m.rootEnvelope)
	at(signing.ReasonExpired, "tuf-conformance, test_expiration.py: test_root_expired", "a root that is expired", expires.Add(time.Hour), m.rootEnvelope)
	at("", "A5", "an expired root gives way to the next one", expires.Add(2*time.Hour), m.rootEnvelope, second)
	at("", "A18", "a clock in 1970", time.Unix(0, 0).UTC(), m.rootEnvelope)
	past := m.rootDoc
	past.Version, past.Expires = 2, issued.Add(time.Hour)
	at(signing.ReasonExpired, "A5", "an expired root follows a good one", during, m.rootEnvelope, m.signRoot(past, m.root))
}
