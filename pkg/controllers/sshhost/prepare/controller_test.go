package prepare_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclaim/join"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/prepare"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const marker = controllertest.ProfileName + "@1"

type fixture struct {
	*controllertest.Env
	t         *testing.T
	machines  *controllertest.Machines
	pool      *pool.Pool
	inventory *pool.Inventory
	prepare   *prepare.Controller
	workers   int
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	objects = append(objects, controllertest.ClusterInfo(t))
	if !slices.ContainsFunc(objects, func(o client.Object) bool { _, ok := o.(*v1beta1.SSHJoinProfile); return ok }) {
		objects = append(objects, controllertest.Profile())
	}
	f := &fixture{Env: controllertest.New(t, objects...), t: t, machines: controllertest.NewMachines(), workers: 10}
	f.restart()
	return f
}

// restart forgets what a process keeps in memory.
func (f *fixture) restart() {
	f.pool, f.inventory = f.NewInventory()
	f.prepare = prepare.NewController(prepare.Options{
		Client: f.Client, Hosts: f.pool, Inventory: f.inventory, Phases: f.Phases(f.machines), Turns: f.Turns,
		Recorder: f.Events, Clock: f.Clock, Namespace: controllertest.Namespace, Workers: f.workers,
	})
}

func (f *fixture) plan() []string {
	f.t.Helper()
	if err := f.pool.Refresh(context.Background()); err != nil {
		f.t.Fatal(err)
	}
	names, _, err := f.prepare.Plan(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	return names
}

// work plans and prepares what was planned, and returns the hosts.
func (f *fixture) work() []string {
	f.t.Helper()
	names := f.plan()
	for _, name := range names {
		if _, err := f.prepare.Reconcile(context.Background(), f.Host(name)); err != nil {
			f.t.Fatal(err)
		}
	}
	return names
}

// probed does what the probe of a clean host does.
func (f *fixture) probed(names ...string) {
	f.t.Helper()
	for _, name := range names {
		if _, err := f.pool.RecordProbe(context.Background(), f.Host(name), pool.Probe{Generation: 1}); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) phases(name string) (phases []string) {
	for _, r := range f.machines.Machine(name).Requests {
		owner, _ := controllertest.Cluster.Owner(r.Claim)
		phases = append(phases, fmt.Sprintf("%s of %s for %s, fence %d", r.Phase, r.Profile+"@"+r.Version, owner, r.Fence))
	}
	return phases
}

func wants(value string) func(*v1beta1.SSHNodeClass) {
	return func(c *v1beta1.SSHNodeClass) {
		parsed := intstr.Parse(value)
		c.Spec.Prepare = &parsed
		c.StatusConditions().SetTrue(v1beta1.ConditionReady)
	}
}

func class(name, profile string, changes ...func(*v1beta1.SSHNodeClass)) *v1beta1.SSHNodeClass {
	return controllertest.Class(append(changes, func(c *v1beta1.SSHNodeClass) { c.Name, c.Spec.JoinProfileRef.Name = name, profile })...)
}

func profile(name, version string) *v1beta1.SSHJoinProfile {
	return controllertest.Profile(func(p *v1beta1.SSHJoinProfile) { p.Name, p.Spec.Version = name, version })
}

func installed(marker string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = marker }
}

func hosts(names string, changes ...func(*v1beta1.SSHHost)) (out []client.Object) {
	for i, name := range strings.Fields(names) {
		out = append(out, controllertest.Host(name, fmt.Sprintf("10.0.%d.%d", len(changes), i+1), changes...))
	}
	return out
}

func objects(lists ...any) (out []client.Object) {
	for _, list := range lists {
		switch l := list.(type) {
		case []client.Object:
			out = append(out, l...)
		case client.Object:
			out = append(out, l)
		}
	}
	return out
}

func preparing(h *v1beta1.SSHHost) metav1.ConditionStatus {
	for _, c := range h.Status.Conditions {
		if c.Type == v1beta1.ConditionPreparing {
			return c.Status
		}
	}
	return ""
}

// karpenter#749, aws#3798, aws#4354, containers-roadmap#1812, #537 (R82).
func TestWhichHostsArePrepared(t *testing.T) {
	older := func(h *v1beta1.SSHHost) {
		h.CreationTimestamp = metav1.NewTime(controllertest.Start.Add(-time.Hour))
	}
	for name, test := range map[string]struct {
		objects []client.Object
		workers int
		want    []string
	}{
		"none unless a class asks for it": {objects: objects(class("c", "a"), profile("a", "1"), hosts("h1 h2")), want: nil},
		"none for a class that says so":   {objects: objects(class("c", "a", wants("none")), profile("a", "1"), hosts("h1")), want: nil},
		"all that are free": {
			objects: objects(class("c", "a", wants("all")), profile("a", "1"), hosts("h1 h2"), hosts("busy", controllertest.ClaimedBy("n")),
				hosts("sick", controllertest.InState(v1beta1.HostUnhealthy)), hosts("new", controllertest.InState(""))),
			want: []string{"h1", "h2"},
		},
		"no more than a class asks for, those that are prepared among them": {
			objects: objects(class("c", "a", wants("2")), profile("a", "1"), hosts("h1 h2 h3"), hosts("h4", installed("a@1"))), want: []string{"h1"},
		},
		"those of another version again, and first": {
			objects: objects(class("c", "a", wants("2")), profile("a", "2"), hosts("h1 h2"), hosts("h3", installed("a@1"))), want: []string{"h3", "h1"},
		},
		"no more at once than there are workers": {
			objects: objects(class("c", "a", wants("all")), profile("a", "1"), hosts("h1 h2 h3")), workers: 2, want: []string{"h1", "h2"},
		},
		"the oldest first": {
			objects: objects(class("c", "a", wants("1")), profile("a", "1"), hosts("h1"), hosts("h2", older)), want: []string{"h2"},
		},
		"those first that are cheaper, as a claim takes them": {
			objects: objects(class("c", "a", wants("1")), profile("a", "1"), hosts("h1", older), hosts("h2", func(h *v1beta1.SSHHost) {
				h.Spec.Capacity[corev1.ResourceCPU] = resource.MustParse("2")
			})), want: []string{"h2"},
		},
		"not for a class that is not Ready": {
			objects: objects(class("c", "a", wants("all"), func(c *v1beta1.SSHNodeClass) {
				c.StatusConditions().SetFalse(v1beta1.ConditionReady, v1beta1.ReasonScriptNotSigned, "")
			}), profile("a", "1"), hosts("h1")), want: nil,
		},
		"not for a class whose profile is gone": {objects: objects(class("c", "a", wants("all")), profile("b", "1"), hosts("h1")), want: nil},
		"not those that the class does not select": {
			objects: objects(class("c", "a", wants("all"), func(c *v1beta1.SSHNodeClass) {
				c.Spec.HostSelector.MatchLabels = map[string]string{apis.LabelHostClass: "big"}
			}), profile("a", "1"), hosts("h1"), hosts("h2", func(h *v1beta1.SSHHost) { h.Labels = map[string]string{apis.LabelHostClass: "big"} })),
			want: []string{"h2"},
		},
		"not one that has just failed": {
			objects: objects(class("c", "a", wants("all")), profile("a", "1"), hosts("h1", func(h *v1beta1.SSHHost) {
				h.Status.Failures = &v1beta1.HostFailures{Count: 1, Generation: 1, RetryTime: &metav1.Time{Time: controllertest.Start.Add(time.Minute)}}
			})), want: nil,
		},
		"for the first class by name of several": {
			objects: objects(class("c1", "a", wants("all")), class("c2", "b", wants("all")), profile("a", "1"), profile("b", "1"),
				hosts("h1"), hosts("h2", installed("b@1"))), want: []string{"h1"},
		},
		"for the class whose profile it has in another version": {
			objects: objects(class("c1", "a", wants("all")), class("c2", "b", wants("1")), profile("a", "1"), profile("b", "2"),
				hosts("h1", installed("a@1")), hosts("h2", installed("b@1"))), want: []string{"h2"},
		},
		"for another class only what the first has beyond its number": {
			objects: objects(class("c1", "a", wants("1")), class("c2", "b", wants("1")), profile("a", "1"), profile("b", "1"),
				hosts("h1 h2", installed("b@1"))), want: []string{"h2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.objects...)
			if test.workers > 0 {
				f.workers = test.workers
				f.restart()
			}
			if diff := cmp.Diff(test.want, f.plan()); diff != "" {
				t.Errorf("hosts (-want +got):\n%s", diff)
			}
			if again := f.plan(); len(again) > 0 && test.workers == 0 {
				t.Errorf("picked again while under way: %v", again)
			}
		})
	}
}

func TestAHostIsInstalledAndLeftUnderItsOwnClaim(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("all")), hosts("h1 h2"))...)
	f.machines.Machine("h1").Do = func(r dispatch.Request) *dispatch.Error {
		if r.Phase == signing.PhaseInstall && (preparing(f.Host("h1")) != metav1.ConditionTrue || f.Host("h1").Status.State != v1beta1.HostAvailable) {
			t.Errorf("install began on %+v", f.Host("h1").Status)
		}
		return nil
	}
	f.work()
	for _, name := range []string{"h1", "h2"} {
		want := []string{"install of " + marker + " for uid-" + name + ", fence 1", "leave of " + marker + " for uid-" + name + ", fence 1"}
		if diff := cmp.Diff(want, f.phases(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		status := f.Host(name).Status
		if status.InstalledProfile != marker || preparing(f.Host(name)) != metav1.ConditionFalse {
			t.Errorf("%s: %+v", name, status)
		}
		if status.State != v1beta1.HostPending {
			t.Errorf("%s is %s before a probe has found it clean", name, status.State)
		}
	}
	params := f.machines.Machine("h1").Requests[0].Parameters
	for key, want := range map[string]string{
		"KPSSH_NODE_NAME": "h1", "KPSSH_PROVIDER_ID": "kpssh://kpssh-system/h1", "KPSSH_NODE_LABELS": "", "KPSSH_TAINTS": "karpenter.sh/unregistered:NoExecute",
		"KPSSH_VAR_MIRROR": "m.example",
	} {
		if got, ok := params[key]; !ok || got != want {
			t.Errorf("%s = %q", key, got)
		}
	}
	f.probed("h1", "h2")
	if again := f.work(); len(again) > 0 {
		t.Errorf("prepared again: %v", again)
	}
}

// A new version of the profile has prepared hosts prepared again, a few at a time.
func TestANewVersionIsInstalledAheadToo(t *testing.T) {
	f := newFixture(t, objects(profile(controllertest.ProfileName, "2"), controllertest.Class(wants("all")), hosts("h1 h2 h3", installed(marker)))...)
	f.workers = 2
	f.restart()
	if got := f.work(); len(got) != 2 {
		t.Errorf("at once: %v", got)
	}
	if got := f.work(); len(got) != 1 {
		t.Errorf("then: %v", got)
	}
	for _, name := range []string{"h1", "h2", "h3"} {
		if got := f.Host(name).Status.InstalledProfile; got != controllertest.ProfileName+"@2" {
			t.Errorf("%s has %q", name, got)
		}
	}
}

func (f *fixture) joiner() *join.Controller {
	return join.NewController(join.Options{
		Client: f.Client, Live: f.Client, Hosts: f.pool, Phases: f.Phases(f.machines),
		Tokens: bootstrap.NewTokens(f.Client, f.Client, f.Clock), Turns: f.Turns, Recorder: f.Events, Clock: f.Clock, Namespace: controllertest.Namespace,
	})
}

// claim has a NodeClaim claim a host, as core and Create do.
func (f *fixture) claim(name string) *v1beta1.SSHHost {
	f.t.Helper()
	ctx := context.Background()
	nodeClaim := controllertest.NodeClaim(name, "")
	nodeClaim.CreationTimestamp = metav1.NewTime(f.Clock.Now())
	if err := f.Client.Create(ctx, nodeClaim); err != nil {
		f.t.Fatal(err)
	}
	host, err := f.pool.Claim(ctx, pool.Request{Ref: pool.RefOf(nodeClaim), Prefer: marker})
	if err != nil {
		f.t.Fatal(err)
	}
	nodeClaim.Status.ProviderID = host.Status.ProviderID
	if err := f.Client.Status().Update(ctx, nodeClaim); err != nil {
		f.t.Fatal(err)
	}
	return host
}

func (f *fixture) joins(host string) {
	f.t.Helper()
	for range 3 {
		if _, err := f.joiner().Reconcile(context.Background(), f.Host(host)); err != nil {
			f.t.Fatal(err)
		}
	}
}

// karpenter#2920, #2412, #2313, #2349, karpenter-aws#1135 (R68).
func TestAClaimOfAPreparedHostCostsOnlyTheJoin(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("1")), hosts("h1 h2 h3"))...)
	slow := func(r dispatch.Request) *dispatch.Error {
		if r.Phase == signing.PhaseInstall {
			f.Clock.Step(8 * time.Minute)
		}
		return nil
	}
	for _, name := range []string{"h1", "h2", "h3"} {
		f.machines.Machine(name).Do = slow
	}
	f.probed(f.work()...)
	began := f.Clock.Now()
	host := f.claim("pool-1")
	if host.Status.InstalledProfile != marker {
		t.Fatalf("%s was claimed and not the prepared one", host.Name)
	}
	f.joins(host.Name)
	if took := f.Clock.Since(began); took > time.Minute {
		t.Errorf("the join took %s", took)
	}
	want := []string{
		"install of " + marker + " for uid-h1, fence 1", "leave of " + marker + " for uid-h1, fence 1", "join of " + marker + " for uid-pool-1, fence 2",
	}
	if diff := cmp.Diff(want, f.phases(host.Name)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if next := f.plan(); len(next) != 1 {
		t.Errorf("prepared in its place: %v", next)
	}
}

// karpenter#2920, #2412, #2313, #2349, karpenter-aws#1135 (R68): what was installed before the time was up is kept, and
// the next claim takes the same host.
func TestAnInstallThatTookAllTheTimeIsNotLost(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(), hosts("h1 h2 h3"))...)
	host := f.claim("pool-1")
	machine := f.machines.Machine(host.Name)
	machine.Do = func(r dispatch.Request) *dispatch.Error {
		if r.Phase == signing.PhaseInstall {
			f.Clock.Step(14 * time.Minute)
		}
		return nil
	}
	controller := f.joiner()
	for range 2 {
		if _, err := controller.Reconcile(context.Background(), f.Host(host.Name)); err != nil {
			t.Fatal(err)
		}
	}
	now := f.Host(host.Name)
	if pool.HasCondition(now, v1beta1.ConditionLeaveRequested) || f.NodeClaim("pool-1") == nil {
		t.Fatalf("the host is blamed for the time that install took: %+v", now.Status.Conditions)
	}
	// Core deletes the NodeClaim after 15 minutes.
	ctx := context.Background()
	ref := pool.RefOn(now)
	released, err := f.pool.Release(ctx, now, ref, pool.Outcome{State: v1beta1.HostPending, Reason: v1beta1.ReasonReleased})
	if err != nil {
		t.Fatal(err)
	}
	f.probed(released.Name)
	if next := f.claim("pool-2"); next.Name != host.Name {
		t.Errorf("the next claim took %s, %s is prepared", next.Name, host.Name)
	}
}

func TestAHostIsClaimedWhileItIsPrepared(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("all")), hosts("h1"))...)
	f.machines.Machine("h1").Do = func(r dispatch.Request) *dispatch.Error {
		if r.Phase == signing.PhaseInstall {
			f.claim("pool-1")
			// The join of this process waits for its turn.
			if result, err := f.joiner().Reconcile(context.Background(), f.Host("h1")); err != nil || result.RequeueAfter == 0 {
				t.Errorf("join: %v, %v", result, err)
			}
		}
		return nil
	}
	f.work()
	host := f.Host("h1")
	if host.Status.State != v1beta1.HostClaimed || host.Status.InstalledProfile != marker || preparing(host) != metav1.ConditionFalse {
		t.Fatalf("after preparation: %+v", host.Status)
	}
	f.joins("h1")
	want := []string{
		"install of " + marker + " for uid-h1, fence 1", "leave of " + marker + " for uid-h1, fence 1", "join of " + marker + " for uid-pool-1, fence 2",
	}
	if diff := cmp.Diff(want, f.phases("h1")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnInstallThatFailsIsTheHosts(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("all")), hosts("h1"))...)
	f.machines.Machine("h1").Do = func(r dispatch.Request) *dispatch.Error {
		if r.Phase == signing.PhaseInstall {
			return &dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 1}
		}
		return nil
	}
	f.work()
	host := f.Host("h1")
	if host.Status.State != v1beta1.HostUnhealthy || host.Status.InstalledProfile != "" || preparing(host) != metav1.ConditionFalse {
		t.Errorf("after preparation: %+v", host.Status)
	}
	if got := f.machines.Machine("h1").Claim; got.UID != "" {
		t.Errorf("the host still holds %+v", got)
	}
	if got := f.Events.Reasons("SSHHost/h1"); !slices.Contains(got, v1beta1.EventPrepareFailed) {
		t.Errorf("events: %v", got)
	}
	f.probed("h1")
	if again := f.plan(); len(again) > 0 {
		t.Errorf("tried again at once: %v", again)
	}
}

func TestAFaultOfConfigurationIsTheClasss(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("all")), hosts("h1"))...)
	f.machines.Machine("h1").Refuse = func(dispatch.Request) *dispatch.Error {
		return &dispatch.Error{Class: dispatch.Config, Reason: string(signing.ReasonNotAllowed)}
	}
	f.work()
	host := f.Host("h1")
	if host.Status.State != v1beta1.HostPending || pool.Failed(host) {
		t.Errorf("after preparation: %+v", host.Status)
	}
	if got := f.Events.Reasons("SSHNodeClass/" + controllertest.ClassName); !slices.Contains(got, v1beta1.EventPrepareFailed) {
		t.Errorf("events: %v", got)
	}
	f.probed("h1")
	if again := f.plan(); len(again) > 0 {
		t.Errorf("tried again at once: %v", again)
	}
	f.machines.Machine("h1").Refuse = nil
	f.Clock.Step(2 * time.Minute)
	if again := f.work(); len(again) != 1 || f.Host("h1").Status.InstalledProfile != marker {
		t.Errorf("after a while: %v, %+v", again, f.Host("h1").Status)
	}
}

func TestAHostOutOfReachIsLeftAlone(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("all")), hosts("h1"))...)
	f.machines.Machine("h1").Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "Refused"}
	f.work()
	if host := f.Host("h1"); host.Status.State != v1beta1.HostPending || pool.Failed(host) {
		t.Errorf("after preparation: %+v", host.Status)
	}
	f.probed("h1")
	if again := f.plan(); len(again) > 0 {
		t.Errorf("tried again at once: %v", again)
	}
	f.restart()
	if again := f.plan(); len(again) > 0 {
		t.Errorf("tried again at once by the next process: %v", again)
	}
	f.machines.Machine("h1").Probing = nil
	f.Clock.Step(2 * time.Minute)
	if again := f.work(); len(again) != 1 || f.Host("h1").Status.InstalledProfile != marker {
		t.Errorf("after a while: %v, %+v", again, f.Host("h1").Status)
	}
}

func TestWhatCannotBeRecordedHasTheClassWait(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("all")), hosts("h1"))...)
	f.Env.Client = interceptor.NewClient(f.Env.Client, interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			return apierrors.NewInternalError(errors.New("no space left on the disk of etcd"))
		},
	})
	f.restart()
	f.plan()
	if _, err := f.prepare.Reconcile(context.Background(), f.Host("h1")); err == nil {
		t.Fatal("the preparation was begun")
	}
	if again := f.plan(); len(again) > 0 {
		t.Errorf("tried again at once: %v", again)
	}
	f.Clock.Step(time.Minute)
	if again := f.plan(); len(again) != 1 {
		t.Errorf("after a while: %v", again)
	}
}

func TestAHostWithoutTheShimIsNotedAsOwedWhileItIsPrepared(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("all")), hosts("h1", controllertest.Raw))...)
	f.machines.Machine("h1").Do = func(dispatch.Request) *dispatch.Error {
		if !pool.Owed(f.Host("h1")) {
			t.Error("a script ran before the note was there")
		}
		return nil
	}
	f.work()
	if host := f.Host("h1"); pool.Owed(host) || host.Status.InstalledProfile != marker {
		t.Errorf("after preparation: %+v", host.Status)
	}
}

func TestAHostThatIsParkedWhileItIsPreparedStaysParked(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(wants("all")), hosts("h1"))...)
	f.machines.Machine("h1").Do = func(r dispatch.Request) *dispatch.Error {
		if r.Phase == signing.PhaseInstall {
			host := f.Host("h1")
			host.Annotations = map[string]string{apis.AnnotationMaintenance: ""}
			if err := f.Client.Update(context.Background(), host); err != nil {
				t.Error(err)
			}
			if _, err := f.pool.SyncMaintenance(context.Background(), f.Host("h1")); err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	f.work()
	if host := f.Host("h1"); host.Status.State != v1beta1.HostMaintenance || host.Status.InstalledProfile != marker || preparing(host) != metav1.ConditionFalse {
		t.Errorf("after preparation: %+v", host.Status)
	}
}

func TestAPreparationThatNobodyWantsAnyMoreIsEnded(t *testing.T) {
	f := newFixture(t, objects(controllertest.Class(), hosts("h1"))...)
	if _, err := f.pool.BeginPreparation(context.Background(), f.Host("h1"), "other@1"); err != nil {
		t.Fatal(err)
	}
	f.restart()
	f.work()
	if host := f.Host("h1"); preparing(host) != metav1.ConditionFalse || host.Status.State != v1beta1.HostPending {
		t.Errorf("after preparation: %+v", host.Status)
	}
	if got := f.phases("h1"); got != nil {
		t.Errorf("ran %v", got)
	}
}
