//go:build e2e

package threats

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/shimtest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// session is one session with a root stage, started as systemd starts it for a connection to its socket.
type session struct {
	h     *host
	cmd   *exec.Cmd // nil when the process is traced
	conn  net.Conn
	in    *wire.Reader
	hello *signing.Hello
	log   lockedBuffer
	sent  bytes.Buffer // all that was said, for replays
}

// lockedBuffer collects what a process logs while a test looks at it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is all of it so far.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// open starts a root stage and reads its hello.
func (h *host) open(change ...func(*exec.Cmd)) *session {
	h.t.Helper()
	s := h.start(change...)
	if err := s.greet(); err != nil {
		h.t.Fatalf("hello: %v; log: %s", err, &s.log)
	}
	return s
}

// start starts a root stage.
func (h *host) start(change ...func(*exec.Cmd)) *session {
	h.t.Helper()
	ours, theirs := socketpair(h.t)
	defer theirs.Close()
	s := &session{h: h, conn: ours, in: wire.NewReader(ours)}
	s.cmd = exec.Command(binaries.shim, "root-stage", "--socket")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = theirs, theirs, &s.log, []string{}
	for _, f := range change {
		f(s.cmd)
	}
	if err := h.inside(s.cmd.Start); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func socketpair(t testing.TB) (ours net.Conn, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "ours")
	defer f.Close()
	if ours, err = net.FileConn(f); err != nil {
		t.Fatal(err)
	}
	return ours, os.NewFile(uintptr(fds[1]), "theirs")
}

func (s *session) greet() error {
	return s.in.Hello(func(envelope []byte) (err error) {
		s.hello, err = signing.OpenHello(envelope, s.h.key)
		return err
	})
}

// frame sends one frame. A host that has refused may have hung up: its answer is on the way.
func (s *session) frame(kind wire.Type, payload []byte) {
	_ = wire.Write(io.MultiWriter(&s.sent, s.conn), kind, payload)
}

// raw sends bytes that are no frame.
func (s *session) raw(data []byte) { _, _ = s.conn.Write(data) }

// hangUp ends what the client says and leaves what it hears.
func (s *session) hangUp() { _ = s.conn.(*net.UnixConn).CloseWrite() }

// answer is what a host says to an order.
type answer struct {
	*signing.Receipt
	output string
}

// answered reads output and receipt, and checks the one against the other.
func (s *session) answered() answer {
	s.h.t.Helper()
	a, err := s.read()
	if err != nil {
		s.h.t.Fatalf("reading the answer: %v; log: %s", err, &s.log)
	}
	return a
}

func (s *session) read() (answer, error) {
	r, out, err := shimtest.Answer(s.in, s.h.key)
	return answer{r, out}, err
}

// end hangs up and waits for the process, and returns its exit code: -1 when a signal ended it.
func (s *session) end() int {
	_ = s.conn.Close()
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// plan is an order that an attack bends.
type plan = shimtest.Plan

// plan makes the order that a good controller would make for "phase: text".
func (s *session) plan(script, claim string, fence int64) *plan {
	phase, text := split(script)
	return s.h.w.Plan(s.hello, phase, text, claim, fence)
}

// bind fills in what depends on parameters and secrets, and returns the frames of both.
func (s *session) bind(p *plan) (params, secrets []byte) { return p.Bind(s.h.t, p.Order.Challenge) }

// submit sends a plan.
func (s *session) submit(p *plan) { p.Submit(s.h.t, p.Order.Challenge, s.frame) }

// order orders "phase: text" as a good controller does, and waits for the session to end.
func (h *host) order(script, claim string, fence int64, bend ...func(*session, *plan)) answer {
	h.t.Helper()
	s := h.open()
	p := s.plan(script, claim, fence)
	for _, b := range bend {
		b(s, p)
	}
	if !p.Sent {
		s.submit(p)
	}
	a := s.answered()
	if code, want := s.end(), exitOf(a); code != want {
		h.t.Errorf("exit code %d, want %d; log: %s", code, want, &s.log)
	}
	return a
}

func exitOf(a answer) int {
	if a.Outcome == signing.OutcomeRefused {
		return 125
	}
	return 0
}

// mustRun orders a script, which has to end well.
func (h *host) mustRun(script, claim string, fence int64, bend ...func(*session, *plan)) answer {
	h.t.Helper()
	a := h.order(script, claim, fence, bend...)
	if a.Outcome != signing.OutcomeOK {
		h.t.Fatalf("%.40q: %s %s, output %q", script, a.Outcome, a.Reason, a.output)
	}
	return a
}

// refuses plays an attack and holds against it what "runs nothing" means: one signed refusal with that reason, exit code
// 125, one line in the log, no output, no mark, and the state as it was, byte for byte.
func (h *host) refuses(t testing.TB, want signing.Reason, script, claim string, fence int64, attack func(*session, *plan)) {
	t.Helper()
	before, marks := h.snapshot(), h.marks()
	s := h.open()
	p := s.plan(script, claim, fence)
	attack(s, p)
	if !p.Sent {
		s.submit(p)
	}
	a, err := s.read()
	code := s.end()
	if err != nil {
		t.Errorf("reading the answer: %v; exit %d, log: %s", err, code, &s.log)
		return
	}
	if a.Outcome != signing.OutcomeRefused || a.Reason != want || code != 125 {
		t.Errorf("%s %q, exit %d, want refused, %q, 125; log: %s", a.Outcome, a.Reason, code, want, &s.log)
	}
	lines := s.log.String()
	if strings.Count(lines, "\n") != 1 || !strings.HasPrefix(lines, "kpssh-shim: refused: "+string(want)+": ") {
		t.Errorf("log: %q", lines)
	}
	if strings.Contains(lines, bootstrapToken) {
		t.Errorf("the log tells the secret: %q", lines)
	}
	if h.marks() != marks || a.output != "" {
		t.Errorf("something ran: %q", a.output)
	}
	if after := h.snapshot(); after != before {
		t.Errorf("the state was %s and is %s", before, after)
	}
}

// joined is a host that holds a claim, with fence 5, by a join that has left its mark; it keeps no script, so that a
// plan for another run brings all that an order can bring.
func joined(t testing.TB, w *world) *host {
	t.Helper()
	h := newHost(t, w)
	h.mustRun("join: "+mark, "uid-1", 5)
	h.forget()
	if h.marks() != 1 {
		t.Fatalf("%d runs", h.marks())
	}
	return h
}

// join is the script that joined knows.
const join = "join: " + mark

// full gives a plan a parameter and a secret, so that nothing of an order is empty.
func full(_ *session, p *plan) {
	p.Params["KPSSH_NODE_NAME"] = "node-a"
	p.Secrets[secret] = bootstrapToken
}
