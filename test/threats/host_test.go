//go:build e2e

package threats

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/shimtest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// mark is what most scripts of these tests do: it leaves a line that a test can count.
const mark = "echo run >> /var/lib/marks"

// host is an enrolled host: a box in which the built shim has made an identity.
type host struct {
	*box
	t   testing.TB
	w   *world
	id  string
	key signing.Key
}

// newHost enrols a host whose first root is version first of the world.
func newHost(t testing.TB, w *world) *host {
	t.Helper()
	h := &host{box: newBox(t), t: t, w: w}
	h.write(t, "etc/kpssh/root.json", string(w.Roots[1]))
	out, errs, code := h.command(binaries.shim, "enroll", "--json")
	if code != 0 {
		t.Fatalf("enrolling: exit %d: %s", code, errs)
	}
	var st wire.Statement
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.key, err = signing.ParseKey(st.ReceiptKey); err != nil {
		t.Fatal(err)
	}
	h.id = st.HostID
	return h
}

// stand is the same host once more, in a box of its own and with the state that it has now: tests that do a thing a
// hundred times need not enrol a hundred times.
func (h *host) stand(t testing.TB) *host {
	t.Helper()
	twin := &host{box: newBox(t), t: t, w: h.w, id: h.id, key: h.key}
	for _, name := range []string{"lib", "etc", "run"} {
		if out, err := exec.Command("cp", "-a", h.path(name)+"/.", twin.path(name)+"/").CombinedOutput(); err != nil {
			t.Fatalf("copying: %v: %s", err, out)
		}
	}
	return twin
}

// command runs a program in the box to its end.
func (h *host) command(program string, args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, []string{"PATH=" + os.Getenv("PATH")}
	if err := h.inside(cmd.Start); err != nil {
		h.t.Fatal(err)
	}
	_ = cmd.Wait()
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// marks is how often a script has left its mark.
func (h *host) marks() int { return strings.Count(h.read(h.t, "lib/marks"), "run\n") }

// snapshot is every byte, mode and time of the shim's state.
func (h *host) snapshot() string {
	h.t.Helper()
	return snapshot(h.t, h.path("lib/kpssh"))
}

func snapshot(t testing.TB, state string) string { return shimtest.Snapshot(t, state) }

// forget makes the host drop the scripts that it keeps, so that an order has to bring them.
func (h *host) forget() {
	h.t.Helper()
	kept, err := filepath.Glob(h.path("lib/kpssh/scripts/*"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, file := range kept {
		if err := os.Remove(file); err != nil {
			h.t.Fatal(err)
		}
	}
}

// eventually waits for a condition, however slow the machine is.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// gate is a FIFO that a script waits at until the test lets it go on.
type gate struct {
	t    testing.TB
	path string
	name string // within the box
}

func (h *host) gate() *gate {
	h.t.Helper()
	g := &gate{t: h.t, path: h.path("lib/gate"), name: "/var/lib/gate"}
	if err := unix.Mkfifo(g.path, 0o600); err != nil {
		h.t.Fatal(err)
	}
	return g
}

// open waits for the script and lets it go on.
func (g *gate) open() {
	g.t.Helper()
	f, err := os.OpenFile(g.path, os.O_WRONLY, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("go\n"); err != nil {
		g.t.Fatal(err)
	}
}

// receiptKey is the key that only root on the host can read: what a hostile host signs with.
func (h *host) receiptKey() signing.Signer {
	h.t.Helper()
	block, _ := pem.Decode([]byte(h.read(h.t, "lib/kpssh/receipt.key")))
	if block == nil {
		h.t.Fatal("no receipt key")
	}
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), block.Bytes)
	if err != nil {
		h.t.Fatal(err)
	}
	s, err := signing.NewSigner(private)
	if err != nil {
		h.t.Fatal(err)
	}
	if !s.Public().Equal(h.key) {
		h.t.Fatal("the key on the disk is not the one that the host was enrolled with")
	}
	return s
}

// runState is what the host says of its last run; empty when there was none.
func (h *host) runState() signing.RunState {
	h.t.Helper()
	s := h.open()
	defer s.end()
	if s.hello.LastRun == nil {
		return ""
	}
	return s.hello.LastRun.State
}
