package dispatch_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	profileName = "tls-bootstrap"
	claimA      = "0d7c3ab2-5c1a-4f0e-9a52-6a8f3d9e1c00"
	claimB      = "5f0e9a52-0d7c-4f0e-9a52-6a8f3d9e1c11"
	// canary is a secret: it may be in no text that leaves the dispatcher.
	canary = "abcdef.0123456789abcdef"
)

var scripts = map[signing.Phase][]byte{
	signing.PhaseInstall: []byte("echo install\n"),
	signing.PhaseJoin:    []byte("echo join\n"),
	signing.PhaseLeave:   []byte("echo leave\n"),
}

func parameters() []signing.Parameter {
	return []signing.Parameter{
		{Name: "KPSSH_NODE_NAME", Type: signing.ParamNodeName, Optional: true},
		{Name: "KPSSH_VAR_REGION", Type: signing.ParamString, Optional: true, Pins: nil, MaxLength: 8},
		{Name: "KPSSH_CLUSTER_ENDPOINT", Type: signing.ParamEndpoint, Optional: true},
		{Name: "KPSSH_BOOTSTRAP_TOKEN", Type: signing.ParamString, Optional: true, Secret: true},
	}
}

// newWorld is a cluster whose allowlist holds the three scripts.
func newWorld(t *testing.T) *dispatchtest.World {
	t.Helper()
	w := dispatchtest.NewWorld(t)
	var entries []signing.AllowedScript
	for phase, script := range scripts {
		entries = append(entries, dispatchtest.Script(profileName, "1", phase, script, parameters()...))
	}
	w.Allow(entries...)
	return w
}

func request(phase signing.Phase, claim string, fence int64) dispatch.Request {
	return dispatch.Request{
		Phase: phase, Profile: profileName, Version: "1", Script: scripts[phase], Claim: claim, Fence: fence,
		Parameters: map[string]string{"KPSSH_NODE_NAME": "node-1"}, Timeout: 5 * time.Second,
	}
}

func joinRequest() dispatch.Request {
	r := request(signing.PhaseJoin, claimA, 1)
	r.Secrets = map[string]string{"KPSSH_BOOTSTRAP_TOKEN": canary}
	return r
}

// fast makes a dispatcher whose waits fit into a test.
func fast(o *dispatch.Options) {
	o.CollectInterval = 5 * time.Millisecond
	o.ReceiptMargin = 2 * time.Second
	o.SettleTime = 50 * time.Millisecond
	o.HelloTimeout = 2 * time.Second
}

func mustRun(t *testing.T, d *dispatch.Dispatcher, h *dispatchtest.Host, r dispatch.Request) *dispatch.Result {
	t.Helper()
	result, err := d.Run(t.Context(), h.Dispatch(), r)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// failure is the *Error that a request must end in.
func failure(t *testing.T, err error, class dispatch.Class, reason string) *dispatch.Error {
	t.Helper()
	var e *dispatch.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want class %s", err, class)
	}
	if e.Class != class || e.Reason != reason {
		t.Fatalf("got class %s, reason %q (%v), want %s, %q", e.Class, e.Reason, e, class, reason)
	}
	if strings.ContainsAny(e.Error(), "\n\x1b") {
		t.Errorf("error is not one clean line: %q", e.Error())
	}
	return e
}

// fails is failure for whom that says everything.
func fails(t *testing.T, err error, class dispatch.Class, reason string) {
	t.Helper()
	_ = failure(t, err, class, reason)
}

func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// once is true for the first call only.
func once() func() bool {
	done := false
	return func() bool { was := done; done = true; return !was }
}
