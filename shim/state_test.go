package shim

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func mustUID() int { return os.Geteuid() }

func openTestDir(t testing.TB) *dir {
	t.Helper()
	path := filepath.Join(tempDir(t), "state")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := openDir(path, mustUID())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d
}

// A write of a slot that stops after any byte leaves the state before it or the state after it.
func TestTornSlotWrite(t *testing.T) {
	old := record{Claim: signing.Claim{UID: "old", Fence: 41}}
	next := record{Claim: signing.Claim{UID: "next", Fence: 42}}
	d := openTestDir(t)
	s, _, err := openSlots(d)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for range 3 { // both slots have been written before
		if err := s.write(old); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(d.path, stateFile)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.write(next); err != nil {
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
	for cut := first; cut <= last+1; cut++ {
		torn := append(bytes.Clone(after[:cut]), before[cut:]...)
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := peekSlots(d)
		want := old
		if cut == last+1 {
			want = next
		}
		if err != nil || got.Claim != want.Claim {
			t.Fatalf("cut at %d of %d: %+v, %v", cut-first, last-first, got.Claim, err)
		}
	}
}

func TestDamagedSlots(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func([]byte)
		want   string // uid, "" when the state is lost
	}{
		"the newer slot is garbage":   {func(b []byte) { copy(b[slotSize:], bytes.Repeat([]byte{0xff}, slotSize)) }, "two"},
		"the older slot is garbage":   {func(b []byte) { copy(b, bytes.Repeat([]byte{0xff}, slotSize)) }, "three"},
		"the newer slot is blank":     {func(b []byte) { clear(b[slotSize:]) }, "two"},
		"a bit of the newer flipped":  {func(b []byte) { b[slotSize+40] ^= 1 }, "two"},
		"a length beyond the slot":    {func(b []byte) { b[slotSize+16] = 0xff }, "two"},
		"both slots are garbage":      {func(b []byte) { clear(b) }, ""},
		"a sequence number is forged": {func(b []byte) { b[8] = 0xff }, "three"},
	} {
		t.Run(name, func(t *testing.T) {
			d := openTestDir(t)
			s, _, err := openSlots(d)
			if err != nil {
				t.Fatal(err)
			}
			for _, uid := range []string{"one", "two", "three"} {
				if err := s.write(record{Claim: signing.Claim{UID: uid}}); err != nil {
					t.Fatal(err)
				}
			}
			s.close()
			path := filepath.Join(d.path, stateFile)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tc.damage(data)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			rec, err := peekSlots(d)
			if tc.want == "" {
				if !errors.Is(err, errStateLost) {
					t.Errorf("got %+v, %v", rec, err)
				}
				return
			}
			if err != nil || rec.Claim.UID != tc.want {
				t.Errorf("got %+v, %v", rec, err)
			}
		})
	}
}

// crash is what a fault hook throws to stop a write where it is.
type crash struct{}

func crashing(f func()) (crashed bool) {
	defer func() {
		if p := recover(); p != nil {
			_, crashed = p.(crash)
			if !crashed {
				panic(p)
			}
		}
	}()
	f()
	return false
}

// A file write that stops between any two steps leaves the old content or the new.
func TestFileWriteStopsBetweenAnyTwoSteps(t *testing.T) {
	for at := 0; ; at++ {
		d := openTestDir(t)
		if err := d.write("file", []byte("old")); err != nil {
			t.Fatal(err)
		}
		n := 0
		d.fault = func(string) {
			if n == at {
				panic(crash{})
			}
			n++
		}
		crashed := crashing(func() {
			if err := d.write("file", []byte("new content")); err != nil {
				t.Fatal(err)
			}
		})
		d.fault = nil
		got, err := d.read("file", 100)
		if err != nil || string(got) != "old" && string(got) != "new content" {
			t.Fatalf("stopped at step %d: %q, %v", at, got, err)
		}
		if err := d.write("file", []byte("third")); err != nil {
			t.Errorf("stopped at step %d, then: %v", at, err)
		}
		if names, err := d.names(); err != nil || len(names) != 1 {
			t.Errorf("stopped at step %d: left %q", at, names)
		}
		if !crashed {
			if at < 5 {
				t.Fatalf("only %d steps", at)
			}
			return
		}
	}
}

// What somebody else could have put there is not the host's state.
func TestOpenRefusesForeignState(t *testing.T) {
	elsewhere := func(t *testing.T, content string) string {
		path := filepath.Join(t.TempDir(), "elsewhere")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cases := map[string]struct {
		change func(t *testing.T, state string) error
		want   signing.Reason
	}{
		"no state": {func(_ *testing.T, s string) error { return os.RemoveAll(s) }, signing.ReasonNotEnrolled},
		"a state without an identity": {func(_ *testing.T, s string) error {
			return os.Remove(filepath.Join(s, hostFile))
		}, signing.ReasonNotEnrolled},
		"a link to the state": {func(t *testing.T, s string) error {
			moved := filepath.Join(filepath.Dir(s), "moved")
			if err := os.Rename(s, moved); err != nil {
				return err
			}
			return os.Symlink(moved, s)
		}, signing.ReasonStateUnwritable},
		"a state that its group may enter": {func(_ *testing.T, s string) error { return os.Chmod(s, 0o710) }, signing.ReasonStateUnwritable},
		"a state that everybody may read":  {func(_ *testing.T, s string) error { return os.Chmod(s, 0o704) }, signing.ReasonStateUnwritable},
		"a file in the place of the state": {func(_ *testing.T, s string) error {
			if err := os.RemoveAll(s); err != nil {
				return err
			}
			return os.WriteFile(s, nil, 0o700)
		}, signing.ReasonStateUnwritable},
	}
	for _, name := range []string{hostFile, keyFile} {
		cases["a link in the place of "+name] = struct {
			change func(t *testing.T, state string) error
			want   signing.Reason
		}{func(t *testing.T, s string) error {
			path := filepath.Join(s, name)
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return errors.Join(os.Remove(path), os.Symlink(elsewhere(t, string(data)), path))
		}, signing.ReasonStateUnwritable}
		cases["a second name of "+name] = struct {
			change func(t *testing.T, state string) error
			want   signing.Reason
		}{func(t *testing.T, s string) error {
			return os.Link(filepath.Join(s, name), filepath.Join(filepath.Dir(s), "second"))
		}, signing.ReasonStateUnwritable}
		cases["a FIFO in the place of "+name] = struct {
			change func(t *testing.T, state string) error
			want   signing.Reason
		}{func(_ *testing.T, s string) error {
			path := filepath.Join(s, name)
			return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600))
		}, signing.ReasonStateUnwritable}
		cases["a directory in the place of "+name] = struct {
			change func(t *testing.T, state string) error
			want   signing.Reason
		}{func(_ *testing.T, s string) error {
			path := filepath.Join(s, name)
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}, signing.ReasonStateUnwritable}
		cases["others may write "+name] = struct {
			change func(t *testing.T, state string) error
			want   signing.Reason
		}{func(_ *testing.T, s string) error { return os.Chmod(filepath.Join(s, name), 0o666) }, signing.ReasonStateUnwritable}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if err := tc.change(t, w.cfg.State); err != nil {
				t.Fatal(err)
			}
			h, err := Open(w.cfg)
			if err == nil {
				h.Close()
			}
			if signing.ReasonOf(err) != tc.want {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// The files that a session opens are judged like those that Open does.
func TestSessionRefusesForeignFiles(t *testing.T) {
	for _, name := range []string{rootFile, allowlistFile, stateFile, runLock, spoolFile} {
		for what, put := range map[string]func(t *testing.T, path string) error{
			"link": func(t *testing.T, path string) error {
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				other := filepath.Join(t.TempDir(), "other")
				return errors.Join(os.WriteFile(other, data, 0o600), os.Remove(path), os.Symlink(other, path))
			},
			"hard link":      func(_ *testing.T, path string) error { return os.Link(path, path+".2") },
			"FIFO":           func(_ *testing.T, path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
			"world-writable": func(_ *testing.T, path string) error { return os.Chmod(path, 0o602) },
		} {
			t.Run(fmt.Sprintf("%s %s", what, name), func(t *testing.T) {
				script, marker := marking(t, "")
				w := newWorld(t, "join: "+script)
				w.mustRun(signing.PhaseJoin, script, "uid-1", 1)
				if err := put(t, filepath.Join(w.cfg.State, name)); err != nil {
					t.Fatal(err)
				}
				h, err := Open(w.cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				ours, theirs := socketPair(t)
				c := &client{w: w, conn: ours, r: newReader(ours), ended: make(chan error, 1)}
				go func() {
					c.ended <- h.Serve(t.Context(), theirs, theirs)
					_ = theirs.Close()
				}()
				if name == runLock || name == spoolFile {
					c.readHello()
					c.submit(c.plan(signing.PhaseJoin, script, "uid-1", 1))
				}
				if err := c.end(); signing.ReasonOf(err) != signing.ReasonStateUnwritable {
					t.Errorf("got %v", err)
				}
				if text, err := io.ReadAll(ours); c.hello == nil && !bytes.HasPrefix(text, []byte("kpssh-shim: refused: state-unwritable: ")) {
					t.Errorf("instead of a hello there is %q, %v", text, err)
				}
				if runs(t, marker) != 1 {
					t.Error("something ran")
				}
			})
		}
	}
}

func TestKeptScriptsAreBounded(t *testing.T) {
	w := newWorld(t)
	h, err := Open(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	script := func(i int) []byte { return []byte(fmt.Sprintf("# %d\n%s", i, strings.Repeat("#", 100<<10))) }
	for i := range 3 * keptScripts {
		h.keepScript(signing.Digest(script(i)), script(i))
	}
	kept := h.scripts()
	if len(kept) == 0 || len(kept) > keptScriptBytes/(100<<10) {
		t.Errorf("%d scripts are kept", len(kept))
	}
	newest := signing.Digest(script(3*keptScripts - 1))
	if !bytes.Equal(h.keptScript(newest), script(3*keptScripts-1)) {
		t.Error("the newest is not among them")
	}
	// One that was damaged is not offered, and replaced when it comes again.
	path := filepath.Join(w.cfg.State, scriptDir, strings.TrimPrefix(newest, "sha256:"))
	if err := os.WriteFile(path, []byte("evil"), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(h.scripts()) != len(kept)-1 || h.keptScript(newest) != nil {
		t.Error("a damaged script is offered")
	}
	h.keepScript(newest, script(3*keptScripts-1))
	if h.keptScript(newest) == nil {
		t.Error("a damaged script is not replaced")
	}
}

func TestLostSpoolStillGivesTheReceipt(t *testing.T) {
	w := newWorld(t, "join: echo something")
	r, _ := w.order(signing.PhaseJoin, "echo something", "uid-1", 1)
	if err := os.WriteFile(filepath.Join(w.cfg.State, spoolFile), make([]byte, keepAll), 0o600); err != nil {
		t.Fatal(err)
	}
	c := w.connect()
	c.write(12, []byte(r.Order))
	kind, payload, err := c.r.Next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := signing.OpenReceipt(payload, w.key())
	if err != nil || got.Outcome != signing.OutcomeOK || got.Output != r.Output {
		t.Errorf("%s: %+v, %v", kind, got, err)
	}
}

func TestEnrollingAgainChangesNothing(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	before := w.snapshot()
	w.NewRoot(func(*signing.Root) {})
	if err := MakeIdentity(w.cfg.State, w.Roots[2], false); err != nil {
		t.Fatal(err)
	}
	if w.snapshot() != before {
		t.Error("the state changed")
	}
}

func TestResetOfTrustKeepsTheClaim(t *testing.T) {
	w := newWorld(t, "join: "+noop)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 5)
	id, key := w.connect().hello.HostID, w.key()
	other := newWorld(t, "join: "+noop)
	if err := MakeIdentity(w.cfg.State, other.Roots[1], true); err != nil {
		t.Fatal(err)
	}
	c := w.connect()
	digest, err := signing.PayloadDigest(other.Roots[1])
	if err != nil {
		t.Fatal(err)
	}
	if c.hello.Root.Digest != digest || c.hello.Allowlist.Version != 0 || c.hello.HostID != id || w.key().ID() != key.ID() ||
		c.hello.Claim != (signing.Claim{UID: "uid-1", Fence: 5}) {
		t.Errorf("hello after it: %+v", c.hello)
	}
	if err := MakeIdentity(w.cfg.State, []byte("{}"), true); err == nil {
		t.Error("something that is no root was taken")
	}
}

// 32 bytes under another label (an ed25519 seed, say) are not taken for a key that nobody enrolled.
func TestReceiptKeyOfAnotherKindIsNotUsed(t *testing.T) {
	w := newWorld(t)
	seed := pem.EncodeToMemory(&pem.Block{Type: "KPSSH RECEIPT KEY", Bytes: bytes.Repeat([]byte{7}, 32)})
	w.swap(keyFile, func(path string) error { return os.WriteFile(path, seed, 0o600) })
	h, err := Open(w.cfg)
	if err == nil {
		h.Close()
	}
	if signing.ReasonOf(err) != signing.ReasonStateUnwritable || !strings.Contains(err.Error(), "enrol the host again") {
		t.Errorf("got %v", err)
	}
	w.swap(keyFile, func(string) error { return nil })
	if err := MakeIdentity(w.cfg.State, w.Roots[1], false); err != nil {
		t.Fatal(err)
	}
	if h, err = Open(w.cfg); err != nil {
		t.Fatal(err)
	}
	h.Close()
}
