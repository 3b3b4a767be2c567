package join_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclaim/join"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const hostID = "kpssh://kpssh-system/host-a"

type fixture struct {
	*controllertest.Env
	t        *testing.T
	machines *controllertest.Machines
	machine  *controllertest.Machine
	join     *join.Controller
}

func adopts(c *v1beta1.SSHNodeClass) { c.Spec.ProviderIDSource = v1beta1.ProviderIDAdopt }

// newFixture has host-a claimed by NodeClaim pool-1, and what the objects add; a class or a NodeClaim among
// them stands in the place of the usual one.
func newFixture(t *testing.T, host *v1beta1.SSHHost, objects ...client.Object) *fixture {
	t.Helper()
	all := append([]client.Object{controllertest.Profile(), controllertest.ClusterInfo(t), host}, objects...)
	if !slices.ContainsFunc(objects, func(o client.Object) bool { _, ok := o.(*v1beta1.SSHNodeClass); return ok }) {
		all = append(all, controllertest.Class())
	}
	if !slices.ContainsFunc(objects, func(o client.Object) bool { _, ok := o.(*karpenterv1.NodeClaim); return ok }) {
		all = append(all, controllertest.NodeClaim("pool-1", hostID))
	}
	f := &fixture{Env: controllertest.New(t, all...), t: t, machines: controllertest.NewMachines()}
	f.machine = f.machines.Machine(host.Name)
	f.restart()
	return f
}

// restart forgets what a process keeps in memory.
func (f *fixture) restart() {
	f.join = join.NewController(join.Options{
		Client: f.Client, Live: f.Client, Hosts: f.NewPool(), Phases: f.Phases(f.machines),
		Tokens: bootstrap.NewTokens(f.Client, f.Client, f.Clock), Turns: membership.NewTurns(),
		Recorder: f.Events, Clock: f.Clock, Namespace: controllertest.Namespace,
	})
}

func (f *fixture) reconcile() (reconcile.Result, error) {
	f.t.Helper()
	return f.join.Reconcile(context.Background(), f.Host("host-a"))
}

func (f *fixture) mustReconcile() reconcile.Result {
	f.t.Helper()
	result, err := f.reconcile()
	if err != nil {
		f.t.Fatal(err)
	}
	return result
}

// register has the kubelet register as join told it, or as changed.
func (f *fixture) register(changes ...func(*corev1.Node)) func(dispatch.Request) *dispatch.Error {
	return func(r dispatch.Request) *dispatch.Error {
		if r.Phase == signing.PhaseJoin {
			node := controllertest.Node(r.Parameters["KPSSH_NODE_NAME"], r.Parameters["KPSSH_PROVIDER_ID"], r.Parameters["KPSSH_NODE_ADDRESS"], changes...)
			if err := f.Client.Create(context.Background(), node); err != nil {
				f.t.Error(err)
			}
		}
		return nil
	}
}

func claimedHost(changes ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	return controllertest.Host("host-a", "10.0.0.1", append([]func(*v1beta1.SSHHost){controllertest.ClaimedBy("pool-1")}, changes...)...)
}

func leaveRequest(host *v1beta1.SSHHost) (reason, message string) {
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionLeaveRequested {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

func TestAColdHostIsInstalledAndJoined(t *testing.T) {
	f := newFixture(t, claimedHost())
	registers := f.register(func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(controllertest.Start) })
	f.machine.Do = func(r dispatch.Request) *dispatch.Error {
		host := f.Host("host-a")
		switch r.Phase {
		case signing.PhaseInstall:
			if host.Status.BootstrapTokenID != "" || f.Tokens() != 0 {
				t.Error("a token was made before install ended")
			}
		case signing.PhaseJoin:
			// AKSFlexNode#273, R51.
			if host.Status.InstalledProfile != "tls-bootstrap@1" {
				t.Errorf("join began with the marker %q", host.Status.InstalledProfile)
			}
			if token := r.Secrets["KPSSH_BOOTSTRAP_TOKEN"]; host.Status.BootstrapTokenID == "" || !strings.HasPrefix(token, host.Status.BootstrapTokenID+".") || f.Tokens() != 1 {
				t.Errorf("join began with the token id %q on record and %d Secrets", host.Status.BootstrapTokenID, f.Tokens())
			}
		}
		return registers(r)
	}
	f.mustReconcile()
	f.mustReconcile()

	if got := f.Host("host-a").Status.State; got != v1beta1.HostInUse {
		t.Errorf("state = %q", got)
	}
	want := []dispatch.Request{
		{Phase: signing.PhaseInstall, Profile: "tls-bootstrap", Version: "1", Script: []byte("echo install\n"), Claim: "uid-kube-system.uid-pool-1", EarlierClaim: "uid-pool-1", ClaimName: "pool-1", Fence: 1, Timeout: 10 * time.Minute, Secrets: map[string]string{}},
		{Phase: signing.PhaseJoin, Profile: "tls-bootstrap", Version: "1", Script: []byte("echo join\n"), Claim: "uid-kube-system.uid-pool-1", EarlierClaim: "uid-pool-1", ClaimName: "pool-1", Fence: 1, Timeout: 5 * time.Minute, MaxClockSkew: time.Minute},
	}
	ignored := cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Parameters" || p.String() == "Secrets" }, cmp.Ignore())
	if diff := cmp.Diff(want, f.machine.Requests, ignored); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	for _, r := range f.machine.Requests {
		for name, value := range map[string]string{
			"KPSSH_NODE_NAME": "pool-1", "KPSSH_PROVIDER_ID": hostID, "KPSSH_NODE_ADDRESS": "10.0.0.1",
			"KPSSH_CLUSTER_ENDPOINT": "https://10.0.0.100:6443", "KPSSH_TAINTS": "karpenter.sh/unregistered:NoExecute",
			"KPSSH_NODE_LABELS": "karpenter.sh/nodepool=pool,team=blue", "KPSSH_VAR_MIRROR": "m.example",
		} {
			if r.Parameters[name] != value {
				t.Errorf("%s: %s = %q, want %q", r.Phase, name, r.Parameters[name], value)
			}
		}
	}
}

func TestWhatHasRunIsNotRunAgain(t *testing.T) {
	t.Run("install, on a host that carries the marker", func(t *testing.T) {
		f := newFixture(t, claimedHost(func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "tls-bootstrap@1" }))
		f.machine.Do = f.register()
		f.mustReconcile()
		if f.machine.Runs[signing.PhaseInstall] != 0 || f.machine.Runs[signing.PhaseJoin] != 1 {
			t.Errorf("runs = %v", f.machine.Runs)
		}
	})
	t.Run("join, while its node is awaited", func(t *testing.T) {
		f := newFixture(t, claimedHost())
		for range 3 {
			if f.mustReconcile().RequeueAfter == 0 {
				t.Error("the node is not looked for again")
			}
		}
		f.restart()
		f.mustReconcile()
		if f.machine.Runs[signing.PhaseInstall] != 1 || f.machine.Runs[signing.PhaseJoin] != 1 {
			t.Errorf("runs = %v", f.machine.Runs)
		}
	})
	t.Run("anything, once the node is there", func(t *testing.T) {
		f := newFixture(t, claimedHost(), controllertest.Node("pool-1", hostID, "10.0.0.1"))
		f.mustReconcile()
		if len(f.machine.Requests) != 0 || f.Host("host-a").Status.State != v1beta1.HostInUse {
			t.Errorf("runs = %v, state %q", f.machine.Runs, f.Host("host-a").Status.State)
		}
	})
}

func TestNothingRunsForANodeClaimThatIsNotToHaveTheHost(t *testing.T) {
	tests := map[string]*karpenterv1.NodeClaim{
		"it has no provider id yet":       controllertest.NodeClaim("pool-1", ""),
		"its provider id is another host": controllertest.NodeClaim("pool-1", "kpssh://kpssh-system/host-b"),
		"it is another of the same name":  controllertest.NodeClaim("pool-1", hostID, func(n *karpenterv1.NodeClaim) { n.UID = "another" }),
		"it is gone":                      controllertest.NodeClaim("pool-2", hostID),
		"it is being deleted": controllertest.NodeClaim("pool-1", hostID, func(n *karpenterv1.NodeClaim) {
			n.Finalizers = []string{"karpenter.sh/termination"}
			n.DeletionTimestamp = &metav1.Time{Time: controllertest.Start}
		}),
	}
	for name, nodeClaim := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, claimedHost(), nodeClaim)
			f.mustReconcile()
			if len(f.machine.Requests) != 0 || f.Host("host-a").Status.State != v1beta1.HostClaimed || f.Tokens() != 0 {
				t.Errorf("runs = %v, state %q, %d tokens", f.machine.Runs, f.Host("host-a").Status.State, f.Tokens())
			}
		})
	}
}

func TestAHostThatTheNodeClaimDoesNotNameYetIsNotForgotten(t *testing.T) {
	f := newFixture(t, claimedHost(), controllertest.NodeClaim("pool-1", ""))
	if result := f.mustReconcile(); result.RequeueAfter == 0 {
		t.Error("only an event would bring it back")
	}
}

func TestWhatBecomesOfTheNodeClaimDuringInstallIsSeenBeforeJoin(t *testing.T) {
	for name, change := range map[string]func(*fixture) error{
		"it is deleted": func(f *fixture) error { return f.Client.Delete(context.Background(), f.NodeClaim("pool-1")) },
		// Two controllers claimed for it at once, and the other was the last to say where its node is to be.
		"it is given to another host": func(f *fixture) error {
			nodeClaim := f.NodeClaim("pool-1")
			nodeClaim.Status.ProviderID = "kpssh://kpssh-system/host-b"
			return f.Client.Status().Update(context.Background(), nodeClaim)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, claimedHost())
			f.machine.Do = func(dispatch.Request) *dispatch.Error {
				if err := change(f); err != nil {
					t.Error(err)
				}
				return nil
			}
			f.mustReconcile()
			if f.machine.Runs[signing.PhaseInstall] != 1 || f.machine.Runs[signing.PhaseJoin] != 0 || f.Tokens() != 0 {
				t.Errorf("runs = %v, %d tokens", f.machine.Runs, f.Tokens())
			}
			if got := f.Host("host-a").Status.InstalledProfile; got != "tls-bootstrap@1" {
				t.Errorf("the install that ended is not on record: %q", got)
			}
		})
	}
}

func TestAdoptTakesOverTheNodesOwnProviderID(t *testing.T) {
	const own = "eks-hybrid:///us-east-1/cluster/mi-0123"
	f := newFixture(t, claimedHost(), controllertest.Class(adopts))
	f.machine.Do = func(r dispatch.Request) *dispatch.Error {
		if r.Parameters["KPSSH_PROVIDER_ID"] != "" {
			t.Errorf("%s was given the provider id %q", r.Phase, r.Parameters["KPSSH_PROVIDER_ID"])
		}
		if r.Phase == signing.PhaseJoin {
			return f.register(func(n *corev1.Node) {
				n.Name, n.Spec.ProviderID = "mi-0123", own
				controllertest.NotReady(n)
				n.CreationTimestamp = metav1.NewTime(controllertest.Start)
			})(r)
		}
		return nil
	}
	// An earlier membership's Node with the same address must not be taken for it.
	f.Create(controllertest.Node("mi-old", "eks-hybrid:///us-east-1/cluster/mi-old", "10.0.0.1", func(n *corev1.Node) {
		n.CreationTimestamp = metav1.NewTime(controllertest.Start.Add(-time.Hour))
	}))
	f.mustReconcile()
	f.mustReconcile()
	if got := f.Host("host-a").Status; got.ProviderID != own || got.State != v1beta1.HostClaimed {
		t.Errorf("host: provider id %q, state %q", got.ProviderID, got.State)
	}
	if got := f.NodeClaim("pool-1").Status.ProviderID; got != own {
		t.Errorf("nodeclaim: provider id %q", got)
	}
	node := f.Node("mi-0123")
	node.Status.Conditions[0].Status = corev1.ConditionTrue
	if err := f.Client.Status().Update(context.Background(), node); err != nil {
		t.Fatal(err)
	}
	f.mustReconcile()
	if got := f.Host("host-a").Status.State; got != v1beta1.HostInUse {
		t.Errorf("state = %q", got)
	}

	// Core writes the provisional id again, from a cache that was stale.
	nodeClaim := f.NodeClaim("pool-1")
	nodeClaim.Status.ProviderID = hostID
	if err := f.Client.Status().Update(context.Background(), nodeClaim); err != nil {
		t.Fatal(err)
	}
	f.mustReconcile()
	if got := f.NodeClaim("pool-1").Status.ProviderID; got != own {
		t.Errorf("nodeclaim: provider id %q after core overwrote it", got)
	}
}

func TestANodeThatIsNotWhatItShouldBeEndsInAReason(t *testing.T) {
	at := func(d time.Duration) func(*corev1.Node) {
		return func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(controllertest.Start.Add(d)) }
	}
	neighbour := controllertest.Host("host-b", "10.0.0.2", controllertest.ClaimedBy("pool-2"), func(h *v1beta1.SSHHost) { h.Status.ProviderID = "eks-hybrid:///mi-2" })
	tests := map[string]struct {
		class *v1beta1.SSHNodeClass
		node  *corev1.Node
		want  string
		event string
	}{
		"another machine has the name (kubeadm#1130, R35)": {
			node: controllertest.Node("pool-1", "kpssh://kpssh-system/host-b", "10.0.0.2", at(-time.Hour)), want: "NodeNameConflict", event: "JoinFailed"},
		"it registered with an id of its own (k0smotron#1309, R43)": {
			node: controllertest.Node("pool-1", "eks-hybrid:///mi-1", "10.0.0.1", at(0)), want: "ProviderIDMismatch", event: "JoinFailed"},
		"it registered without an id": {
			node: controllertest.Node("pool-1", "", "10.0.0.1", at(-2*time.Minute)), want: "ProviderIDMissing", event: "JoinFailed"},
		"it registered under another name": {
			node: controllertest.Node("host-a.example", hostID, "10.0.0.1", at(0)), want: "NodeNameMismatch", event: "JoinFailed"},
		"the id that it brought is another host's": {
			class: controllertest.Class(adopts), node: controllertest.Node("mi-2", "eks-hybrid:///mi-2", "10.0.0.1", at(0)), want: "ProviderIDTaken", event: "AdoptFailed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{neighbour.DeepCopy(), tt.node.DeepCopy()}
			if tt.class != nil {
				objects = append(objects, tt.class.DeepCopy())
			}
			f := newFixture(t, claimedHost(), objects...)
			f.mustReconcile()
			host := f.Host("host-a")
			reason, message := leaveRequest(host)
			if reason != tt.want || !strings.HasPrefix(message, tt.want+": host host-a, join: ") {
				t.Errorf("leave requested for %q: %q", reason, message)
			}
			if f.NodeClaim("pool-1") != nil {
				t.Error("the nodeclaim is still there, so that core does not try elsewhere")
			}
			if len(f.machine.Requests) != 0 {
				t.Errorf("runs = %v", f.machine.Runs)
			}
			for _, object := range []string{"NodeClaim/pool-1", "SSHHost/host-a"} {
				if got := f.Events.Reasons(object); !slices.Equal(got, []string{tt.event}) {
					t.Errorf("events on %s = %v", object, got)
				}
			}
		})
	}
}

func TestANodeWithoutAProviderIDIsGivenAMinute(t *testing.T) {
	f := newFixture(t, claimedHost(), controllertest.Node("pool-1", "", "10.0.0.1"))
	f.mustReconcile()
	if reason, _ := leaveRequest(f.Host("host-a")); reason != "" {
		t.Errorf("given up at once: %s", reason)
	}
}

func TestANameConflictIsFoundLiveBeforeTheScriptRuns(t *testing.T) {
	// The cache of this controller has not seen the other machine's Node.
	f := newFixture(t, claimedHost(), controllertest.Node("pool-1", "kpssh://kpssh-system/host-b", "10.0.0.2"))
	blind := controllertest.New(t, controllertest.Class(), controllertest.Profile(), controllertest.NodeClaim("pool-1", hostID), claimedHost())
	f.join.Client = blind.Client
	f.mustReconcile()
	if f.machine.Runs[signing.PhaseJoin] != 0 {
		t.Error("join ran under the name of another machine's node")
	}
	if reason, _ := leaveRequest(f.Host("host-a")); reason != "NodeNameConflict" {
		t.Errorf("leave requested for %q", reason)
	}
}

func TestFailuresOfPhases(t *testing.T) {
	script := dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 3, Output: "no space left"}
	tests := map[string]struct {
		phase signing.Phase
		err   dispatch.Error
		// wantLeave is the reason for which leave is requested; none means that it is tried again.
		wantLeave string
	}{
		"install fails":                     {signing.PhaseInstall, script, v1beta1.ReasonInstallFailed},
		"join fails":                        {signing.PhaseJoin, script, v1beta1.ReasonJoinFailed},
		"join takes too long":               {signing.PhaseJoin, dispatch.Error{Class: dispatch.Timeout, Reason: dispatch.ReasonDeadline}, v1beta1.ReasonJoinFailed},
		"the host's key changed":            {signing.PhaseInstall, dispatch.Error{Class: dispatch.HostKeyMismatch, Reason: "host-key-mismatch"}, v1beta1.ReasonInstallFailed},
		"the host takes no key of ours":     {signing.PhaseInstall, dispatch.Error{Class: dispatch.AuthRejected, Reason: "auth-rejected"}, v1beta1.ReasonInstallFailed},
		"the host forges its answer":        {signing.PhaseJoin, dispatch.Error{Class: dispatch.Untrusted, Reason: dispatch.ReasonReceiptMismatch}, v1beta1.ReasonJoinFailed},
		"the host cannot write its state":   {signing.PhaseInstall, dispatch.Error{Class: dispatch.Refused, Reason: "state-unwritable"}, v1beta1.ReasonInstallFailed},
		"the script is not signed":          {signing.PhaseInstall, dispatch.Error{Class: dispatch.Config, Reason: "not-allowed"}, v1beta1.ReasonScriptNotSigned},
		"the host does not know our key":    {signing.PhaseJoin, dispatch.Error{Class: dispatch.Refused, Reason: "untrusted"}, v1beta1.ReasonDispatchKeyUnknown},
		"a parameter is outside its schema": {signing.PhaseJoin, dispatch.Error{Class: dispatch.Refused, Reason: "param"}, "Param"},
		"a pinned value differs":            {signing.PhaseJoin, dispatch.Error{Class: dispatch.Refused, Reason: "pin"}, "Pin"},
		"the documents have expired":        {signing.PhaseJoin, dispatch.Error{Class: dispatch.Refused, Reason: "expired"}, v1beta1.ReasonTrustExpired},
		"raw execution is not allowed":      {signing.PhaseInstall, dispatch.Error{Class: dispatch.Config, Reason: dispatch.ReasonRawNotAllowed}, v1beta1.ReasonRawExecDisabled},
		"the host holds another claim":      {signing.PhaseInstall, dispatch.Error{Class: dispatch.StaleClaim, Reason: dispatch.ReasonHostClaimed}, "StaleClaim"},
		"the host does not answer":          {signing.PhaseInstall, dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}, ""},
		"the host is busy with something":   {signing.PhaseJoin, dispatch.Error{Class: dispatch.Busy, Reason: "busy"}, ""},
		"the host has seen a later fence":   {signing.PhaseJoin, dispatch.Error{Class: dispatch.StaleFence, Reason: "stale-fence", HostClaim: signing.Claim{Fence: 7}}, ""},
		"the host lost the run to a reboot": {signing.PhaseJoin, dispatch.Error{Class: dispatch.Unreachable, Reason: dispatch.ReasonInterrupted}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, claimedHost())
			f.machine.Refuse = func(r dispatch.Request) *dispatch.Error {
				if r.Phase != tt.phase {
					return nil
				}
				return &tt.err
			}
			result, err := f.reconcile()
			host := f.Host("host-a")
			reason, message := leaveRequest(host)
			if reason != tt.wantLeave {
				t.Fatalf("leave requested for %q (%s), want %q", reason, message, tt.wantLeave)
			}
			if host.Status.State != v1beta1.HostClaimed {
				t.Errorf("state = %q", host.Status.State)
			}
			if tt.wantLeave == "" {
				if f.NodeClaim("pool-1") == nil || len(f.Events.Reasons("NodeClaim/pool-1")) != 0 || (err == nil && result.RequeueAfter == 0) {
					t.Errorf("not tried again: result %v, error %v, events %s", result, err, f.Events.Text())
				}
				return
			}
			if err != nil || f.NodeClaim("pool-1") != nil {
				t.Errorf("error %v, nodeclaim %v", err, f.NodeClaim("pool-1"))
			}
			if got := f.Events.Reasons("NodeClaim/pool-1"); !slices.Equal(got, []string{"JoinFailed"}) {
				t.Errorf("events = %v", got)
			}
			if !strings.Contains(message, "host host-a, "+string(tt.phase)) {
				t.Errorf("message %q does not name host and phase", message)
			}
		})
	}
}

func TestAHostOutOfReachIsGivenUpAfterAWhile(t *testing.T) {
	f := newFixture(t, claimedHost())
	f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
	if _, err := f.reconcile(); err == nil {
		t.Fatal("no error, so that nobody tries again")
	}
	// raspberrypi/linux#7533, R89: 90 s without Wi-Fi are nothing.
	f.Clock.Step(90 * time.Second)
	if _, err := f.reconcile(); err == nil || f.NodeClaim("pool-1") == nil {
		t.Fatal("given up too early")
	}
	f.Clock.Step(31 * time.Second)
	f.mustReconcile()
	if reason, _ := leaveRequest(f.Host("host-a")); reason != v1beta1.ReasonInstallFailed || f.NodeClaim("pool-1") != nil {
		t.Errorf("leave requested for %q", reason)
	}
}

// raspberrypi/linux#7533, #1342, #3127; RancherOS#2668; R89: a host in use that is out of reach for 90 s, its node not ready
// any more, is neither left nor given up, and nobody is told.
func TestAHostInUseThatIsOutOfReachForAWhileStaysInUse(t *testing.T) {
	f := newFixture(t, claimedHost(controllertest.InState(v1beta1.HostInUse)), controllertest.Node("pool-1", hostID, "10.0.0.1", controllertest.NotReady))
	f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
	for range 3 {
		f.mustReconcile()
		f.Clock.Step(30 * time.Second)
	}
	f.mustReconcile()
	got := f.Host("host-a")
	if reason, _ := leaveRequest(got); reason != "" || got.Status.State != v1beta1.HostInUse || f.NodeClaim("pool-1") == nil {
		t.Errorf("state %q, leave requested for %q", got.Status.State, reason)
	}
	if text := f.Events.Text(); text != "" || len(f.machine.Requests) > 0 {
		t.Errorf("%v ran, told: %s", f.machine.Requests, text)
	}
}

// kubernetes#44702, #61170, R37: a node that advertises another address than its host's is in use all the same, and the
// host says so.
func TestANodeWithAnotherAddressIsSaidToHaveOne(t *testing.T) {
	for address, want := range map[string]metav1.ConditionStatus{"10.0.0.1": metav1.ConditionTrue, "192.168.7.7": metav1.ConditionFalse} {
		f := newFixture(t, claimedHost(), controllertest.Node("pool-1", hostID, address))
		f.mustReconcile()
		got := f.Host("host-a")
		at := slices.IndexFunc(got.Status.Conditions, func(c status.Condition) bool { return c.Type == join.ConditionNodeAddress })
		if at < 0 || got.Status.Conditions[at].Status != want || got.Status.State != v1beta1.HostInUse {
			t.Errorf("InternalIP %s: state %q, %+v", address, got.Status.State, got.Status.Conditions)
			continue
		}
		if c := got.Status.Conditions[at]; want == metav1.ConditionFalse && (c.Reason != "NodeIPMismatch" || !strings.Contains(c.Message, "10.0.0.1")) {
			t.Errorf("%+v", c)
		}
	}
}

func TestAHostThatIsDeletedIsForgotten(t *testing.T) {
	f := newFixture(t, claimedHost())
	f.machine.Refuse = func(dispatch.Request) *dispatch.Error {
		return &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
	}
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(f.Host("host-a"))}
	reconciler := f.join.Reconciler()
	if _, err := reconciler.Reconcile(t.Context(), request); err == nil || f.join.Remembered() != 1 {
		t.Fatalf("%v, remembers %d things", err, f.join.Remembered())
	}
	if err := f.Client.Delete(t.Context(), f.Host("host-a")); err != nil {
		t.Fatal(err)
	}
	if _, err := reconciler.Reconcile(t.Context(), request); err != nil || f.join.Remembered() != 0 {
		t.Errorf("%v, remembers %d things", err, f.join.Remembered())
	}
}

func TestAnAbsenceEndsWithAPhaseThatRan(t *testing.T) {
	f := newFixture(t, claimedHost())
	absent := &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
	f.machine.Probing = absent
	if _, err := f.reconcile(); err == nil {
		t.Fatal("no error")
	}
	f.machine.Probing = nil
	f.Clock.Step(time.Minute)
	f.machine.Do = func(dispatch.Request) *dispatch.Error { // install takes its time, and the host goes away again
		f.Clock.Step(5 * time.Minute)
		f.machine.Probing = absent
		return nil
	}
	if _, err := f.reconcile(); err == nil || f.NodeClaim("pool-1") == nil {
		t.Errorf("given up for an absence that had ended: %v", err)
	}
}

func TestAFenceBehindTheHostsRecoversInOneMoreContact(t *testing.T) {
	f := newFixture(t, claimedHost())
	f.machine.Claim.Fence = 41
	f.machine.Do = f.register()
	f.mustReconcile()
	f.mustReconcile()
	f.mustReconcile()
	if host := f.Host("host-a"); host.Status.State != v1beta1.HostInUse || host.Status.Fence != 42 {
		t.Errorf("state %q, fence %d", host.Status.State, host.Status.Fence)
	}
}

// inUse is a host whose Node is there and Ready.
func inUse(t *testing.T) (*fixture, *corev1.Node) {
	t.Helper()
	node := controllertest.Node("pool-1", hostID, "10.0.0.1")
	f := newFixture(t, claimedHost(controllertest.InState(v1beta1.HostInUse)), node)
	if result := f.mustReconcile(); result.RequeueAfter != 0 {
		t.Errorf("a host in use with its Node is looked at again after %s", result.RequeueAfter)
	}
	return f, node
}

// karpenter#2072, R99: the Node is removed by force, and core waits for it for ever.
func TestAHostInUseWhoseNodeVanishedIsGivenBack(t *testing.T) {
	f, node := inUse(t)
	if err := f.Client.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if result := f.mustReconcile(); result.RequeueAfter != 2*time.Minute || f.NodeClaim("pool-1") == nil {
		t.Fatalf("given up at once, or looked at again after %s", result.RequeueAfter)
	}
	f.Clock.Step(2 * time.Minute)
	f.mustReconcile()
	if reason, _ := leaveRequest(f.Host("host-a")); reason != v1beta1.EventNodeVanished || f.NodeClaim("pool-1") != nil {
		t.Errorf("leave requested for %q, NodeClaim %v", reason, f.NodeClaim("pool-1"))
	}
	for _, object := range []string{"NodeClaim/pool-1", "SSHHost/host-a"} {
		if got := f.Events.Reasons(object); !slices.Equal(got, []string{v1beta1.EventNodeVanished}) {
			t.Errorf("events on %s: %v", object, got)
		}
	}
	if len(f.machine.Requests) != 0 || f.Tokens() != 0 {
		t.Errorf("%d requests to the host and %d tokens for a host that was to be given back", len(f.machine.Requests), f.Tokens())
	}
}

func TestANodeThatCameBackIsNotHeldAgainstTheHost(t *testing.T) {
	f, node := inUse(t)
	for range 2 {
		if err := f.Client.Delete(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		f.mustReconcile()
		f.Clock.Step(90 * time.Second)
		node.ResourceVersion = ""
		if err := f.Client.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		f.mustReconcile()
	}
	if reason, _ := leaveRequest(f.Host("host-a")); reason != "" {
		t.Errorf("leave requested for %q", reason)
	}
}

func TestANodeThatNeverComesIsTheHostsFault(t *testing.T) {
	f := newFixture(t, claimedHost())
	f.mustReconcile()
	f.Clock.Step(13 * time.Minute)
	f.mustReconcile()
	if reason, _ := leaveRequest(f.Host("host-a")); reason != "" {
		t.Fatalf("given up after 13 minutes: %s", reason)
	}
	f.Clock.Step(time.Minute) // core's own limit is 15
	f.mustReconcile()
	reason, message := leaveRequest(f.Host("host-a"))
	if reason != v1beta1.ReasonJoinFailed || !strings.HasPrefix(message, "RegistrationTimeout: host host-a, join: ") {
		t.Errorf("leave requested for %q: %q", reason, message)
	}
}

func TestARawHostIsNotedAsOwedBeforeAnythingRuns(t *testing.T) {
	f := newFixture(t, claimedHost(controllertest.Raw))
	f.machine.Do = func(dispatch.Request) *dispatch.Error {
		if !pool.Owed(f.Host("host-a")) {
			t.Error("a script runs and nothing says that a leave is owed")
		}
		return nil
	}
	f.mustReconcile()
	if f.machine.Runs[signing.PhaseJoin] != 1 {
		t.Errorf("runs = %v", f.machine.Runs)
	}
}

func TestATokenOfAnEarlierClaimIsReplaced(t *testing.T) {
	f := newFixture(t, claimedHost(func(h *v1beta1.SSHHost) { h.Status.BootstrapTokenID = "abc123" }))
	tokens := bootstrap.NewTokens(f.Client, f.Client, f.Clock)
	if _, err := tokens.Ensure(context.Background(), "abc123", bootstrap.Owner{Name: "pool-0", UID: "uid-pool-0"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	f.mustReconcile()
	if got := f.Host("host-a").Status.BootstrapTokenID; got == "abc123" || got == "" || f.Tokens() != 1 {
		t.Errorf("token id %q, %d Secrets", got, f.Tokens())
	}
}

func TestATokenThatAnotherControllerRecordedIsUsed(t *testing.T) {
	f := newFixture(t, claimedHost(func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "tls-bootstrap@1" }))
	other := f.NewPool()
	ref := pool.Ref{Name: "pool-1", UID: "uid-pool-1"}
	raced := false
	hosts := f.join.Hosts
	f.join.Hosts = racing{Hosts: hosts, before: func() {
		if !raced {
			raced = true
			if _, err := other.SetBootstrapToken(context.Background(), f.Host("host-a"), ref, "abc123"); err != nil {
				t.Error(err)
			}
		}
	}}
	f.mustReconcile()
	if got := f.Host("host-a").Status.BootstrapTokenID; got != "abc123" || f.Tokens() != 1 {
		t.Errorf("token id %q, %d Secrets", got, f.Tokens())
	}
	if got := f.machine.Requests[0].Secrets["KPSSH_BOOTSTRAP_TOKEN"]; !strings.HasPrefix(got, "abc123.") {
		t.Error("join was given another token than the one on record")
	}
}

type racing struct {
	join.Hosts
	before func()
}

func (r racing) SetBootstrapToken(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, id string) (*v1beta1.SSHHost, error) {
	r.before()
	return r.Hosts.SetBootstrapToken(ctx, host, ref, id)
}

func TestANodeThatStaysNotReadyIsExplained(t *testing.T) {
	f := newFixture(t, claimedHost(), controllertest.Node("pool-1", hostID, "10.0.0.1", controllertest.NotReady, func(n *corev1.Node) {
		n.Status.Conditions[0].Reason = "KubeletNotReady"
		n.Spec.Taints = []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	}))
	f.mustReconcile()
	if got := f.Events.Text(); got != "" {
		t.Errorf("said at once: %s", got)
	}
	f.Clock.Step(6 * time.Minute)
	f.mustReconcile()
	// hcloud-ccm#611, R39. Where the node is Ready with the taint, core names it: Initialized, KnownEphemeralTaintsExist.
	if got := f.Events.Text(); !strings.Contains(got, "KubeletNotReady") || !strings.Contains(got, "node.cloudprovider.kubernetes.io/uninitialized") {
		t.Errorf("events: %s", got)
	}
}

// karpenter#1049, #1635, #1991; aws#7486; kops#18486; R40: a node that registers without the taint is told of once, with
// what mends it. That startup taints are not lost is core's doing: TestAnUntaintedNode of pkg/operator has core do it.
func TestANodeThatRegistersWithoutTheTaintIsToldOf(t *testing.T) {
	young := func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(controllertest.Start) }
	otherTaint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: karpenterv1.UnregisteredTaintKey, Effect: corev1.TaintEffectNoSchedule}}
	}
	for name, tt := range map[string]struct {
		host  *v1beta1.SSHHost
		node  *corev1.Node
		warns bool
	}{
		"by its provider id":               {claimedHost(), controllertest.Node("pool-1", hostID, "10.0.0.1"), true},
		"by its address":                   {claimedHost(), controllertest.Node("any", "cloud:///1", "10.0.0.1", young), true},
		"by its name":                      {claimedHost(), controllertest.Node("pool-1", "", "10.9.9.9", young), true},
		"a kubelet that registers again":   {claimedHost(controllertest.InState(v1beta1.HostInUse)), controllertest.Node("pool-1", hostID, "10.0.0.1"), true},
		"the key with another effect":      {claimedHost(), controllertest.Node("pool-1", hostID, "10.0.0.1", otherTaint), true},
		"another's node":                   {claimedHost(), controllertest.Node("any", "cloud:///1", "10.9.9.9", young), false},
		"a host that nobody claimed":       {controllertest.Host("host-a", "10.0.0.1"), controllertest.Node("pool-1", hostID, "10.0.0.1"), false},
		"with the taint, before core does": {claimedHost(), controllertest.Node("pool-1", hostID, "10.0.0.1", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{karpenterv1.UnregisteredNoExecuteTaint} }), false},
		"once core has registered it":      {claimedHost(), controllertest.Node("pool-1", hostID, "10.0.0.1", func(n *corev1.Node) { n.Labels[karpenterv1.NodeRegisteredLabelKey] = "true" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tt.host)
			f.join.NewNodes().Create(context.Background(), event.CreateEvent{Object: tt.node}, nil)
			got := f.Events.Text()
			if told := strings.HasPrefix(got, "Warning NodeClaim/pool-1 RegisteredUntainted: ") && strings.Contains(got, "KPSSH_TAINTS") && strings.Contains(got, tt.node.Name); told != tt.warns || !tt.warns && got != "" {
				t.Errorf("told: %q, want a warning: %v", got, tt.warns)
			}
			if strings.Count(got, "\n") > 1 {
				t.Errorf("told more than once: %s", got)
			}
		})
	}
}

func TestNoSecretIsShown(t *testing.T) {
	const canary = "canary-0123456789"
	f := newFixture(t, claimedHost(),
		controllertest.Class(func(c *v1beta1.SSHNodeClass) { c.Spec.JoinSecretRef = &v1beta1.SecretRef{Name: "join"} }),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "join"}, Data: map[string][]byte{"activation-code": []byte(canary)}})
	var token string
	f.machine.Do = func(r dispatch.Request) *dispatch.Error {
		if r.Secrets["KPSSH_SECRET_ACTIVATION_CODE"] != canary {
			t.Errorf("%s was not given the secret", r.Phase)
		}
		if r.Phase == signing.PhaseInstall {
			return nil
		}
		token = r.Secrets["KPSSH_BOOTSTRAP_TOKEN"]
		return &dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 1, Output: "\x1b[31m+ register " + canary + " " + token + "\nfailed"}
	}
	f.mustReconcile()
	_, message := leaveRequest(f.Host("host-a"))
	for where, text := range map[string]string{"events": f.Events.Text(), "condition": message} {
		if text == "" || strings.Contains(text, canary) || strings.Contains(text, token) || strings.Contains(text, token[7:]) {
			t.Errorf("%s: %q", where, text)
		}
		if strings.ContainsAny(text, "\x1b") {
			t.Errorf("%s holds a terminal sequence", where)
		}
	}
}
