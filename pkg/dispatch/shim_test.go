package dispatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// shimHost is a host whose sessions are held by the real shim, with its state in a directory of the
// test and scripts that run as this user.
type shimHost struct {
	t      *testing.T
	server *remotetest.Server
	config shim.Config
	host   dispatch.Host
	dir    string // for scripts to write to

	mu  sync.Mutex
	log bytes.Buffer
}

// Write implements io.Writer for the shim's log.
func (h *shimHost) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.Write(p)
}

func (h *shimHost) logged() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.String()
}

func newShimHost(t *testing.T, w *dispatchtest.World) *shimHost {
	t.Helper()
	h := &shimHost{t: t, dir: t.TempDir()}
	h.config = shim.Config{
		State: filepath.Join(t.TempDir(), "state"), Build: shim.Build{Version: "v1.0.0"}, Log: h, Now: time.Now, BootID: "boot-1",
		Posture: func() shim.Posture { return shim.Posture{} },
	}
	roots, _, err := w.Documents()
	if err != nil {
		t.Fatal(err)
	}
	if err := shim.MakeIdentity(h.config.State, roots[1], false); err != nil {
		t.Fatal(err)
	}
	identity, err := shim.Open(h.config)
	if err != nil {
		t.Fatal(err)
	}
	defer identity.Close()
	h.server = remotetest.New(t, remotetest.Config{Handler: h.serve})
	h.host = dispatch.Host{
		Name: "shim", Target: h.server.Target(remotetest.Key(t)), Mode: dispatch.Verified, HostID: identity.ID(), ReceiptKey: identity.ReceiptKey(),
	}
	return h
}

// serve connects an SSH session with a root stage, as sshd, relay and systemd do.
func (h *shimHost) serve(s *remotetest.Session) int {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 1
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	relay, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return 1
	}
	go func() {
		_, _ = io.Copy(relay, s.Stdin)
		_ = relay.(*net.UnixConn).CloseWrite()
	}()
	code := make(chan int, 1)
	go func() {
		code <- shim.Session(h.config, theirs, theirs, true)
		_ = theirs.Close()
	}()
	_, _ = io.Copy(s.Stdout, relay)
	_ = relay.Close()
	return <-code
}

// file is what a script has written.
func (h *shimHost) file(name string) string {
	data, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		return ""
	}
	return string(data)
}

// allow signs a script and gives the request that runs it.
func (h *shimHost) allow(w *dispatchtest.World, phase signing.Phase, text string) dispatch.Request {
	script := []byte(fmt.Sprintf("cd %q\n%s", h.dir, text))
	w.Allow(dispatchtest.Script(profileName, "1", phase, script, parameters()...))
	r := request(phase, claimA, 1)
	r.Script, r.Timeout = script, 20*time.Second
	return r
}

func slow(o *dispatch.Options) {
	o.CollectInterval = 20 * time.Millisecond
	o.SettleTime = 2 * time.Second
}

func TestRealShimRunsAMembership(t *testing.T) {
	w := newWorld(t)
	h := newShimHost(t, w)
	install := h.allow(w, signing.PhaseInstall, "echo installed | tee -a marks")
	join := h.allow(w, signing.PhaseJoin, `echo "$KPSSH_NODE_NAME ${#KPSSH_BOOTSTRAP_TOKEN}" | tee -a marks; echo $KPSSH_BOOTSTRAP_TOKEN`)
	join.Secrets = map[string]string{"KPSSH_BOOTSTRAP_TOKEN": canary}
	leave := h.allow(w, signing.PhaseLeave, "echo left | tee -a marks")
	d := w.Dispatcher(slow)
	for _, r := range []dispatch.Request{install, join, join, leave} {
		result, err := d.Run(t.Context(), h.host, r)
		if err != nil {
			t.Fatalf("%v; log: %s", err, h.logged())
		}
		if strings.Contains(result.Output, canary) {
			t.Errorf("secret in %q", result.Output)
		}
	}
	if got, want := h.file("marks"), "installed\nnode-1 23\nleft\n"; got != want {
		t.Errorf("scripts did %q, want %q", got, want)
	}
	probe, err := d.Probe(t.Context(), h.host)
	if err != nil {
		t.Fatal(err)
	}
	if probe.Hello.Claim != (signing.Claim{Fence: 1}) || probe.Facts.CPUs < 1 {
		t.Errorf("got %+v", probe)
	}
}

func TestRealShimVerdicts(t *testing.T) {
	w := newWorld(t)
	h := newShimHost(t, w)
	d := w.Dispatcher(slow)
	r := h.allow(w, signing.PhaseInstall, "echo broken >&2; exit 4")
	_, err := d.Run(t.Context(), h.host, r)
	if e := failure(t, err, dispatch.ScriptFailed, dispatch.ReasonExit); e.ExitCode != 4 || e.Output != "broken" {
		t.Errorf("got %+v", e)
	}
	r = h.allow(w, signing.PhaseInstall, "echo begun; sleep 60")
	r.Timeout = time.Second
	_, err = d.Run(t.Context(), h.host, r)
	if e := failure(t, err, dispatch.Timeout, dispatch.ReasonDeadline); e.Output != "begun" {
		t.Errorf("got %+v", e)
	}
	r = h.allow(w, signing.PhaseInstall, "seq -f 'line %.0f' 400000")
	result, err := d.Run(t.Context(), h.host, r)
	if err != nil {
		t.Fatal(err)
	}
	if !result.Receipt.Output.Truncated || !strings.HasSuffix(result.Output, "line 400000") || len(result.Output) > 8<<10 {
		t.Errorf("kept %d bytes: %+v", len(result.Output), result.Receipt.Output)
	}
	foreign := w.Dispatcher(slow, func(o *dispatch.Options) { o.Signer = dispatchtest.NewSigner(t) })
	_, err = foreign.Run(t.Context(), h.host, h.allow(w, signing.PhaseJoin, "echo ran > forged"))
	if e := failure(t, err, dispatch.Refused, string(signing.ReasonUntrusted)); !e.IsConfiguration() {
		t.Error("the host is to blame")
	}
	if h.file("forged") != "" {
		t.Error("an order of an unlisted key ran")
	}
	stale := h.allow(w, signing.PhaseJoin, "true")
	stale.Claim, stale.Fence = claimB, 7
	_, err = d.Run(t.Context(), h.host, stale)
	if e := failure(t, err, dispatch.StaleClaim, dispatch.ReasonHostClaimed); e.HostClaim != (signing.Claim{UID: claimA, Fence: 1}) {
		t.Errorf("got %+v", e.HostClaim)
	}
}

func TestRealShimRunSurvivesItsConnection(t *testing.T) {
	// A leave that cuts its own network (seen live on single-board computers): the verdict is the
	// truth, and there is one run, wherever the cut falls.
	w := newWorld(t)
	for i := range 6 {
		t.Run(fmt.Sprintf("cut %d", i), func(t *testing.T) {
			t.Parallel()
			h := newShimHost(t, w)
			r := h.allow(w, signing.PhaseInstall, fmt.Sprintf("# %d\nfor i in {1..10}; do echo step $i; echo x >> runs; sleep 0.05; done; echo $i > end", i))
			cut := time.AfterFunc(time.Duration(i)*90*time.Millisecond, h.server.Cut)
			defer cut.Stop()
			d := w.Dispatcher(slow)
			result, err := d.Run(t.Context(), h.host, r)
			if errors.As(err, new(*dispatch.Error)) && h.file("runs") == "" {
				// The cut fell before the order: nothing ran, and the controller asks again.
				result, err = d.Run(t.Context(), h.host, r)
			}
			if err != nil {
				t.Fatalf("%v; log: %s", err, h.logged())
			}
			if got := h.file("runs"); len(got) != 20 || !strings.HasSuffix(result.Output, "step 10") {
				t.Errorf("%d steps, output %q", len(got)/2, result.Output)
			}
		})
	}
}

func TestRealShimAndAKilledController(t *testing.T) {
	w := newWorld(t)
	h := newShimHost(t, w)
	r := h.allow(w, signing.PhaseInstall, "echo x >> runs; until [ -e go ]; do sleep 0.02; done; echo done")
	ctx, kill := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := w.Dispatcher(slow).Run(ctx, h.host, r)
		first <- err
	}()
	waitFor(t, "the run to start", func() bool { return h.file("runs") != "" })
	kill()
	fails(t, <-first, dispatch.Unreachable, dispatch.ReasonInterrupted)
	done := make(chan error, 1)
	var result *dispatch.Result
	go func() {
		var err error
		result, err = w.Dispatcher(slow).Run(t.Context(), h.host, r)
		done <- err
	}()
	other := r
	other.Claim, other.Fence = claimB, 9
	_, err := w.Dispatcher(slow).Run(t.Context(), h.host, other)
	fails(t, err, dispatch.Busy, string(signing.ReasonBusy))
	if err := os.WriteFile(filepath.Join(h.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatalf("%v; log: %s", err, h.logged())
	}
	if !result.Reused || result.Output != "done" || h.file("runs") != "x\n" {
		t.Errorf("got %+v after %q", result, h.file("runs"))
	}
}
