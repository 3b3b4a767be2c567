package vectors

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	rollbacks   = "tuf-conformance, test_rollback.py: "
	keyCases    = "tuf-conformance, test_keys.py: "
	basics      = "tuf-conformance, test_basic.py: "
	expirations = "tuf-conformance, test_expiration.py: "
)

func (m *maker) listRotations() {
	all := m.ten()
	five, fiveNext := []int{0, 1, 2, 3, 4}, []int{0, 1, 3, 4, 5}
	for name, c := range map[string]struct {
		step
		refused bool
	}{
		"1-of-1-key-rotation":                                            {step{[]int{2}, 1, []int{2}}, false},
		"1-of-1-key-rotation-unused-signatures":                          {step{[]int{1}, 1, []int{3, 1, 4}}, false},
		"1-of-1-key-rotation-fail-not-signed-with-new-key":               {step{[]int{2}, 1, []int{1, 3, 4}}, true},
		"3-of-5-one-key-signature-wrong-not-signed-with-3-expected-keys": {step{fiveNext, 3, []int{0, 2, 4}}, true},
		"2-of-5-one-key-signature-mising-threshold-not-reached":          {step{fiveNext, 3, []int{0, 4}}, true},
		"3-of-5-sign-first-combo":                                        {step{five, 3, []int{0, 2, 4}}, false},
		"3-of-5-sign-second-combo":                                       {step{five, 3, []int{0, 4, 1}}, false},
		"3-of-5-sign-third-combo":                                        {step{five, 3, []int{0, 1, 3}}, false},
		"3-of-5-sign-fourth-combo":                                       {step{five, 3, []int{1, 2, 3}}, false},
		"3-of-5-sign-fifth-combo":                                        {step{five, 3, []int{2, 3, 4}}, false},
	} {
		m.underAuthors(because(c.refused, signing.ReasonUntrusted), nonRotations+name, words(name),
			role(c.threshold, pick(all, c.keys)...), pick(all, c.sigs)...)
	}
	m.underAuthors(signing.ReasonUntrusted, keyCases+"test_root_has_keys_but_not_snapshot", "five keys are listed and needed, four have signed",
		role(5, all[:5]...), all[:4]...)
	m.underAuthors(signing.ReasonMalformed, keyCases+"test_snapshot_threshold", "a threshold of six for five keys", role(6, all[:5]...), all[:5]...)
	m.underAuthors(signing.ReasonMalformed, keyCases+"test_duplicate_keys_root", "one key nine times, threshold six",
		role(6, m.nobody, all[0], all[0], all[0], all[0], all[0], all[0], all[0], all[0], all[0]), m.nobody, all[0])
}

// underAuthors adds a case of the good allowlist under a root with these authors.
func (m *maker) underAuthors(want signing.Reason, from, about string, authors signing.RoleKeys, signers ...signing.Signer) {
	doc := m.rootDoc
	doc.Author = authors
	files := chain(m.signRoot(doc, m.root))
	files["allowlist.json"] = m.signList(m.list, signers...)
	m.add("allowlist", want, from, about, files, settings{})
}

func (m *maker) lists() {
	add := func(want signing.Reason, from, about string, envelope []byte, set settings) {
		m.add("allowlist", want, from, about, map[string][]byte{"allowlist.json": envelope}, set)
	}
	good := m.listEnvelope
	add("", "", "the list itself", good, settings{})
	empty := m.list
	empty.Scripts = []signing.AllowedScript{}
	add("", "", "a list that allows nothing", m.signList(empty, m.author), settings{})
	add(signing.ReasonUntrusted, "A1", "signed by the dispatch key", m.signList(m.list, m.dispatch), settings{})
	add(signing.ReasonUntrusted, "A1", "signed by the root key", m.signList(m.list, m.root), settings{})
	add(signing.ReasonUntrusted, "A1", "signed by nobody that is known", m.signList(m.list, m.nobody), settings{})
	add("", "A4", "the version of the floor", good, settings{Floor: 3})
	add("", "A4", "a version above the floor", good, settings{Floor: 2})
	add(signing.ReasonRollback, "A4", "a version below the floor", good, settings{Floor: 4})
	add(signing.ReasonRollback, "A14", "a floor at the last version there is", good, settings{Floor: math.MaxInt64})
	at := func(when time.Time) settings { return settings{At: &when} }
	add("", "A5", "one second before the list expires", good, at(m.list.Expires.Add(-time.Second)))
	add(signing.ReasonExpired, "A5", "the second the list expires", good, at(m.list.Expires))
	add(signing.ReasonExpired, expirations+"test_targets_expired", "a list that is expired", good, at(m.list.Expires.Add(time.Hour)))
	long := m.list
	long.Expires = expires.AddDate(1, 0, 0)
	add(signing.ReasonExpired, "A5", "the root is expired and the list is not", m.signList(long, m.author), at(expires.Add(time.Hour)))
	rotated := m.rootDoc
	rotated.Version, rotated.Author = 2, role(1, m.nobody)
	files := chain(m.rootEnvelope, m.signRoot(rotated, m.root))
	files["allowlist.json"] = good
	m.add("allowlist", signing.ReasonUntrusted, "A12", "signed by an author that the next root dropped", files, settings{})
	payload := string(encode(m.t, &m.list))
	add(signing.ReasonMalformed, "B2", "an unknown field", m.sealed(signing.TypeAllowlist, []byte(strings.Replace(payload, "{", `{"x":1,`, 1)), m.author), settings{})
	add(signing.ReasonMalformed, "B2", "scripts that are null", m.sealed(signing.TypeAllowlist, []byte(strings.Replace(payload, payload[strings.Index(payload, `"scripts":`):len(payload)-1], `"scripts":null`, 1)), m.author), settings{})
}

func (m *maker) malformedLists() {
	bad := func(about string, change func(*signing.Allowlist)) {
		list := m.list
		list.Scripts = append([]signing.AllowedScript{}, m.list.Scripts...)
		change(&list)
		m.add("allowlist", signing.ReasonMalformed, "", about, map[string][]byte{"allowlist.json": m.signList(list, m.author)}, settings{})
	}
	param := func(about string, p signing.Parameter) {
		bad(about, func(a *signing.Allowlist) {
			a.Scripts[1].Parameters = append(append([]signing.Parameter{}, a.Scripts[1].Parameters...), p)
		})
	}
	bad("a script listed twice", func(a *signing.Allowlist) { a.Scripts = append(a.Scripts, a.Scripts[0]) })
	bad("an unknown phase", func(a *signing.Allowlist) { a.Scripts[0].Phase = "reboot" })
	bad("a script without a digest", func(a *signing.Allowlist) { a.Scripts[0].Digest = "" })
	bad("a grace for join", func(a *signing.Allowlist) { a.Scripts[1].GraceSeconds = 60 })
	bad("a minShim that is no version", func(a *signing.Allowlist) { a.MinShim = "new one" })
	param("a parameter named PATH", signing.Parameter{Name: "PATH", Type: signing.ParamString})
	param("a parameter of an unknown type", signing.Parameter{Name: "KPSSH_VAR_X", Type: "json"})
	param("a parameter listed twice", signing.Parameter{Name: "KPSSH_NODE_NAME", Type: signing.ParamString})
	param("a pattern that leaves the group that anchors it", signing.Parameter{Name: "KPSSH_VAR_X", Type: signing.ParamString, Pattern: "a)|(.*"})
	param("a pattern that does not compile", signing.Parameter{Name: "KPSSH_VAR_X", Type: signing.ParamString, Pattern: "("})
	param("a pin that does not fit its type", signing.Parameter{Name: "KPSSH_VAR_X", Type: signing.ParamEndpoint, Pins: []string{"https://Example.com"}})
	param("a secret with a pin", signing.Parameter{Name: "KPSSH_VAR_X", Type: signing.ParamString, Secret: true, Pins: []string{"hunter2"}})
}

// walk adds a case of documents in the order in which they come.
func (m *maker) walk(want signing.Reason, from, about string, envelopes ...[]byte) {
	files := map[string][]byte{}
	for i, e := range envelopes {
		kind := "root"
		if strings.Contains(string(e), signing.TypeAllowlist) {
			kind = "allowlist"
		}
		files[fmt.Sprintf("%02d.%s.json", i+1, kind)] = e
	}
	m.add("walk", want, from, about, files, settings{})
}

func (m *maker) walks() {
	second := p256(m.t, "second author")
	list := func(version int64, signers ...signing.Signer) []byte {
		doc := m.list
		doc.Version = version
		return m.signList(doc, signers...)
	}
	root := func(version int64, authors signing.RoleKeys) []byte {
		doc := m.rootDoc
		doc.Version, doc.Author = version, authors
		return m.signRoot(doc, m.root)
	}
	first, one, other := m.rootEnvelope, role(1, m.author), role(1, second)
	changed := m.list
	changed.Scripts = changed.Scripts[:1]
	m.walk("", "", "a list and a newer one", first, list(1, m.author), list(2, m.author))
	m.walk("", "", "a list that skips versions", first, list(1, m.author), list(9, m.author))
	m.walk("", "", "the same list again", first, list(3, m.author), list(3, m.author))
	m.walk("", "", "the same root again", first, root(2, one), root(2, one))
	m.walk(signing.ReasonRollback, rollbacks+"test_new_timestamp_version_rollback", "a list and an older one", first, list(2, m.author), list(1, m.author))
	m.walk(signing.ReasonRollback, rollbacks+"test_targets_rollback", "two newer lists and then the first again", first, list(1, m.author), list(2, m.author), list(3, m.author), list(1, m.author))
	m.walk(signing.ReasonRollback, basics+"test_timestamp_eq_versions_check", "another list of the same version", first, list(3, m.author), m.signList(changed, m.author))
	m.walk("", rollbacks+"test_new_timestamp_fast_forward_recovery", "version 100 is forgotten with its author's key", first, list(100, m.author), root(2, other), list(1, second))
	m.walk("", rollbacks+"test_new_snapshot_fast_forward_recovery", "version 99999 is forgotten with its author's key", first, list(99999, m.author), root(2, other), list(1, second))
	m.walk("", "A14", "the last version there is is forgotten with its author's key", first, list(math.MaxInt64, m.author), root(2, other), list(1, second))
	m.walk(signing.ReasonRollback, "A14", "the last version there is, and the same author", first, list(math.MaxInt64, m.author), root(2, one), list(1, m.author))
	m.walk("", "A14", "an author more resets the floor", first, list(5, m.author), root(2, role(1, m.author, second)), list(1, second))
	m.walk(signing.ReasonRollback, "A14", "another dispatch key does not reset the floor", first, list(5, m.author), m.otherDispatch(2), list(4, m.author))
	m.walk(signing.ReasonRollback, "A14", "authors in another order are the same authors", root(1, role(1, m.author, second)), list(5, m.author), root(2, role(1, second, m.author)), list(4, m.author))
	m.walk(signing.ReasonRollback, "A14", "authors who went and came back find their floor", first, list(5, m.author), root(2, other), root(3, one), list(4, m.author))
	m.walk(signing.ReasonRollback, "A14", "a higher threshold does not reset the floor", root(1, role(1, m.author, second)), list(5, m.author), root(2, role(2, m.author, second)), list(4, m.author, second))
	m.walk("", "A14", "a higher threshold asks for one signature more", root(1, role(1, m.author, second)), list(5, m.author), root(2, role(2, m.author, second)), list(5, m.author, second))
	m.walk(signing.ReasonUntrusted, "A12", "the list of an author who is none any more", first, root(2, other), list(9, m.author))
	m.walk(signing.ReasonUntrusted, "A12", "the list of an author who is none yet", first, list(1, second), root(2, other))
	m.walk("", "", "three rotations at once, then the list", first, root(2, role(1, m.author, second)), root(3, other), root(4, role(1, second, m.nobody)), list(3, second))
	m.walk(signing.ReasonRollback, "A12", "a rotation is left out", first, root(3, other))
	past := m.rootDoc
	past.Expires = issued.Add(time.Hour)
	m.walk("", expirations+"test_expired_metadata", "an expired root and list give way to newer ones", m.signRoot(past, m.root), m.expiredList(1), root(2, one), list(2, m.author))
}

func (m *maker) otherDispatch(version int64) []byte {
	doc := m.rootDoc
	doc.Version, doc.Dispatch = version, role(1, m.nobody)
	return m.signRoot(doc, m.root)
}

func (m *maker) expiredList(version int64) []byte {
	doc := m.list
	doc.Version, doc.Expires = version, issued.Add(time.Hour)
	return m.signList(doc, m.author)
}
