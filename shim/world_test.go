package shim

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/shimtest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// world is a host with all the keys around it, so that a test can play every part.
type world struct {
	*shimtest.Trust
	t   testing.TB
	cfg Config

	mu    sync.Mutex
	log   bytes.Buffer
	clock time.Time
}

// plan is an order that a test bends.
type plan = shimtest.Plan

var issued = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	profile = shimtest.Profile
	year    = 365 * 24 * time.Hour
)

func newSigner(t testing.TB) signing.Signer { return shimtest.NewSigner(t) }

func sign[T signing.Document](t testing.TB, doc *T, by ...signing.Signer) []byte {
	t.Helper()
	return shimtest.Sign(t, doc, by...)
}

// newWorld enrolls a host whose allowlist holds the given scripts, as "phase: text".
func newWorld(t testing.TB, scripts ...string) *world {
	t.Helper()
	var allowed []signing.AllowedScript
	for _, script := range scripts {
		phase, text, _ := strings.Cut(script, ": ")
		allowed = append(allowed, allow(signing.Phase(phase), text))
	}
	w := &world{t: t, Trust: shimtest.NewTrust(t, issued, allowed...), clock: issued.Add(24 * time.Hour)}
	w.cfg = Config{
		State: filepath.Join(tempDir(t), "state"), Build: Build{Version: "v1.0.0"}, Log: w,
		Now: func() time.Time { return w.clock }, BootID: "boot-1",
		Posture:   func() Posture { return Posture{Findings: []string{"shell"}} },
		termGrace: 100 * time.Millisecond,
	}
	if err := MakeIdentity(w.cfg.State, w.Roots[1], false); err != nil {
		t.Fatal(err)
	}
	return w
}

// tempDir is in memory where it can be: the tests write durably a thousand times.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kpssh-shim-test-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// allow is the author's entry for a script.
func allow(phase signing.Phase, text string) signing.AllowedScript {
	return signing.AllowedScript{
		Profile: profile, Version: "1", Phase: phase, Digest: signing.Digest([]byte(text)),
		Parameters: []signing.Parameter{
			{Name: "KPSSH_NODE_NAME", Type: signing.ParamNodeName, Optional: true},
			{Name: "KPSSH_CLUSTER_ENDPOINT", Type: signing.ParamEndpoint, Optional: true, Pins: nil},
			{Name: "KPSSH_MARK", Type: signing.ParamString, Optional: true},
			{Name: "KPSSH_BOOTSTRAP_TOKEN", Type: signing.ParamString, Secret: true, Optional: true},
		},
	}
}

// Write collects the log.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *world) key() signing.Key {
	w.t.Helper()
	h, err := Open(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	defer h.Close()
	return h.ReceiptKey()
}

// client is the controller's end of one session.
type client struct {
	w     *world
	conn  net.Conn
	r     *wire.Reader
	hello *signing.Hello
	sent  bytes.Buffer // everything written, for replays
	ended chan error
}

// connect starts a session of this process over a real socket pair.
func (w *world) connect() *client {
	w.t.Helper()
	ours, theirs := socketPair(w.t)
	c := &client{w: w, conn: ours, r: wire.NewReader(ours), ended: make(chan error, 1)}
	go func() {
		h, err := Open(w.cfg)
		if err == nil {
			err = h.Serve(context.Background(), theirs, theirs)
			h.Close()
		}
		_ = theirs.Close()
		c.ended <- err
	}()
	w.t.Cleanup(func() { _ = ours.Close() })
	c.readHello()
	return c
}

// end waits for the session of connect, and is what it ended with.
func (c *client) end() error { return <-c.ended }

func newReader(conn net.Conn) *wire.Reader { return wire.NewReader(conn) }

func (c *client) readHello() {
	c.w.t.Helper()
	key := c.w.key()
	err := c.r.Hello(func(env []byte) (err error) {
		c.hello, err = signing.OpenHello(env, key)
		return err
	})
	if err != nil {
		c.w.t.Fatalf("hello: %v; log: %s", err, c.w.logged())
	}
}

func (c *client) write(t wire.Type, payload []byte) {
	_ = wire.Write(io.MultiWriter(&c.sent, c.conn), t, payload)
}

// plan makes the order that a good controller would make for a script.
func (c *client) plan(phase signing.Phase, text, claim string, fence int64) *plan {
	return c.w.Plan(c.hello, phase, text, claim, fence)
}

// submit sends a plan.
func (c *client) submit(p *plan) { p.Submit(c.w.t, c.hello.Challenge, c.write) }

// finish reads output and receipt, and checks the one against the other.
func (c *client) finish() (*signing.Receipt, string) {
	c.w.t.Helper()
	r, out, err := c.read()
	if err != nil {
		c.w.t.Fatalf("reading the answer: %v; log: %s", err, c.w.logged())
	}
	return r, out
}

func (c *client) read() (*signing.Receipt, string, error) { return shimtest.Answer(c.r, c.w.key()) }

// order runs a script the way a good controller does.
func (w *world) order(phase signing.Phase, text, claim string, fence int64, bend ...func(*plan)) (*signing.Receipt, string) {
	w.t.Helper()
	c := w.connect()
	p := c.plan(phase, text, claim, fence)
	for _, b := range bend {
		b(p)
	}
	c.submit(p)
	r, out := c.finish()
	_ = c.end()
	return r, out
}

func (w *world) mustRun(phase signing.Phase, text, claim string, fence int64, bend ...func(*plan)) string {
	w.t.Helper()
	r, out := w.order(phase, text, claim, fence, bend...)
	if r.Outcome != signing.OutcomeOK {
		w.t.Fatalf("%s: %+v\n%s\n%s", phase, r, out, w.logged())
	}
	return out
}

func (w *world) collect(order string) (*signing.Receipt, string) {
	w.t.Helper()
	c := w.connect()
	c.write(wire.Collect, []byte(order))
	r, out := c.finish()
	_ = c.end()
	return r, out
}

// snapshot is every byte of the state directory.
func (w *world) snapshot() string {
	w.t.Helper()
	return snapshot(w.t, w.cfg.State)
}

func snapshot(t testing.TB, state string) string { return shimtest.Snapshot(t, state) }

// forget makes the host drop a script that it keeps.
func (w *world) forget(text string) {
	w.t.Helper()
	name := strings.TrimPrefix(signing.Digest([]byte(text)), "sha256:")
	if err := os.Remove(filepath.Join(w.cfg.State, scriptDir, name)); err != nil {
		w.t.Fatal(err)
	}
}

// swap puts something else in the place of a file of the state.
func (w *world) swap(name string, put func(path string) error) {
	w.t.Helper()
	path := filepath.Join(w.cfg.State, name)
	if err := os.RemoveAll(path); err != nil {
		w.t.Fatal(err)
	}
	if err := put(path); err != nil {
		w.t.Fatal(err)
	}
}

// hangUp ends what the client says and leaves what it hears.
func (c *client) hangUp() { _ = c.conn.(*net.UnixConn).CloseWrite() }

func socketPair(t testing.TB) (ours, theirs net.Conn) {
	t.Helper()
	a, b, err := socketpair()
	if err != nil {
		t.Fatal(err)
	}
	return fileConn(t, a), fileConn(t, b)
}

func fileConn(t testing.TB, f *os.File) net.Conn {
	t.Helper()
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
