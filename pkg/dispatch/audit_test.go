package dispatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/shim"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// auditFile takes an audit log's lines.
type auditFile struct {
	t   *testing.T
	log *dispatch.AuditLog

	mu  sync.Mutex
	out bytes.Buffer
}

func newAuditFile(t *testing.T) *auditFile {
	t.Helper()
	f := &auditFile{t: t}
	var err error
	if f.log, err = dispatch.NewAuditLog(dispatch.AuditOptions{Out: f, Registry: prometheus.NewRegistry()}); err != nil {
		t.Fatal(err)
	}
	return f
}

// Write implements io.Writer.
func (f *auditFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(p)
}

func (f *auditFile) audited(o *dispatch.Options) { o.Audit = f.log }

// text ends the log and is all that was written.
func (f *auditFile) text() string {
	f.t.Helper()
	if err := f.log.Close(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

func (f *auditFile) records() []*wire.Record {
	f.t.Helper()
	var all []*wire.Record
	for line := range strings.Lines(f.text()) {
		r, err := wire.DecodeRecord([]byte(strings.TrimSuffix(line, "\n")))
		if err != nil {
			f.t.Fatalf("%v: %s", err, line)
		}
		all = append(all, r)
	}
	return all
}

// short is what a record says in few words.
func short(records []*wire.Record) (lines []string) {
	for _, r := range records {
		lines = append(lines, fmt.Sprintf("%d %s %s %s%s", r.Seq, r.Mode, r.Phase, r.Outcome, r.Reason))
	}
	return lines
}

// proves checks that order and receipt of a record belong together, under the keys of world and host.
func proves(t *testing.T, w *dispatchtest.World, host dispatch.Host, r *wire.Record) {
	t.Helper()
	roots, _, err := w.Documents()
	if err != nil {
		t.Fatal(err)
	}
	root, err := signing.OpenFirstRoot(roots[1])
	if err != nil {
		t.Fatal(err)
	}
	order, err := signing.OpenOrder(r.Order, root)
	if err != nil {
		t.Fatalf("order: %v", err)
	}
	receipt, err := signing.OpenReceipt(r.Receipt, host.ReceiptKey)
	if err != nil {
		t.Fatalf("receipt: %v", err)
	}
	digest, err := signing.PayloadDigest(r.Order)
	if err != nil || receipt.Order != digest || r.OrderDigest != digest || !bytes.Equal(receipt.Challenge, order.Challenge) {
		t.Errorf("receipt %+v is not of order %s", receipt, digest)
	}
	if r.DispatchKey != w.Signer().Public().ID() || r.HostID != host.HostID || r.Host != host.Name {
		t.Errorf("record %+v", r)
	}
}

func TestAMembershipIsAudited(t *testing.T) {
	w := newWorld(t)
	h := newShimHost(t, w)
	f := newAuditFile(t)
	install := h.allow(w, signing.PhaseInstall, "true")
	join := h.allow(w, signing.PhaseJoin, `echo "$KPSSH_BOOTSTRAP_TOKEN"; exit 3`)
	join.Secrets = map[string]string{"KPSSH_BOOTSTRAP_TOKEN": canary}
	leave := h.allow(w, signing.PhaseLeave, "true")
	d := w.Dispatcher(slow, f.audited)
	for _, r := range []dispatch.Request{install, join, join, leave} { // the second join is collected
		r.ClaimName = "pool-1"
		if _, err := d.Run(t.Context(), h.host, r); err != nil && r.Phase != signing.PhaseJoin {
			t.Fatalf("%v; log: %s", err, h.logged())
		}
	}
	records := f.records()
	if diff := cmp.Diff([]string{"1 verified install ok", "2 verified join failed", "3 verified leave ok"}, short(records)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	var kept bytes.Buffer
	host, err := shim.Open(h.config)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := host.Export(t.Context(), &kept); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(kept.String(), "\n"), "\n")
	if len(lines) != len(records) {
		t.Fatalf("the host kept %d runs", len(lines))
	}
	for i, r := range records {
		proves(t, w, h.host, r)
		if r.NodeClaim != "pool-1" || r.Claim != claimA || r.Script != signing.Digest([][]byte{install.Script, join.Script, leave.Script}[i]) || r.Stream == "" {
			t.Errorf("record %+v", r)
		}
		theirs, err := wire.DecodeRecord([]byte(lines[i]))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(theirs.Order, r.Order) || !bytes.Equal(theirs.Receipt, r.Receipt) {
			t.Errorf("the host keeps another order or receipt of run %d", i+1)
		}
	}
	if records[1].ExitCode != 3 {
		t.Errorf("exit status %d", records[1].ExitCode)
	}
	if strings.Contains(f.text()+kept.String(), canary) {
		t.Error("the secret is in the trail")
	}
}

func TestWhatBecameOfAnOrderIsAudited(t *testing.T) {
	for name, tt := range map[string]struct {
		behave  func(*dispatchtest.Behaviour)
		options func(*dispatch.Options)
		want    []string
		proven  bool
	}{
		"the connection was cut": {
			behave: func(b *dispatchtest.Behaviour) { b.CutBeforeReceipt = once() }, want: []string{"1 verified install ok"}, proven: true,
		},
		"the order was lost": {
			behave: func(b *dispatchtest.Behaviour) { b.LoseOrder = func() bool { return true } }, want: []string{"1 verified install "},
		},
		"the receipt was forged": {
			behave: func(b *dispatchtest.Behaviour) { b.MangleReceipt = func(r *signing.Receipt) { r.Claim = claimB } },
			want:   []string{"1 verified install "},
		},
		"it was refused": {
			options: func(o *dispatch.Options) { o.Signer = dispatchtest.NewSigner(t) }, want: []string{"1 verified install refuseduntrusted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("host-a")
			if tt.behave != nil {
				h.Behave(tt.behave)
			}
			f := newAuditFile(t)
			options := []func(*dispatch.Options){fast, f.audited}
			if tt.options != nil {
				options = append(options, tt.options)
			}
			_, _ = w.Dispatcher(options...).Run(t.Context(), h.Dispatch(), request(signing.PhaseInstall, claimA, 1))
			records := f.records()
			if diff := cmp.Diff(tt.want, short(records)); diff != "" {
				t.Fatalf("(-want +got)\n%s", diff)
			}
			r := records[0]
			if tt.proven {
				proves(t, w, h.Dispatch(), r)
			}
			if r.Order == nil || r.Claim != claimA || r.Script == "" || r.Parameters == "" || (r.Receipt == nil) != (r.Outcome == "") {
				t.Errorf("record %+v", r)
			}
			if signed := tt.options == nil; signed != (r.DispatchKey == w.Signer().Public().ID()) {
				t.Errorf("dispatch key %q", r.DispatchKey)
			}
		})
	}
}

// What a killed controller ordered, its successor collects and records; the order was the dead one's to record.
func TestACollectedRunOfAnEarlierProcessIsAudited(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("host-a")
	r := request(signing.PhaseInstall, claimA, 1)
	mustRun(t, w.Dispatcher(fast), h, r)
	f := newAuditFile(t)
	d := w.Dispatcher(fast, f.audited)
	for range 3 {
		mustRun(t, d, h, r)
	}
	records := f.records()
	if diff := cmp.Diff([]string{"1 verified install ok"}, short(records)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	if got := records[0]; got.Order != nil || got.Receipt == nil || got.OrderDigest == "" || got.Parameters == "" {
		t.Errorf("record %+v", got)
	}
}

func TestRawRunsAreAuditedAsUnverified(t *testing.T) {
	host := rawHost(t, goodSudo)
	f := newAuditFile(t)
	d := dispatchtest.NewWorld(t).Dispatcher(fast, f.audited, func(o *dispatch.Options) { o.AllowRaw = true })
	for _, script := range []string{"echo $KPSSH_BOOTSTRAP_TOKEN", "exit 3"} {
		_, _ = d.Run(t.Context(), host, rawRequest(script))
	}
	refused := dispatchtest.NewWorld(t).Dispatcher(fast, f.audited)
	_, err := refused.Run(t.Context(), host, rawRequest("true"))
	fails(t, err, dispatch.Config, dispatch.ReasonRawNotAllowed)
	records := f.records()
	if diff := cmp.Diff([]string{"1 raw join ok", "2 raw join failed"}, short(records)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	if r := records[1]; r.Order != nil || r.Receipt != nil || r.ExitCode != 3 || r.Script != signing.Digest([]byte("exit 3")) || r.Host != "raw" {
		t.Errorf("record %+v", r)
	}
	if strings.Contains(f.text(), canary) {
		t.Error("the secret is in the log")
	}
}

// badDisk is a stream with faults.
type badDisk struct {
	write func([]byte) (int, error)
}

func (d badDisk) Write(p []byte) (int, error) { return d.write(p) }

func TestABadDiskHindersNoRun(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("host-a")
	var lines, said []string
	full := errors.New("no space left on device")
	failing := 2
	disk := badDisk{func(p []byte) (int, error) {
		if failing--; failing >= 0 {
			lines = append(lines, string(p[:failing*10])) // ten bytes of the first, nothing of the second
			return failing * 10, full
		}
		lines = append(lines, string(p))
		return len(p), nil
	}}
	registry := prometheus.NewRegistry()
	log, err := dispatch.NewAuditLog(dispatch.AuditOptions{Out: disk, Registry: registry, Trouble: func(err error) { said = append(said, err.Error()) }})
	if err != nil {
		t.Fatal(err)
	}
	d := w.Dispatcher(fast, func(o *dispatch.Options) { o.Audit = log })
	mustRun(t, d, h, request(signing.PhaseInstall, claimA, 1))
	mustRun(t, d, h, request(signing.PhaseJoin, claimA, 1))
	mustRun(t, d, h, request(signing.PhaseLeave, claimA, 1))
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The third does not stand in the line of which a part got through, and its number tells of the two.
	text := strings.Join(lines, "")
	first, last, _ := strings.Cut(text, "\n")
	r, err := wire.DecodeRecord([]byte(strings.TrimSuffix(last, "\n")))
	if err != nil || r.Seq != 3 || len(first) != 10 {
		t.Errorf("%v; written: %q", err, text)
	}
	if len(said) != 1 || !strings.Contains(said[0], full.Error()) {
		t.Errorf("said %q", said)
	}
	if diff := cmp.Diff(map[string]float64{"written": 1, "failed": 2, "dropped": 0}, auditCounts(t, registry)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// auditCounts is the metric by result.
func auditCounts(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "kpssh_audit_records_total" {
			t.Errorf("metric %s", f.GetName())
		}
		for _, m := range f.GetMetric() {
			counts[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return counts
}

// A disk that hangs costs records and nobody's time.
func TestAHangingDiskHindersNoRun(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("host-a")
	release := make(chan struct{})
	var written int
	disk := badDisk{func(p []byte) (int, error) {
		<-release
		written++
		return len(p), nil
	}}
	registry := prometheus.NewRegistry()
	var said []string
	log, err := dispatch.NewAuditLog(dispatch.AuditOptions{Out: disk, Registry: registry, Trouble: func(err error) { said = append(said, err.Error()) }})
	if err != nil {
		t.Fatal(err)
	}
	const more = 3
	for i := range dispatch.AuditQueue + 1 + more { // one is with the disk
		dispatch.RecordAudit(log, wire.Record{Mode: wire.ModeRaw, Host: fmt.Sprint(i)})
		if i == 0 {
			waitFor(t, "the first to be with the disk", func() bool { return dispatch.AuditWaiting(log) == 0 })
		}
	}
	mustRun(t, w.Dispatcher(fast, func(o *dispatch.Options) { o.Audit = log }), h, request(signing.PhaseInstall, claimA, 1))
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := log.Close(late); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), fmt.Sprintf("%d wait", dispatch.AuditQueue)) {
		t.Errorf("closing: %v", err)
	}
	if len(said) != 1 || !strings.Contains(said[0], "too many records wait") {
		t.Errorf("said %q", said)
	}
	close(release)
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if written != dispatch.AuditQueue+1 {
		t.Errorf("%d records were written", written)
	}
	want := map[string]float64{"written": dispatch.AuditQueue + 1, "failed": 0, "dropped": more + 1}
	if diff := cmp.Diff(want, auditCounts(t, registry)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A run that outlives the log's end, as one may when the controller stops, is missed by somebody.
func TestRecordsAfterTheEndAreCountedAndSaid(t *testing.T) {
	var out bytes.Buffer
	var said []string
	registry := prometheus.NewRegistry()
	log, err := dispatch.NewAuditLog(dispatch.AuditOptions{Out: &out, Registry: registry, Trouble: func(err error) { said = append(said, err.Error()) }})
	if err != nil {
		t.Fatal(err)
	}
	dispatch.RecordAudit(log, wire.Record{Mode: wire.ModeVerified, Host: "host-a", OrderDigest: "sha256:a", Outcome: "ok"})
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is the same again, of which nothing is missed
		dispatch.RecordAudit(log, wire.Record{Mode: wire.ModeVerified, Host: "host-b", Phase: "leave", OrderDigest: "sha256:b", Outcome: "ok"})
	}
	dispatch.RecordAudit(log, wire.Record{Mode: wire.ModeVerified, Host: "host-c", Phase: "join", OrderDigest: "sha256:c"})
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("written: %q", out.String())
	}
	if diff := cmp.Diff(map[string]float64{"written": 1, "failed": 0, "dropped": 2}, auditCounts(t, registry)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	want := []string{
		`dropping audit record 2, leave on host "host-b" which ended ok: the audit log is closed`,
		`dropping audit record 3, join on host "host-c" which ended unanswered: the audit log is closed`,
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestATornFileIsGoneOnWithOnALineOfItsOwn(t *testing.T) {
	var out bytes.Buffer
	out.WriteString(`{"audit":"v1","sou`)
	log, err := dispatch.NewAuditLog(dispatch.AuditOptions{Out: &out, Torn: true, Registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	dispatch.RecordAudit(log, wire.Record{Mode: wire.ModeRaw})
	dispatch.RecordAudit(log, wire.Record{Mode: wire.ModeRaw})
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 4 || lines[0] != `{"audit":"v1","sou` || lines[3] != "" {
		t.Fatalf("written %q", lines)
	}
	for i, line := range lines[1:3] {
		if r, err := wire.DecodeRecord([]byte(line)); err != nil || r.Seq != uint64(i+1) {
			t.Errorf("line %d: %+v, %v", i+2, r, err)
		}
	}
}
