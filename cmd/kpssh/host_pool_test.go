package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

const hostsPath = "/apis/karpenter.dklesev.github.io/v1beta1/namespaces/kpssh-system/sshhosts"

// fakePool is what these verbs see of an API server. What a real one does with them is tried in host_pool_e2e_test.go.
type fakePool struct {
	mu     sync.Mutex
	hosts  map[string]*v1beta1.SSHHost
	claims map[string]types.UID
	// moved is called after each request that wrote, with the lock held: what a controller does then.
	moved  func()
	closed bool // NodeClaims may not be read
	env    *cli.Env
	out    bytes.Buffer
	err    bytes.Buffer
}

func newFakePool(t *testing.T, hosts ...*v1beta1.SSHHost) *fakePool {
	t.Helper()
	f := &fakePool{hosts: map[string]*v1beta1.SSHHost{}, claims: map[string]types.UID{}, moved: func() {}}
	for _, h := range hosts {
		h.CreationTimestamp = metav1.NewTime(time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC))
		f.hosts[h.Name] = h
		if claim := h.Status.ClaimRef; claim != nil {
			f.claims[claim.Name] = claim.UID
		}
	}
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig(server, server.URL, "admin")), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	t.Chdir(t.TempDir()) // without a trust folder
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.env = &cli.Env{
		Prog: "kpssh", Stdout: &f.out, Stderr: &f.err, Getenv: func(string) string { return "" },
		Now: func() time.Time { now = now.Add(time.Nanosecond); return now },
	}
	return f
}

func (f *fakePool) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := func(code int, object any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object) // a client that has gone is not this server's matter
	}
	host := f.hosts[strings.TrimPrefix(r.URL.Path, hostsPath+"/")]
	claim := strings.TrimPrefix(r.URL.Path, "/apis/karpenter.sh/v1/nodeclaims/")
	switch {
	case r.Method == http.MethodGet && r.URL.Path == hostsPath:
		list := v1beta1.SSHHostList{}
		for _, name := range []string{"host-a", "host-b", "host-c"} {
			if h := f.hosts[name]; h != nil {
				list.Items = append(list.Items, *h)
			}
		}
		answer(http.StatusOK, list)
	case r.URL.Path == "/apis/karpenter.sh/v1/nodeclaims" && f.closed:
		answer(http.StatusForbidden, metav1.Status{Message: "nodeclaims is forbidden"})
	case r.URL.Path == "/apis/karpenter.sh/v1/nodeclaims":
		items := []any{}
		for name, uid := range f.claims {
			items = append(items, map[string]any{"metadata": map[string]any{"name": name, "uid": uid}, "status": map[string]any{"nodeName": "node-of-" + name}})
		}
		answer(http.StatusOK, map[string]any{"items": items})
	case host != nil && r.Method == http.MethodGet:
		answer(http.StatusOK, host)
	case host != nil && r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/merge-patch+json":
		var patch struct {
			Metadata struct{ Annotations map[string]*string }
		}
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			answer(http.StatusBadRequest, metav1.Status{Message: err.Error()})
			return
		}
		annotations := maps.Clone(host.Annotations)
		if annotations == nil {
			annotations = map[string]string{}
		}
		for key, value := range patch.Metadata.Annotations {
			if value == nil {
				delete(annotations, key)
			} else {
				annotations[key] = *value
			}
		}
		host.Annotations = annotations
		answer(http.StatusOK, host)
		f.moved()
	case r.Method == http.MethodDelete && f.claims[claim] != "":
		var options metav1.DeleteOptions
		if err := json.NewDecoder(r.Body).Decode(&options); err != nil || options.Preconditions == nil || *options.Preconditions.UID != f.claims[claim] {
			answer(http.StatusConflict, metav1.Status{Message: "the uid is another one"})
			return
		}
		delete(f.claims, claim)
		answer(http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
		f.moved()
	default:
		answer(http.StatusNotFound, metav1.Status{Message: "not found"})
	}
}

// run runs kpssh and returns its exit code.
func (f *fakePool) run(t *testing.T, args ...string) int {
	t.Helper()
	f.out.Reset()
	f.err.Reset()
	return cli.Execute(t.Context(), f.env, commands(), args)
}

func hostIn(name string, state v1beta1.HostState, claim string, annotations map[string]string) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), Annotations: annotations}}
	h.Spec.Address = "10.0.0.1"
	h.Status.State = state
	if claim != "" {
		h.Status.ClaimRef = &v1beta1.ClaimRef{Name: claim, UID: types.UID("uid-of-" + claim)}
	}
	return h
}

func TestDrainParksAndDeletesTheNodeClaim(t *testing.T) {
	host := hostIn("host-a", v1beta1.HostInUse, "claim-a", map[string]string{"mine": "kept"})
	f := newFakePool(t, host, hostIn("host-b", v1beta1.HostInUse, "claim-b", nil))
	if code := f.run(t, "host", "drain", "host-a"); code != 0 {
		t.Fatalf("exit code %d: %s", code, &f.err)
	}
	if !host.InMaintenance() || host.Annotations["mine"] != "kept" {
		t.Errorf("annotations %v", host.Annotations)
	}
	if f.claims["claim-a"] != "" || f.claims["claim-b"] == "" {
		t.Errorf("NodeClaims left: %v", f.claims)
	}
	if !strings.Contains(f.err.String(), "host drain --wait host-a") {
		t.Errorf("it does not say that it is not done: %s", &f.err)
	}
	// Again, and with a reason that somebody wrote: nothing changes.
	host.Annotations[apis.AnnotationMaintenance] = "disk is dying"
	if code := f.run(t, "host", "drain", "host-a"); code != 0 || host.Annotations[apis.AnnotationMaintenance] != "disk is dying" {
		t.Errorf("exit code %d, annotations %v: %s", code, host.Annotations, &f.err)
	}
}

// The NodeClaim of a stale claim is gone, and another one may have its name.
func TestDrainLeavesAnotherNodeClaimOfThatNameAlone(t *testing.T) {
	f := newFakePool(t, hostIn("host-a", v1beta1.HostInUse, "claim-a", nil))
	f.claims["claim-a"] = "another"
	if code := f.run(t, "host", "drain", "host-a"); code != 0 || f.claims["claim-a"] != "another" {
		t.Errorf("exit code %d, NodeClaims %v: %s", code, f.claims, &f.err)
	}
}

func TestDrainWaitsUntilTheHostIsParkedAndOwedNothing(t *testing.T) {
	annotated := map[string]string{apis.AnnotationMaintenance: ""}
	for name, tt := range map[string]struct {
		host    *v1beta1.SSHHost
		moved   func(*v1beta1.SSHHost)
		timeout string
		code    int
		want    string
	}{
		"a free host is parked": {
			host: hostIn("host-a", v1beta1.HostAvailable, "", nil), want: "host-a: out of use",
			moved: func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostMaintenance },
		},
		"a host in use is left": {
			host: hostIn("host-a", v1beta1.HostInUse, "claim-a", nil), want: "host-a: out of use",
			moved: func(h *v1beta1.SSHHost) { h.Status.State, h.Status.ClaimRef = v1beta1.HostMaintenance, nil },
		},
		"it is not said of a host that is in use still": {
			host: hostIn("host-a", v1beta1.HostInUse, "claim-a", nil), timeout: "1ms", code: 1,
			want: "not out of use after 1ms: NodeClaim claim-a holds the host",
		},
		"nor of one that could not be left, for which there is no waiting": {
			host: hostIn("host-a", v1beta1.HostInUse, "claim-a", nil), code: 1, want: "owed a leave: LeavePending: no route to host",
			moved: func(h *v1beta1.SSHHost) {
				h.Status.State, h.Status.ClaimRef = v1beta1.HostMaintenance, nil
				h.Status.Cleanup = &v1beta1.HostCleanup{Reason: v1beta1.ReasonLeavePending, Message: "no route to host"}
			},
		},
		"nor of one that somebody gives back meanwhile": {
			host: hostIn("host-a", v1beta1.HostInUse, "claim-a", annotated), code: 1, want: "given back to the pool",
			moved: func(h *v1beta1.SSHHost) { h.Annotations = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakePool(t, tt.host)
			if tt.moved != nil {
				f.moved = func() {
					if tt.host.Status.ClaimRef == nil || len(f.claims) == 0 {
						tt.moved(tt.host)
					}
				}
			}
			if tt.timeout == "" {
				tt.timeout = "1m"
			}
			if code := f.run(t, "host", "drain", "--wait", "--timeout", tt.timeout, "host-a"); code != tt.code || !strings.Contains(f.err.String(), tt.want) {
				t.Errorf("exit code %d, want %d with %q: %s", code, tt.code, tt.want, &f.err)
			}
		})
	}
}

func TestUndrainAndReset(t *testing.T) {
	host := hostIn("host-a", v1beta1.HostMaintenance, "", map[string]string{apis.AnnotationMaintenance: "", "mine": "kept"})
	f := newFakePool(t, host)
	if code := f.run(t, "host", "reset", "host-a"); code != 0 || !strings.Contains(f.err.String(), "host undrain host-a") {
		t.Errorf("reset of a parked host: exit code %d: %s", code, &f.err)
	}
	first := host.Annotations[apis.AnnotationReset]
	if code := f.run(t, "host", "undrain", "host-a"); code != 0 || host.InMaintenance() || host.Annotations["mine"] != "kept" {
		t.Errorf("undrain: exit code %d, annotations %v: %s", code, host.Annotations, &f.err)
	}
	if code := f.run(t, "host", "reset", "host-a"); code != 0 || first == "" || host.Annotations[apis.AnnotationReset] == first {
		t.Errorf("a second reset: exit code %d, annotations %v after %q: %s", code, host.Annotations, first, &f.err)
	}
	for _, verb := range []string{"drain", "undrain", "reset"} {
		if code := f.run(t, "host", verb, "host-z"); code != 1 || !strings.Contains(f.err.String(), `no SSHHost "host-z" in namespace "kpssh-system"`) {
			t.Errorf("%s of no host: exit code %d: %s", verb, code, &f.err)
		}
		for _, args := range [][]string{{}, {"a", "b"}, {"../nodes/a"}} {
			if code := f.run(t, append([]string{"host", verb}, args...)...); code != 2 {
				t.Errorf("%s %q: exit code %d", verb, args, code)
			}
		}
	}
}

func TestListSaysWhereEachHostIs(t *testing.T) {
	broken := hostIn("host-b", v1beta1.HostUnhealthy, "", nil)
	broken.Status.Cleanup = &v1beta1.HostCleanup{}
	broken.Status.Conditions = append(broken.Status.Conditions, status.Condition{Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonLeavePending})
	parked := map[string]string{apis.AnnotationMaintenance: ""}
	f := newFakePool(t, hostIn("host-a", v1beta1.HostInUse, "claim-a", parked), broken, hostIn("host-c", "", "", nil))
	if code := f.run(t, "host", "list"); code != 0 {
		t.Fatalf("exit code %d: %s", code, &f.err)
	}
	want := `NAME    ADDRESS   PHASE         CLAIM    NODE             REASON                     AGE
host-a  10.0.0.1  InUse,parked  claim-a  node-of-claim-a  -                          3h
host-b  10.0.0.1  Unhealthy     -        -                LeavePending (leave owed)  3h
host-c  10.0.0.1  Pending       -        -                -                          3h
`
	if f.out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &f.out, want)
	}
	f.closed = true
	if code := f.run(t, "host", "list", "-o", "json"); code != 0 || !strings.Contains(f.err.String(), "nodes are not known") {
		t.Errorf("exit code %d: %s", code, &f.err)
	}
	var list hostList
	if err := json.Unmarshal(f.out.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Hosts) != 3 || list.Hosts[0].Claim != "claim-a" || list.Hosts[0].Node != "" || !list.Hosts[0].Parked || !list.Hosts[1].LeaveOwed {
		t.Errorf("%+v", list)
	}
}
