package audit_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/audit"
	"github.com/kpssh/karpenter-provider-ssh/shim/shimtest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

var (
	issued = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now    = issued.Add(48 * time.Hour)
)

// world has all keys, so that a test can play the controller, the hosts and the forger.
type world struct {
	t        *testing.T
	root     signing.Signer
	author   signing.Signer
	dispatch signing.Signer
	hosts    map[string]signing.Signer // receipt keys by name; the id is "id-" and the name
	doc      signing.Root
	chain    [][]byte
	seq      uint64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, root: shimtest.NewSigner(t), author: shimtest.NewSigner(t), dispatch: shimtest.NewSigner(t),
		hosts: map[string]signing.Signer{"host-a": shimtest.NewSigner(t), "host-b": shimtest.NewSigner(t)},
	}
	w.doc = signing.Root{Issued: issued, Expires: issued.Add(365 * 24 * time.Hour), Root: only(w.root), Author: only(w.author), Dispatch: only(w.dispatch)}
	w.nextRoot(func(*signing.Root) {})
	return w
}

func only(signers ...signing.Signer) signing.RoleKeys {
	role := signing.RoleKeys{Threshold: 1}
	for _, s := range signers {
		role.Keys = append(role.Keys, s.Public())
	}
	return role
}

func sign[T signing.Document](t *testing.T, doc *T, by signing.Signer) []byte {
	t.Helper()
	envelope, err := signing.Sign(context.Background(), doc, by)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

func (w *world) nextRoot(change func(*signing.Root)) {
	w.doc.Version++
	change(&w.doc)
	w.chain = append(w.chain, sign(w.t, &w.doc, w.root))
}

// list is an allowlist that holds the join script of profile p in one version.
func (w *world) list(version string) []byte {
	return sign(w.t, &signing.Allowlist{
		Version: 1, Issued: issued, Expires: issued.Add(24 * time.Hour),
		Scripts: []signing.AllowedScript{{Profile: "p", Version: version, Phase: signing.PhaseJoin, Digest: script}},
	}, w.author)
}

func (w *world) trust() *audit.Trust {
	w.t.Helper()
	trust, err := audit.NewTrust(w.chain)
	if err != nil {
		w.t.Fatal(err)
	}
	for name, key := range w.hosts {
		if err := trust.AddHosts(manifest(name, "id-"+name, key.Public())); err != nil {
			w.t.Fatal(err)
		}
	}
	return trust
}

func manifest(name, id string, key signing.Key) []byte {
	return fmt.Appendf(nil, `apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHHost
metadata: {name: %s}
spec:
  address: 10.0.0.1
  sshKeySecretRef: {name: x}
  shim: {hostID: %s, receiptKey: "%s"}
`, name, id, key.String())
}

var (
	script     = signing.Digest([]byte("script"))
	parameters = signing.Digest([]byte("{}"))
)

// pair is an order and its receipt, before they are signed.
type pair struct {
	order   signing.Order
	receipt signing.Receipt
}

// run makes a run of a phase on a host that went well, and bends it.
func (w *world) run(host string, phase signing.Phase, bend ...func(*pair)) *wire.Record {
	w.t.Helper()
	p := &pair{order: signing.Order{
		HostID: "id-" + host, Challenge: make([]byte, signing.ChallengeSize), Allowlist: signing.Digest([]byte("list")),
		Profile: "p", Version: "1", Phase: phase, Script: script, Claim: "uid-1", Fence: 3, Parameters: parameters, TimeoutSeconds: 60,
	}}
	_, _ = rand.Read(p.order.Challenge)
	o := &p.order
	p.receipt = signing.Receipt{
		HostID: o.HostID, BootID: "boot", Challenge: o.Challenge, Claim: o.Claim, Fence: o.Fence, Profile: o.Profile, Version: o.Version,
		Phase: o.Phase, Script: o.Script, Parameters: o.Parameters, Outcome: signing.OutcomeOK,
		Started: issued.Add(24 * time.Hour), Finished: issued.Add(24*time.Hour + time.Second), DurationMillis: 1000,
	}
	order := sign(w.t, &p.order, w.dispatch)
	digest, err := signing.PayloadDigest(order)
	if err != nil {
		w.t.Fatal(err)
	}
	p.receipt.Order = digest
	for _, b := range bend {
		b(p)
	}
	w.seq++
	r := &wire.Record{
		Source: wire.SourceController, Stream: "STREAM", Seq: w.seq, Time: p.receipt.Finished.Add(time.Second), Mode: wire.ModeVerified,
		Host: host, HostID: o.HostID, NodeClaim: "pool-1", Claim: o.Claim, Profile: o.Profile, Version: o.Version, Phase: string(o.Phase),
		Script: o.Script, Parameters: o.Parameters, OrderDigest: digest, DispatchKey: w.dispatch.Public().ID(),
		Order: order, Receipt: sign(w.t, &p.receipt, w.hosts[host]),
	}
	r.Outcome, r.Reason = string(p.receipt.Outcome), string(p.receipt.Reason)
	r.ExitCode, r.Signal = p.receipt.ExitCode, p.receipt.Signal
	return r
}

// kept is the line that a host keeps of the same run.
func kept(r *wire.Record, seq uint64) *wire.Record {
	k := *r
	k.Source, k.Seq, k.Stream, k.Host, k.NodeClaim, k.DispatchKey, k.Time = wire.SourceHost, seq, "", "", "", "", time.Time{}
	return &k
}

func text(t *testing.T, records ...*wire.Record) string {
	t.Helper()
	var b strings.Builder
	for _, r := range records {
		line, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		b.Write(line)
	}
	return b.String()
}

func verify(t *testing.T, trust *audit.Trust, files ...string) *audit.Report {
	t.Helper()
	trail := &audit.Trail{}
	for i, file := range files {
		if err := trail.Read(fmt.Sprintf("f%d", i+1), strings.NewReader(file), false); err != nil {
			t.Fatal(err)
		}
	}
	return trust.Verify(trail, now)
}

// told is a report in short, a run a line.
func told(report *audit.Report) (lines []string) {
	for _, r := range report.Runs {
		lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s %s %s %s: %s", r.Host, r.Phase, r.Outcome, r.Verdict, r.Why), ": "))
	}
	return lines
}

func want(t *testing.T, report *audit.Report, lines ...string) {
	t.Helper()
	if diff := cmp.Diff(lines, told(report)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	verdict := audit.OK
	if strings.Contains(strings.Join(lines, "\n"), " refused: ") {
		verdict = audit.Refused
	}
	if report.Verdict != verdict || (report.Err() == nil) != (verdict == audit.OK) {
		t.Errorf("verdict %s, %v", report.Verdict, report.Err())
	}
}

func TestAGoodTrailVerifies(t *testing.T) {
	w := newWorld(t)
	failed := func(p *pair) { p.receipt.Outcome, p.receipt.ExitCode = signing.OutcomeFailed, 3 }
	refused := func(p *pair) {
		p.receipt = signing.Receipt{
			HostID: p.order.HostID, Challenge: p.order.Challenge, Outcome: signing.OutcomeRefused, Reason: signing.ReasonExpired,
		}
	}
	stream := text(t, w.run("host-a", signing.PhaseInstall), w.run("host-b", signing.PhaseJoin, failed), w.run("host-a", signing.PhaseLeave, refused))
	report := verify(t, w.trust(), stream)
	want(t, report, "host-a install ok ok", "host-b join failed ok", "host-a leave refused ok")
	if len(report.Gaps)+len(report.CutOff)+report.PassedOver != 0 {
		t.Errorf("report %+v", report)
	}
	r := report.Runs[0]
	if r.FirstRoot != 1 || r.LastRoot != 1 || r.DispatchKey != w.dispatch.Public().ID() || r.NodeClaim != "pool-1" || len(r.Notes) != 0 ||
		r.Lines[0].String() != "f1:1" {
		t.Errorf("run %+v", r)
	}
}

// A flipped byte anywhere in a line is found. Package wire flips every bit.
func TestEveryFlippedByteIsFound(t *testing.T) {
	w := newWorld(t)
	trust := w.trust()
	line := text(t, w.run("host-a", signing.PhaseJoin))
	for i := range len(line) - 1 {
		for _, bit := range []int{0, 5} {
			flipped := []byte(line)
			flipped[i] ^= 1 << bit
			if report := verify(t, trust, string(flipped)); report.Verdict != audit.Refused {
				t.Fatalf("byte %d, bit %d: %s: %s", i, bit, told(report), flipped)
			}
		}
	}
}

// So is one that somebody flips who also mends the sum, but for what is the writer's word alone: the numbers, the
// controller's clock, the NodeClaim's name.
func TestEveryFlippedByteUnderANewSumIsFound(t *testing.T) {
	w := newWorld(t)
	trust := w.trust()
	original := w.run("host-a", signing.PhaseJoin)
	line := text(t, original)
	found := 0 // of some 8000 flips; what is no JSON any more is left to the test above
	for i := range len(line) - 1 {
		for _, bit := range []int{0, 5} { // the second is the case of a letter
			flipped := []byte(line)
			flipped[i] ^= 1 << bit
			var forged wire.Record
			if json.Unmarshal(flipped, &forged) != nil {
				continue
			}
			mended, err := forged.Encode()
			if err != nil || string(mended) == line {
				continue
			}
			if report := verify(t, trust, string(mended)); report.Verdict == audit.Refused {
				found++
				continue
			}
			word := forged
			word.Audit, word.Sum = original.Audit, original.Sum
			word.Seq, word.Stream, word.Time, word.NodeClaim = original.Seq, original.Stream, original.Time, original.NodeClaim
			if word.Host == "" { // it is told by its id
				word.Host = original.Host
			}
			if word.DispatchKey == "" { // it is told by the signature
				word.DispatchKey = original.DispatchKey
			}
			if diff := cmp.Diff(*original, word); diff != "" {
				t.Fatalf("byte %d, bit %d is taken (-original +forged)\n%s", i, bit, diff)
			}
		}
	}
	if found < 3000 {
		t.Errorf("only %d forgeries were found", found)
	}
}

func TestReceiptsThatAnswerAnotherOrder(t *testing.T) {
	w := newWorld(t)
	join, again, other := w.run("host-a", signing.PhaseJoin), w.run("host-a", signing.PhaseJoin), w.run("host-b", signing.PhaseJoin)
	swap := func(order, receipt *wire.Record) *wire.Record {
		r := *order
		r.Receipt = receipt.Receipt
		return &r
	}
	// The same, and the line says what the receipt says.
	under := func(order, receipt *wire.Record) *wire.Record {
		r := *receipt
		r.Order = order.Order
		return &r
	}
	for name, tt := range map[string]struct {
		record *wire.Record
		why    string
	}{
		"of another run":                    {swap(join, again), "orderDigest is not what was signed"},
		"of another host":                   {swap(join, other), "receipt: untrusted: 0 of 1 needed signatures are by keys of the role"},
		"of another run, told as that":      {under(join, again), "orderDigest is not what was signed"},
		"of another host, told as that":     {under(join, other), "orderDigest is not what was signed"},
		"of another host, under this name":  {func() *wire.Record { r := *other; r.Host = "host-a"; return &r }(), "receipt: host is not what was signed"},
		"of another host, under this id":    {func() *wire.Record { r := *other; r.HostID, r.Host = "id-host-a", "host-a"; return &r }(), "hostID is not what was signed"},
		"signed for another challenge":      {w.run("host-a", signing.PhaseJoin, func(p *pair) { p.receipt.Challenge = bytes.Repeat([]byte{1}, 32) }), "the receipt answers another order: its host or challenge differs"},
		"signed for another fence":          {w.run("host-a", signing.PhaseJoin, func(p *pair) { p.receipt.Fence = 9 }), "the receipt answers another order"},
		"signed for another claim":          {w.run("host-a", signing.PhaseJoin, func(p *pair) { p.receipt.Claim = "uid-2" }), "claim is not what was signed"},
		"signed for another script":         {w.run("host-a", signing.PhaseJoin, func(p *pair) { p.receipt.Script = parameters }), "script is not what was signed"},
		"signed with other parameters":      {w.run("host-a", signing.PhaseJoin, func(p *pair) { p.receipt.Parameters = script }), "parameters is not what was signed"},
		"signed by a host of another id":    {w.run("host-a", signing.PhaseJoin, func(p *pair) { p.receipt.HostID = "id-host-b" }), "hostID is not what was signed"},
		"that says ok and exit status 1":    {w.run("host-a", signing.PhaseJoin, func(p *pair) { p.receipt.ExitCode = 1 }), "the receipt contradicts itself: it went well and did not"},
		"a refusal for another challenge":   {w.run("host-a", signing.PhaseJoin, refusal(func(r *signing.Receipt) { r.Challenge = bytes.Repeat([]byte{1}, 32) })), "the receipt answers another order: its host or challenge differs"},
		"a refusal that names another":      {w.run("host-a", signing.PhaseJoin, refusal(func(r *signing.Receipt) { r.Order = script })), "orderDigest is not what was signed"},
		"a line that tells another outcome": {func() *wire.Record { r := *join; r.Outcome = "failed"; return &r }(), "outcome is not what was signed"},
		"a line that tells another reason":  {func() *wire.Record { r := *join; r.Reason = "busy"; return &r }(), "reason is not what was signed"},
		"a line that has no receipt":        {func() *wire.Record { r := *join; r.Receipt = nil; return &r }(), "outcome is not what was signed"},
		"a line that has lost its order":    {func() *wire.Record { r := *join; r.Order = nil; return &r }(), "it names a dispatch key and lacks the order"},
		"a line that calls it raw":          {func() *wire.Record { r := *join; r.Mode = wire.ModeRaw; return &r }(), "mode raw does not go with what it holds"},
		"a line that proves nothing":        {func() *wire.Record { r := *join; r.Order, r.Receipt, r.DispatchKey = nil, nil, ""; return &r }(), "mode verified does not go with what it holds"},
		"a line for a terminal":             {func() *wire.Record { r := *join; r.NodeClaim = "\x1b[2Jx"; return &r }(), "a field holds what no name and no digest does"},
		"a host that knows the NodeClaim":   {func() *wire.Record { r := *kept(join, 1); r.NodeClaim = "x"; return &r }(), "it is not what a host writes"},
	} {
		t.Run(name, func(t *testing.T) {
			report := verify(t, w.trust(), text(t, tt.record))
			if len(report.Runs) != 1 || report.Verdict != audit.Refused || report.Runs[0].Why != tt.why {
				t.Errorf("got %q, want %q", told(report), tt.why)
			}
		})
	}
}

func refusal(bend func(*signing.Receipt)) func(*pair) {
	return func(p *pair) {
		p.receipt.Outcome, p.receipt.Reason = signing.OutcomeRefused, signing.ReasonBusy
		bend(&p.receipt)
	}
}

// A dispatch key that is gone from the newest root still has signed what it signed.
func TestOldRecordsVerifyAfterARotation(t *testing.T) {
	w := newWorld(t)
	early := w.run("host-a", signing.PhaseJoin)
	old, next := w.dispatch, shimtest.NewSigner(t)
	w.nextRoot(func(r *signing.Root) { r.Dispatch = only(old, next) })
	w.dispatch = next
	between := w.run("host-a", signing.PhaseLeave)
	w.nextRoot(func(r *signing.Root) { r.Dispatch = only(next) })
	late := w.run("host-a", signing.PhaseJoin)
	report := verify(t, w.trust(), text(t, early, between, late))
	want(t, report, "host-a join ok ok", "host-a leave ok ok", "host-a join ok ok")
	for i, roots := range [][2]int64{{1, 2}, {2, 3}, {2, 3}} {
		r := report.Runs[i]
		key := []signing.Signer{old, next, next}[i].Public().ID()
		if r.FirstRoot != roots[0] || r.LastRoot != roots[1] || r.DispatchKey != key {
			t.Errorf("run %d: roots %d to %d, key %s", i, r.FirstRoot, r.LastRoot, r.DispatchKey)
		}
	}
	w.chain = w.chain[:1] // whoever has an old chain cannot judge what is newer
	want(t, verify(t, w.trust(), text(t, early, between)),
		"host-a join ok ok", "host-a leave ok refused: order: untrusted: 0 of 1 needed signatures are by keys of the role")
	w.chain = nil
	if _, err := audit.NewTrust(nil); err == nil {
		t.Error("no chain is taken")
	}
}

func TestAnOrderOfAStrangerIsRefused(t *testing.T) {
	w := newWorld(t)
	w.dispatch = shimtest.NewSigner(t)
	want(t, verify(t, w.trust(), text(t, w.run("host-a", signing.PhaseJoin))),
		"host-a join ok refused: order: untrusted: 0 of 1 needed signatures are by keys of the role")
}

func TestHostsAndTheirKeys(t *testing.T) {
	w := newWorld(t)
	line := text(t, w.run("host-a", signing.PhaseJoin))
	key := w.hosts["host-a"].Public()
	hello := sign(t, &signing.Hello{Protocol: 1, ShimVersion: "v1", HostID: "id-host-a", Challenge: make([]byte, 32)}, w.hosts["host-a"])
	statement := func(id string, key signing.Key) []byte {
		data, err := json.Marshal(wire.Statement{HostID: id, ReceiptKey: key.String(), Hello: hello})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	list := fmt.Appendf(nil, "apiVersion: v1\nkind: List\nitems:\n- %s", strings.ReplaceAll(string(manifest("host-a", "id-host-a", key)), "\n", "\n  "))
	const unknown = `host-a join ok refused: receipt: no receipt key of host "id-host-a" is known`
	for name, tt := range map[string]struct {
		add  func(*audit.Trust) error
		want string
	}{
		"a manifest":  {func(t *audit.Trust) error { return t.AddHosts(manifest("host-a", "id-host-a", key)) }, "host-a join ok ok"},
		"a list":      {func(t *audit.Trust) error { return t.AddHosts(list) }, "host-a join ok ok"},
		"a statement": {func(t *audit.Trust) error { return t.AddHosts(statement("id-host-a", key)) }, "host-a join ok ok"},
		"a key":       {func(t *audit.Trust) error { return t.AddKey(key.String()) }, "host-a join ok ok"},
		"several documents": {func(t *audit.Trust) error {
			return t.AddHosts(append([]byte("kind: Secret\n---\n"), manifest("host-a", "id-host-a", key)...))
		}, "host-a join ok ok"},
		"another host's manifest": {func(t *audit.Trust) error { return t.AddHosts(manifest("host-b", "id-host-b", key)) }, unknown},
		"an old key and its own": {func(tr *audit.Trust) error {
			return tr.AddHosts(append(append(manifest("host-a", "id-host-a", shimtest.NewSigner(t).Public()), "---\n"...), manifest("host-a", "id-host-a", key)...))
		}, "host-a join ok ok"},
		"its id with another key": {func(tr *audit.Trust) error {
			return tr.AddHosts(manifest("host-a", "id-host-a", shimtest.NewSigner(t).Public()))
		}, "host-a join ok refused: receipt: untrusted: 0 of 1 needed signatures are by keys of the role"},
		"its id under another name": {func(t *audit.Trust) error { return t.AddHosts(manifest("host-x", "id-host-a", key)) }, "host-a join ok refused: receipt: host is not what was signed"},
	} {
		t.Run(name, func(t *testing.T) {
			trust, err := audit.NewTrust(w.chain)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.add(trust); err != nil {
				t.Fatal(err)
			}
			if trust.Hosts() == 0 {
				t.Error("no key was taken")
			}
			want(t, verify(t, trust, line), tt.want)
		})
	}
	trust := w.trust()
	for name, data := range map[string][]byte{
		"a statement of another id":   statement("id-host-b", key),
		"a statement of another key":  statement("id-host-a", shimtest.NewSigner(t).Public()),
		"a manifest without a key":    bytes.Replace(manifest("x", "x", key), []byte(key.String()), []byte("ed25519:x"), 1),
		"something that is no object": []byte("- a\n- b\n"),
	} {
		if err := trust.AddHosts(data); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if err := trust.AddKey("ed25519:x"); err == nil {
		t.Error("a bad key is taken")
	}
}

// A last line that ends early is no forgery, and anything else is.
func TestACutLastLineIsToldFromAForgedOne(t *testing.T) {
	w := newWorld(t)
	first, last := text(t, w.run("host-a", signing.PhaseInstall)), text(t, w.run("host-a", signing.PhaseJoin))
	for n := 1; n < len(last)-1; n++ {
		report := verify(t, w.trust(), first+last[:n])
		if report.Verdict != audit.OK || len(report.Runs) != 1 || len(report.CutOff) != 1 || report.CutOff[0].String() != "f1:2" {
			t.Fatalf("cut after %d bytes: %q, %v", n, told(report), report.CutOff)
		}
	}
	want(t, verify(t, w.trust(), first+last[:len(last)-1]), "host-a install ok ok", "host-a join ok ok") // only the line feed is missing
	for name, file := range map[string]string{
		"a cut line that ends":     first + last[:300] + "\n",
		"a cut line in the middle": last[:300] + "\n" + first,
		"changed and not cut":      first + strings.Replace(last[:len(last)-1], "pool-1", "pool-2", 1),
		"no record at all":         first + "hello",
		"a line that is too long":  first + wire.RecordPrefix + strings.Repeat("x", 3*wire.MaxRecord) + "\n",
	} {
		if report := verify(t, w.trust(), file); report.Verdict != audit.Refused || len(report.CutOff) != 0 {
			t.Errorf("%s: %q, %v", name, told(report), report.CutOff)
		}
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	w := newWorld(t)
	var all []*wire.Record
	for range 7 {
		all = append(all, w.run("host-a", signing.PhaseJoin))
	}
	first := audit.Gap{Source: wire.SourceController, Stream: "STREAM", From: 1, To: 1}
	between := audit.Gap{Source: wire.SourceController, Stream: "STREAM", From: 4, To: 5}
	ofHost := audit.Gap{Source: wire.SourceHost, Stream: "id-host-a", From: 13, To: 13} // whose first ones made room for these
	files := text(t, all[1], all[2], all[5]) + text(t, kept(all[1], 11), kept(all[2], 12), kept(all[5], 14))
	for name, c := range map[string]struct {
		rotated bool
		want    []audit.Gap
	}{
		"all of the controller's log is given": {false, []audit.Gap{first, between, ofHost}},
		"its first lines were rotated away":    {true, []audit.Gap{between, ofHost}},
	} {
		t.Run(name, func(t *testing.T) {
			trail := &audit.Trail{Rotated: c.rotated}
			if err := trail.Read("f", strings.NewReader(files), false); err != nil {
				t.Fatal(err)
			}
			report := w.trust().Verify(trail, now)
			if diff := cmp.Diff(c.want, report.Gaps); diff != "" || report.Verdict != audit.OK || len(report.Twice) != 0 {
				t.Errorf("verdict %s, twice %v (-want +got)\n%s", report.Verdict, report.Twice, diff)
			}
		})
	}
}

// Who takes a line out and puts another in its place leaves no gap, and a copy of a line is no other line.
func TestANumberThatTwoHaveIsNamed(t *testing.T) {
	w := newWorld(t)
	one, two := w.run("host-a", signing.PhaseInstall), w.run("host-a", signing.PhaseJoin)
	instead := *w.run("host-a", signing.PhaseLeave)
	instead.Seq = two.Seq
	ended := *two
	ended.NodeClaim = "pool-2"
	place := func(lines ...int) (places []audit.Place) {
		for _, n := range lines {
			places = append(places, audit.Place{File: "f1", Line: n})
		}
		return places
	}
	for name, c := range map[string]struct {
		records []*wire.Record
		want    []audit.Twice
	}{
		"each has its own":                                   {[]*wire.Record{one, two, kept(one, 1), kept(two, 2)}, []audit.Twice{}},
		"copies of a line":                                   {[]*wire.Record{one, two, one, two, kept(one, 1), kept(one, 1)}, []audit.Twice{}},
		"two runs in a controller's log":                     {[]*wire.Record{one, two, &instead}, []audit.Twice{{Source: "controller", Stream: "STREAM", Seq: 2, Lines: place(2, 3)}}},
		"two lines about one run, of which one is another's": {[]*wire.Record{one, &ended, two}, []audit.Twice{{Source: "controller", Stream: "STREAM", Seq: 2, Lines: place(2, 3)}}},
		"two runs of a host":                                 {[]*wire.Record{one, two, kept(one, 7), kept(two, 7)}, []audit.Twice{{Source: "host", Stream: "id-host-a", Seq: 7, Lines: place(3, 4)}}},
	} {
		t.Run(name, func(t *testing.T) {
			report := verify(t, w.trust(), text(t, c.records...))
			if diff := cmp.Diff(c.want, report.Twice); diff != "" || report.Verdict != audit.OK || len(report.Gaps) != 0 {
				t.Errorf("verdict %s, gaps %v (-want +got)\n%s", report.Verdict, report.Gaps, diff)
			}
		})
	}
}

// Lines of host and controller, and copies, about one run are one.
func TestLinesAboutOneRunAreOne(t *testing.T) {
	w := newWorld(t)
	both, host, unanswered, collected := w.run("host-a", signing.PhaseInstall), w.run("host-a", signing.PhaseJoin), w.run("host-a", signing.PhaseLeave), w.run("host-b", signing.PhaseJoin)
	lost := *unanswered
	lost.Receipt, lost.Outcome = nil, ""
	alone := *collected
	alone.Order, alone.DispatchKey = nil, ""
	controller := text(t, both, both, &lost, &alone)
	report := verify(t, w.trust(), controller)
	want(t, report, "host-a install ok ok", "host-a leave  unanswered", "host-b join ok no-order")
	if n := len(report.Runs[0].Lines); n != 2 {
		t.Errorf("%d lines", n)
	}
	report = verify(t, w.trust(), controller, text(t, kept(both, 1), kept(host, 2), kept(unanswered, 3)), text(t, kept(collected, 1)))
	want(t, report, "host-a install ok ok", "host-a leave ok ok", "host-b join ok ok", "host-a join ok ok")
	for i, sources := range []string{"controller host", "controller host", "controller host", "host"} {
		if got := strings.Join(report.Runs[i].Sources, " "); got != sources {
			t.Errorf("run %d: told by %s, want %s", i, got, sources)
		}
	}
	if report.Runs[1].NodeClaim != "pool-1" || report.Runs[1].Time.IsZero() {
		t.Errorf("run %+v", report.Runs[1])
	}
}

func TestTwoEndsOfOneOrderAreRefused(t *testing.T) {
	w := newWorld(t)
	good := w.run("host-a", signing.PhaseJoin)
	receipt, err := signing.OpenReceipt(good.Receipt, w.hosts["host-a"].Public())
	if err != nil {
		t.Fatal(err)
	}
	receipt.Outcome, receipt.ExitCode = signing.OutcomeFailed, 1
	bad := *good
	bad.Receipt, bad.Outcome, bad.ExitCode = sign(t, receipt, w.hosts["host-a"]), "failed", 1
	want(t, verify(t, w.trust(), text(t, good, &bad)),
		"host-a join ok ok", "host-a join failed refused: the host has signed two ends of one order, the other on line f1:1")
}

func TestScriptsOutsideOfTheAllowlists(t *testing.T) {
	w := newWorld(t)
	listed, unlisted := w.list("1"), w.list("2")
	digest, err := signing.PayloadDigest(unlisted)
	if err != nil {
		t.Fatal(err)
	}
	refused := w.run("host-a", signing.PhaseLeave, refusal(func(*signing.Receipt) {}))
	stream := text(t, w.run("host-a", signing.PhaseJoin), refused)
	const why = `host-a join ok refused: not-allowed: the join script of profile "p" version "1" with digest "` + "%s" + `" is not in the allowlist`
	for name, tt := range map[string]struct {
		lists [][]byte
		want  string
	}{
		"none is given":    {nil, "host-a join ok ok"},
		"it is listed":     {[][]byte{listed}, "host-a join ok ok"},
		"in one of them":   {[][]byte{unlisted, listed}, "host-a join ok ok"},
		"it is not listed": {[][]byte{unlisted}, fmt.Sprintf(why, script)},
	} {
		t.Run(name, func(t *testing.T) {
			trust := w.trust()
			for _, list := range tt.lists {
				if err := trust.AddAllowlist(list); err != nil {
					t.Fatal(err)
				}
			}
			want(t, verify(t, trust, stream), tt.want, "host-a leave refused ok") // nothing ran
		})
	}
	t.Run("not in the one that the order names", func(t *testing.T) {
		w.seq = 0
		named := *w.run("host-a", signing.PhaseJoin)
		order, err := signing.OpenOrder(named.Order, &w.doc)
		if err != nil {
			t.Fatal(err)
		}
		order.Allowlist = digest
		named.Order = sign(t, order, w.dispatch)
		if named.OrderDigest, err = signing.PayloadDigest(named.Order); err != nil {
			t.Fatal(err)
		}
		named.Receipt, named.Outcome = nil, ""
		trust := w.trust()
		for _, list := range [][]byte{unlisted, listed} {
			if err := trust.AddAllowlist(list); err != nil {
				t.Fatal(err)
			}
		}
		report := verify(t, trust, text(t, &named))
		if report.Verdict != audit.Refused {
			t.Errorf("got %q", told(report))
		}
	})
	stranger := newWorld(t)
	if err := stranger.trust().AddAllowlist(listed); err == nil {
		t.Error("an allowlist of another author is taken")
	}
	// Authors rotate too.
	w.nextRoot(func(r *signing.Root) { r.Author = only(shimtest.NewSigner(t)) })
	if err := w.trust().AddAllowlist(listed); err != nil {
		t.Errorf("the allowlist of an earlier author: %v", err)
	}
}

// Clocks of hosts are wrong at times: that is noted and refuses nothing.
func TestTimesThatCannotBeRightAreNoted(t *testing.T) {
	w := newWorld(t)
	for name, tt := range map[string]struct {
		bend func(*pair)
		note string
	}{
		"all is well":         {func(*pair) {}, ""},
		"a clock set back":    {func(p *pair) { p.receipt.Finished = p.receipt.Started.Add(-time.Hour) }, "it ended before it began, by the host's clock"},
		"a clock in 2099":     {func(p *pair) { p.receipt.Finished = issued.AddDate(73, 0, 0) }, "the host's clock is ahead of now"},
		"too long":            {func(p *pair) { p.receipt.DurationMillis = 3_600_000 }, "it took 1h0m0s, and had 60 s"},
		"ended by its reboot": {func(p *pair) { p.receipt.Outcome, p.receipt.Finished = signing.OutcomeInterrupted, time.Time{} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			report := verify(t, w.trust(), text(t, w.run("host-a", signing.PhaseJoin, tt.bend)))
			if report.Verdict != audit.OK || strings.Join(report.Runs[0].Notes, "; ") != tt.note {
				t.Errorf("got %q, notes %q", told(report), report.Runs[0].Notes)
			}
		})
	}
	ahead := w.run("host-a", signing.PhaseJoin)
	ahead.Time = ahead.Time.Add(-2 * time.Hour)
	if notes := verify(t, w.trust(), text(t, ahead)).Runs[0].Notes; len(notes) != 1 || !strings.Contains(notes[0], "1h59m59s ahead of the controller's") {
		t.Errorf("notes %q", notes)
	}
}

func TestRawRunsAreNeverVerified(t *testing.T) {
	w := newWorld(t)
	raw := &wire.Record{Source: wire.SourceController, Stream: "S", Seq: 1, Mode: wire.ModeRaw, Host: "host-c", Phase: "join", Outcome: "ok"}
	want(t, verify(t, w.trust(), text(t, raw)), "host-c join ok raw")
}

// In a mixed log, what is before a record and lines without one are another log's.
func TestAMixedLog(t *testing.T) {
	w := newWorld(t)
	first, last := text(t, w.run("host-a", signing.PhaseInstall)), text(t, w.run("host-a", signing.PhaseJoin))
	log := `{"level":"INFO","message":"starting {\"audit\":\"v1\","}` + "\n" + "[pod/x] 2026-01-01T00:00:00Z " + first + "\npanic\n" + last
	trail := &audit.Trail{}
	if err := trail.Read("log", strings.NewReader(log), true); err != nil {
		t.Fatal(err)
	}
	report := w.trust().Verify(trail, now)
	want(t, report, "host-a install ok ok", "host-a join ok ok")
	if report.PassedOver != 2 || report.Runs[1].Lines[0].String() != "log:5" {
		t.Errorf("report %+v", report)
	}
}
