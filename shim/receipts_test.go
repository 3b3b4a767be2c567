package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// exported is what the host would export, each line checked in every way that a reader can without the cluster.
func (w *world) exported() []*wire.Record {
	w.t.Helper()
	h, err := Open(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	defer h.Close()
	var out bytes.Buffer
	if err := h.Export(context.Background(), &out); err != nil {
		w.t.Fatal(err)
	}
	root, err := signing.OpenFirstRoot(w.Roots[1])
	if err != nil {
		w.t.Fatal(err)
	}
	var records []*wire.Record
	for line := range bytes.Lines(out.Bytes()) {
		r, err := wire.DecodeRecord(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			w.t.Fatal(err)
		}
		order, err := signing.OpenOrder(r.Order, root)
		if err != nil {
			w.t.Fatalf("run %d: order: %v", r.Seq, err)
		}
		receipt, err := signing.OpenReceipt(r.Receipt, h.ReceiptKey())
		if err != nil {
			w.t.Fatalf("run %d: receipt: %v", r.Seq, err)
		}
		digest, err := signing.PayloadDigest(r.Order)
		if err != nil || receipt.Order != digest || !bytes.Equal(receipt.Challenge, order.Challenge) || receipt.HostID != order.HostID {
			w.t.Fatalf("run %d: the receipt answers another order (%v)", r.Seq, err)
		}
		records = append(records, r)
	}
	return records
}

// told is the exported trail in short.
func told(records []*wire.Record) string {
	var b strings.Builder
	for _, r := range records {
		fmt.Fprintf(&b, "%d %s %s %s\n", r.Seq, r.Phase, r.Claim, r.Outcome)
	}
	return b.String()
}

func TestRunsAreKeptWithTheirOrders(t *testing.T) {
	w := newWorld(t, "install: true", "join: exit 3", "leave: "+noop)
	w.mustRun(signing.PhaseInstall, "true", "uid-1", 1)
	w.order(signing.PhaseJoin, "exit 3", "uid-1", 1)
	w.mustRun(signing.PhaseLeave, noop, "uid-1", 1)
	if got, want := told(w.exported()), "1 install uid-1 ok\n2 join uid-1 failed\n3 leave uid-1 ok\n"; got != want {
		t.Errorf("kept\n%swant\n%s", got, want)
	}
}

func TestTheLast64RunsAreKept(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	for i := range keptRuns + 5 {
		w.mustRun(signing.PhaseJoin, noop, "uid-1", int64(i+1))
	}
	records := w.exported()
	if len(records) != keptRuns || records[0].Seq != 6 || records[keptRuns-1].Seq != keptRuns+5 {
		t.Errorf("kept %d runs: %s", len(records), told(records))
	}
	st, err := os.Stat(filepath.Join(w.cfg.State, receiptDir, runsFile))
	if err != nil || st.Size() != keptRuns*slotSize {
		t.Errorf("size %d, %v", st.Size(), err)
	}
}

// Whoever has the SSH key, or the dispatch key and no good order, cannot push runs out of the trail.
func TestRefusalsDoNotWashRunsOut(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 5)
	before, kept := w.snapshot(), told(w.exported())
	for i := range keptRuns + 1 {
		bend := []func(*plan){
			func(p *plan) { p.By = []signing.Signer{newSigner(t)} },
			func(p *plan) { p.Order.Fence = 1 },
			func(p *plan) { p.Env = []byte("junk") },
		}[i%3]
		if r, _ := w.order(signing.PhaseJoin, noop, "uid-1", 6, bend); r.Outcome != signing.OutcomeRefused {
			t.Fatalf("not refused: %+v", r)
		}
	}
	if got := told(w.exported()); got != kept {
		t.Errorf("kept\n%swant\n%s", got, kept)
	}
	if w.snapshot() != before {
		t.Error("a refusal changed the state")
	}
}

// A write of a kept run that stops after any byte is none.
func TestTornReceipt(t *testing.T) {
	d := openTestDir(t)
	trail, err := openTrail(d)
	if err != nil {
		t.Fatal(err)
	}
	defer trail.close()
	older := keptRun{Seq: 7, Order: json.RawMessage(`{"a":"older order"}`), Receipt: json.RawMessage(`{"b":"older"}`)}
	newer := keptRun{Seq: 7 + keptRuns, Order: json.RawMessage(`{"a":"newer"}`), Receipt: json.RawMessage(`{"b":"newer receipt"}`)}
	if err := trail.write(older); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(d.path, receiptDir, runsFile)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := trail.write(newer); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, last := -1, 0
	for i := range after {
		if after[i] != before[i] {
			if last = i; first < 0 {
				first = i
			}
		}
	}
	whole := 0
	for cut := first; cut <= last+1; cut++ {
		if err := os.WriteFile(path, append(bytes.Clone(after[:cut]), before[cut:]...), 0o600); err != nil {
			t.Fatal(err)
		}
		runs := trail.all()
		if len(runs) == 0 {
			continue
		}
		r := runs[0]
		old := r.Seq == older.Seq && bytes.Equal(r.Order, older.Order) && bytes.Equal(r.Receipt, older.Receipt) && cut == first
		new := r.Seq == newer.Seq && bytes.Equal(r.Order, newer.Order) && bytes.Equal(r.Receipt, newer.Receipt) && cut == last+1
		if len(runs) != 1 || !old && !new {
			t.Fatalf("cut at %d of %d: %d runs, %+v", cut-first, last-first, len(runs), r)
		}
		whole++
	}
	if whole != 2 {
		t.Errorf("%d of the cuts leave a run, want the first and the last", whole)
	}
}

// A run whose place is lost, whole or in part, comes back from the state file with the next run.
func TestAMissingReceiptIsWrittenByTheNextRun(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, path string) error{
		"its slot is garbage": func(_ *testing.T, path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 100), 2*slotSize+30)
			return errors.Join(err, f.Close())
		},
		"its slot is torn": func(_ *testing.T, path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(make([]byte, slotSize-200), 2*slotSize+200)
			return errors.Join(err, f.Close())
		},
		"the file is cut short": func(_ *testing.T, path string) error { return os.Truncate(path, 2*slotSize+100) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "install: true", "join: "+noop, "leave: "+noop)
			w.mustRun(signing.PhaseInstall, "true", "uid-1", 1)
			w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
			if err := harm(t, filepath.Join(w.cfg.State, receiptDir, runsFile)); err != nil {
				t.Fatal(err)
			}
			const both = "1 install uid-1 ok\n2 join uid-1 ok\n"
			if got := told(w.exported()); got != both {
				t.Errorf("before the next run, exported\n%s", got)
			}
			w.mustRun(signing.PhaseLeave, noop, "uid-1", 1)
			if got := told(w.exported()); got != both+"3 leave uid-1 ok\n" {
				t.Errorf("after the next run, exported\n%s", got)
			}
		})
	}
}

// What is in the place of a run that was never written is older than what is kept.
func TestARunThatWasNeverWrittenIsMissing(t *testing.T) {
	d := openTestDir(t)
	trail, err := openTrail(d)
	if err != nil {
		t.Fatal(err)
	}
	defer trail.close()
	for seq := uint64(1); seq <= keptRuns+10; seq++ {
		if seq == keptRuns+3 {
			continue
		}
		if err := trail.write(keptRun{Seq: seq, Order: json.RawMessage("{}"), Receipt: json.RawMessage("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	runs := trail.all()
	for i, run := range runs {
		want := uint64(11 + i)
		if want >= keptRuns+3 {
			want++
		}
		if run.Seq != want {
			t.Fatalf("run %d has number %d, want %d", i, run.Seq, want)
		}
	}
	if len(runs) != keptRuns-1 {
		t.Errorf("%d runs", len(runs))
	}
}

// What only root can do to the trail, and a disk that gives it no room, keeps no run from being recorded and no host
// from being left.
func TestATrailThatCannotBeWrittenHindersNoRun(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a file in its place": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a link in its place": func(path string) error { return os.Symlink("/tmp", path) },
		"others may enter it": func(path string) error { return os.Mkdir(path, 0o755) },
		"a directory for the file": func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Mkdir(filepath.Join(path, runsFile), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "join: "+noop, "leave: "+noop)
			w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
			w.swap(receiptDir, put)
			w.mustRun(signing.PhaseLeave, noop, "uid-1", 1)
			rec, err := readState(w)
			if err != nil || rec.Run.State != signing.RunFinished || rec.Run.Seq != 2 || rec.Claim.UID != "" {
				t.Errorf("state %+v, %v", rec, err)
			}
			if !strings.Contains(w.logged(), "kpssh-shim: error: receipts: ") {
				t.Errorf("nothing in the log: %s", w.logged())
			}
			// What the state file holds is in the trail again as soon as there is one.
			w.swap(receiptDir, func(string) error { return nil })
			w.mustRun(signing.PhaseJoin, noop, "uid-2", 2)
			if got := told(w.exported()); got != "2 leave uid-1 ok\n3 join uid-2 ok\n" {
				t.Errorf("exported\n%s", got)
			}
		})
	}
}

// An interrupted run has one receipt, whether it is collected or exported.
func TestAnInterruptedRunIsKept(t *testing.T) {
	script, marker := marking(t, "read -r _ < $KPSSH_MARK")
	w := newWorld(t, "join: "+script, "leave: "+noop)
	c := w.child()
	c.readHello()
	p := c.plan(signing.PhaseJoin, script, "uid-1", 1)
	p.Params["KPSSH_MARK"] = newGate(t).path
	c.submit(p)
	eventually(t, "the script", func() bool { return runs(t, marker) == 1 })
	h, err := Open(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := h.printRuns(t.Context(), &table); err != nil {
		t.Fatal(err)
	}
	h.Close()
	if !strings.Contains(table.String(), "running") || len(w.exported()) != 0 {
		t.Errorf("while it runs: %s", table.String())
	}
	_ = c.cmd.Process.Kill()
	c.wait()
	collecting := w.connect()
	collecting.write(wire.Collect, []byte(collecting.hello.LastRun.Order))
	_, collected, err := collecting.r.Next()
	if err != nil {
		t.Fatal(err)
	}
	w.mustRun(signing.PhaseLeave, noop, "uid-1", 1)
	records := w.exported()
	if got := told(records); got != "1 join uid-1 interrupted\n2 leave uid-1 ok\n" {
		t.Fatalf("exported\n%s", got)
	}
	if got, want := payloadDigest(t, records[0].Receipt), payloadDigest(t, collected); got != want {
		t.Error("the receipt that was kept is not the one that was collected")
	}
}

// payloadDigest is of what is signed: no two signatures of P-256 are alike.
func payloadDigest(t *testing.T, envelope []byte) string {
	t.Helper()
	digest, err := signing.PayloadDigest(envelope)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// Death in the middle of catching up, and again in the next attempt, loses nothing either.
func TestDeathWhileCatchingUp(t *testing.T) {
	for _, step := range []string{"receipt write", "receipt out", "receipt done"} {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t, "join: "+noop)
			die := func(fence int64) {
				t.Helper()
				c := w.child(func(cfg *childConfig, _ *exec.Cmd) { cfg.DieAt, cfg.DieNth = step, 1 })
				c.readHello()
				c.submit(c.plan(signing.PhaseJoin, noop, "uid-1", fence))
				_, _, _ = c.read()
				if code := c.wait(); code != -1 {
					t.Fatalf("exit %d, not killed", code)
				}
			}
			w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
			w.swap(receiptDir, func(string) error { return nil })
			die(2)
			die(3)
			die(4)
			w.mustRun(signing.PhaseJoin, noop, "uid-1", 5)
			for i, r := range w.exported() {
				if r.Seq != uint64(i+1) || r.Outcome != string(signing.OutcomeOK) {
					t.Fatalf("exported\n%s", told(w.exported()))
				}
			}
		})
	}
}

// Numbers go on where a shim that did not count, or a lost state file, left them.
func TestNumbersGoOn(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	rec, err := readState(w)
	if err != nil {
		t.Fatal(err)
	}
	w.swap(receiptDir, func(string) error { return nil })
	rec.Run.Seq, rec.Run.Order = 0, nil // as a shim that did not count wrote it
	h, err := Open(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	store, _, err := openSlots(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.write(rec); err != nil {
		t.Fatal(err)
	}
	store.close()
	if got := told(w.exported()); got != "" {
		t.Errorf("exported\n%s", got)
	}
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 2)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 3)
	w.swap(stateFile, func(string) error { return nil })
	w.mustRun(signing.PhaseJoin, noop, "uid-2", 4)
	if got := told(w.exported()); got != "1 join uid-1 ok\n2 join uid-1 ok\n3 join uid-2 ok\n" {
		t.Errorf("exported\n%s", got)
	}
}

// An order may be as large as it gets, and spelled as badly: its run still has an end in the state file.
func TestTheLargestOrderLeavesRoomForItsReceipt(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	c := w.connect()
	p := c.plan(signing.PhaseJoin, noop, strings.Repeat("u", 128), 1)
	p.Bind(t, c.hello.Challenge)
	env := sign(w.T, &p.Order, p.By...)
	const limit = 8 << 10
	padding := limit - len(env) - len(`"x":"",`)
	p.Env = append([]byte(`{"x":"`+strings.Repeat("<", padding)+`",`), env[1:]...)
	if len(p.Env) != limit {
		t.Fatalf("order of %d bytes", len(p.Env))
	}
	c.submit(p)
	if r, _ := c.finish(); r.Outcome != signing.OutcomeOK {
		t.Fatalf("%+v; log %s", r, w.logged())
	}
	_ = c.end()
	rec, err := readState(w)
	if err != nil || rec.Run.State != signing.RunFinished {
		t.Errorf("state %+v, %v", rec, err)
	}
	if records := w.exported(); len(records) != 1 || !bytes.Equal(records[0].Order, p.Env) {
		t.Errorf("exported %d records", len(records))
	}
}

// No secret is in what is kept, nor in what is shown of it.
func TestNoSecretIsKept(t *testing.T) {
	const secret = "canary.0123456789abcdef"
	w := newWorld(t, "join: echo $KPSSH_BOOTSTRAP_TOKEN")
	w.mustRun(signing.PhaseJoin, "echo $KPSSH_BOOTSTRAP_TOKEN", "uid-1", 1, func(p *plan) {
		p.Secrets["KPSSH_BOOTSTRAP_TOKEN"] = secret
	})
	h, err := Open(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var shown bytes.Buffer
	if err := errors.Join(h.Export(t.Context(), &shown), h.printJSON(t.Context(), &shown), h.printRuns(t.Context(), &shown)); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(filepath.Join(w.cfg.State, receiptDir, runsFile))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(kept, []byte(secret)) || strings.Contains(shown.String(), secret) {
		t.Error("the secret is there")
	}
	if !strings.Contains(shown.String(), "tls-bootstrap@1") || !strings.Contains(shown.String(), `"outcome": "ok"`) {
		t.Errorf("shown: %s", shown.String())
	}
}

// A slot that somebody has made up is exported as nothing.
func TestAForgedSlotIsNotExported(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	h, err := Open(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	trail, err := openTrail(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer trail.close()
	forged := sign(w.T, &signing.Receipt{HostID: "x", Outcome: signing.OutcomeRefused, Reason: signing.ReasonBusy}, newSigner(t))
	if err := trail.write(keptRun{Seq: 2, Order: json.RawMessage(`{}`), Receipt: forged}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := h.Export(t.Context(), &out); err == nil || !strings.Contains(err.Error(), "run 2") {
		t.Errorf("got %v", err)
	}
	if bytes.Count(out.Bytes(), []byte("\n")) != 1 {
		t.Errorf("exported %s", out.String())
	}
}

// The command prints what was asked for, and nothing is changed by looking.
func TestTheCommandShowsWhatRan(t *testing.T) {
	w := newWorld(t, "join: exit 3", "leave: kill -9 $$")
	w.order(signing.PhaseJoin, "exit 3", "uid-1", 1)
	w.order(signing.PhaseLeave, "kill -9 $$", "uid-1", 1)
	command := func(args ...string) (code int, out, err string) {
		t.Helper()
		files := map[string]*os.File{}
		for _, name := range []string{"out", "err"} {
			f, err := os.Create(filepath.Join(t.TempDir(), name))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			files[name] = f
		}
		code = receipts(Process{Stdout: files["out"], Stderr: files["err"]}, hostSystem{paths: paths{state: w.cfg.State}}, w.cfg.Build, args)
		read := func(f *os.File) string {
			data, err := os.ReadFile(f.Name())
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		return code, read(files["out"]), read(files["err"])
	}
	before := w.snapshot()
	code, out, _ := command()
	var cells [][]string
	for line := range strings.Lines(out) {
		cells = append(cells, strings.Fields(line))
	}
	digest := func(text string) string { return shortDigest(signing.Digest([]byte(text))) }
	want := [][]string{
		{"RUN", "STARTED", "CLAIM", "PROFILE", "PHASE", "SCRIPT", "OUTCOME", "EXIT"},
		{"1", "2026-01-02T00:00:00Z", "uid-1", "tls-bootstrap@1", "join", digest("exit 3"), "failed", "3"},
		{"2", "2026-01-02T00:00:00Z", "uid-1", "tls-bootstrap@1", "leave", digest("kill -9 $$"), "failed", "SIGKILL"},
	}
	if !slices.EqualFunc(cells, want, slices.Equal) || code != exitOK {
		t.Errorf("exit %d:\n%s", code, out)
	}
	code, out, _ = command("--json")
	var entries []runEntry
	if err := json.Unmarshal([]byte(out), &entries); err != nil || code != exitOK || len(entries) != 2 || entries[1].Run != 2 || entries[0].Receipt.ExitCode != 3 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if code, out, _ = command("--export"); code != exitOK || strings.Count(out, wire.RecordPrefix) != 2 {
		t.Errorf("exit %d: %s", code, out)
	}
	if w.snapshot() != before {
		t.Error("looking changed the state")
	}
	if code, out, _ = command("-h"); code != exitOK || out != receiptsUsage {
		t.Errorf("exit %d: %s", code, out)
	}
	for _, args := range [][]string{{"--json", "--export"}, {"more"}, {"--no-such"}} {
		if code, _, said := command(args...); code != exitUsage || !strings.Contains(said, "usage: ") {
			t.Errorf("%q: exit %d, %s", args, code, said)
		}
	}
	w.swap(hostFile, func(string) error { return nil })
	if code, _, said := command(); code != exitFailed || !strings.Contains(said, "kpssh-shim: error: ") {
		t.Errorf("a host that is not enrolled: exit %d, %s", code, said)
	}
}
