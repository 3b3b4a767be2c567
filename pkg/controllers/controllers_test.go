package controllers_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func (w *world) available(p *process, host string) {
	w.t.Helper()
	w.until(p, host+" is Available", func() bool { return w.state(host) == v1beta1.HostAvailable })
}

// joined says whether host-a is in use and nothing is left to do.
func (w *world) joined() bool { return w.state("host-a") == v1beta1.HostInUse && w.Tokens() == 0 }

func TestTwoRoundsOfMembership(t *testing.T) {
	w := newWorld(t, "host-a")
	p := w.start()
	w.available(p, "host-a")
	for round, want := range []map[signing.Phase]int{
		{signing.PhaseInstall: 1, signing.PhaseJoin: 1, signing.PhaseLeave: 1},
		{signing.PhaseInstall: 1, signing.PhaseJoin: 2, signing.PhaseLeave: 2}, // warm
	} {
		w.launch(p, "pool-1")
		w.until(p, "the node is in use", w.joined)
		if node := w.Node("pool-1"); node == nil || node.Spec.ProviderID != "kpssh://kpssh-system/host-a" {
			t.Fatalf("node = %+v", node)
		}
		w.deleteNodeClaim("pool-1")
		w.until(p, "the host is back", func() bool { return w.state("host-a") == v1beta1.HostAvailable && w.NodeClaim("pool-1") == nil })
		if w.Node("pool-1") != nil || w.hosts["host-a"].running() || w.hosts["host-a"].Claim().UID != "" {
			t.Errorf("round %d: something of the membership is left: %s", round, w.describe())
		}
		if diff := cmp.Diff(want, runs(w.hosts["host-a"])); diff != "" {
			t.Errorf("round %d: runs (-want +got):\n%s", round, diff)
		}
	}
	if text := w.Events.Text(); text != "" {
		t.Errorf("events of a good day: %s", text)
	}
}

// TestAProcessThatDiesBetweenAnyTwoSteps kills the process before and after every write to the API server and
// every run of a phase, from the first probe to the host's being Available again, and starts another.
func TestAProcessThatDiesBetweenAnyTwoSteps(t *testing.T) {
	for fatal := 1; ; fatal++ {
		w := newWorld(t, "host-a")
		count, at := 0, ""
		w.crash = func(step string) {
			if count++; count == fatal {
				at = step
				panic(crashed{step})
			}
		}
		p := w.start()
		survive := func(what string, holds func() bool) {
			t.Helper()
			w.untilSurvived(&p, what, holds)
		}
		survive("the host is Available", func() bool { return w.state("host-a") == v1beta1.HostAvailable })
		w.launch(p, "pool-1")
		survive("the node is in use", w.joined)
		w.deleteNodeClaim("pool-1")
		survive("the host is back", func() bool { return w.state("host-a") == v1beta1.HostAvailable && w.NodeClaim("pool-1") == nil })

		want := map[signing.Phase]int{signing.PhaseInstall: 1, signing.PhaseJoin: 1, signing.PhaseLeave: 1}
		if diff := cmp.Diff(want, runs(w.hosts["host-a"])); diff != "" {
			t.Errorf("died %s (step %d): runs (-want +got):\n%s", at, fatal, diff)
		}
		if w.Node("pool-1") != nil || w.Tokens() != 0 || w.hosts["host-a"].running() {
			t.Errorf("died %s (step %d): something is left: %s", at, fatal, w.describe())
		}
		if at == "" {
			if fatal < 20 {
				t.Errorf("only %d steps were seen", fatal)
			}
			t.Logf("died at each of %d steps", fatal-1)
			return
		}
	}
}

// untilSurvived is until, with a new process for one that dies.
func (w *world) untilSurvived(p **process, what string, holds func() bool) {
	w.t.Helper()
	for {
		died := func() (died bool) {
			defer func() {
				if r := recover(); r != nil {
					if _, ok := r.(crashed); !ok {
						panic(r)
					}
					died = true
				}
			}()
			w.until(*p, what, holds)
			return false
		}()
		if !died {
			return
		}
		crash := w.crash
		w.crash = nil
		*p = w.start()
		w.crash = crash
	}
}

// TestTwoControllersAtOnce has two processes that both believe that they lead.
func TestTwoControllersAtOnce(t *testing.T) {
	for range 5 {
		w := newWorld(t, "host-a", "host-b")
		first, second := w.start(), w.start()
		both := func() {
			var wait sync.WaitGroup
			for _, p := range []*process{first, second} {
				wait.Go(func() { p.round() })
			}
			wait.Wait()
			w.core(first)
		}
		settle := func(what string, holds func() bool) {
			t.Helper()
			// Two that make a token each for one claim leave one that no host tells of: it is swept when it is 5 minutes old.
			for range 420 {
				if holds() {
					return
				}
				both()
				w.Clock.Step(time.Second)
			}
			t.Fatalf("never came to be: %s\n%s", what, w.describe())
		}
		settle("both hosts are Available", func() bool {
			return w.state("host-a") == v1beta1.HostAvailable && w.state("host-b") == v1beta1.HostAvailable
		})
		w.launch(first, "pool-1")
		w.launch(second, "pool-2")
		settle("both nodes are in use", func() bool {
			return w.state("host-a") == v1beta1.HostInUse && w.state("host-b") == v1beta1.HostInUse && w.Tokens() == 0
		})
		if a, b := w.Host("host-a").Status.ClaimRef.UID, w.Host("host-b").Status.ClaimRef.UID; a == b {
			t.Errorf("one nodeclaim holds both hosts")
		}
		if w.Node("pool-1") == nil || w.Node("pool-2") == nil {
			t.Error("a node is missing")
		}
		w.deleteNodeClaim("pool-1")
		w.deleteNodeClaim("pool-2")
		settle("both hosts are back", func() bool {
			return w.state("host-a") == v1beta1.HostAvailable && w.state("host-b") == v1beta1.HostAvailable && w.NodeClaim("pool-1") == nil && w.NodeClaim("pool-2") == nil
		})
		for name, m := range w.hosts {
			if m.running() || m.Claim().UID != "" {
				t.Errorf("%s has not been left: %s", name, w.describe())
			}
		}
	}
}

func TestAJoinThatFailsIsTriedElsewhere(t *testing.T) {
	w := newWorld(t, "host-a", "host-b")
	p := w.start()
	w.available(p, "host-a")
	w.available(p, "host-b")
	for _, m := range w.hosts {
		m.exits[signing.PhaseJoin] = 3
	}
	w.launch(p, "pool-1")
	failed := "host-a"
	if w.Host("host-b").Status.ClaimRef != nil {
		failed = "host-b"
	}
	w.until(p, "the nodeclaim is gone", func() bool { return w.NodeClaim("pool-1") == nil })
	if host := w.Host(failed); host.Status.State != v1beta1.HostUnhealthy || host.Status.ClaimRef != nil || w.Tokens() != 0 {
		t.Errorf("the host that failed: %s", w.describe())
	}
	if got := runs(w.hosts[failed]); got[signing.PhaseLeave] != 1 || got[signing.PhaseJoin] != 1 {
		t.Errorf("runs = %v", got)
	}
	for _, object := range []string{"NodeClaim/pool-1", "SSHHost/" + failed} {
		if got := w.Events.Reasons(object); !slices.Equal(got, []string{"JoinFailed"}) {
			t.Errorf("events on %s: %v", object, got)
		}
	}
	if text := w.Events.Text(); !strings.Contains(text, "ScriptFailed: host "+failed+", join: exit status 3") || !strings.Contains(text, "no luck: [redacted]") {
		t.Errorf("events: %s", text)
	}
	w.launch(p, "pool-2")
	if w.Host(failed).Status.ClaimRef != nil {
		t.Error("the next nodeclaim was given the host that had just failed")
	}
	w.until(p, "the host is Available again once a probe finds it well", func() bool {
		w.Clock.Step(10 * time.Second)
		return w.state(failed) == v1beta1.HostAvailable
	})
}

// TestAFaultOfConfigurationIsNoFaultOfAHost goes through what a host or the dispatcher refuse for a reason that
// somebody has to mend in the cluster.
func TestAFaultOfConfigurationIsNoFaultOfAHost(t *testing.T) {
	tests := map[string]struct {
		break_ func(w *world)
		mend   func(w *world)
		want   string
	}{
		"the profile was edited after it was signed": {
			break_: func(w *world) { w.edit("echo edited\n") }, mend: func(w *world) { w.edit("echo join\n") }, want: v1beta1.ReasonScriptNotSigned},
		"the dispatch key is one that root does not list": {
			break_: func(w *world) { w.trust.SetSigner(dispatchtest.NewSigner(w.t)) }, want: v1beta1.ReasonDispatchKeyUnknown},
		"the endpoint is not the pinned one": {
			break_: func(w *world) { w.pin("https://10.0.0.200:6443") }, mend: func(w *world) { w.pin() }, want: "Pin"},
		"a var is not declared": {
			break_: func(w *world) { w.vars(map[string]string{"mirror": "m", "other": "x"}) }, want: "Param"},
		"the documents have expired": {
			break_: func(w *world) { w.expire(true) }, mend: func(w *world) { w.expire(false) }, want: v1beta1.ReasonTrustExpired},
		"the profile is gone": {
			break_: func(w *world) { w.remove(&v1beta1.SSHJoinProfile{}, controllertest.ProfileName) }, want: v1beta1.ReasonProfileNotFound},
		"the cluster's endpoint cannot be found": {
			break_: func(w *world) { w.vanish() }, want: v1beta1.ReasonClusterInfoMissing},
		"the join secret is missing": {
			break_: func(w *world) { w.secret("gone") }, want: v1beta1.ReasonJoinSecretNotFound},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "host-a")
			p := w.start()
			w.available(p, "host-a")
			w.launch(p, "pool-1")
			tt.break_(w)
			p = w.start() // a dispatcher takes its key when it is made
			w.until(p, "the nodeclaim is gone", func() bool {
				if state := w.state("host-a"); state == v1beta1.HostUnhealthy {
					t.Fatalf("the host is blamed: %s", w.describe())
				}
				return w.NodeClaim("pool-1") == nil
			})
			text := w.Events.Text()
			if !strings.Contains(text, "Warning NodeClaim/pool-1 JoinFailed: "+tt.want+": host host-a") {
				t.Errorf("events: %s", text)
			}
			if got := runs(w.hosts["host-a"]); len(got) != 0 && tt.mend == nil {
				t.Errorf("something ran: %v", got)
			}
			w.until(p, "the host is back in the pool", func() bool {
				if state := w.state("host-a"); state == v1beta1.HostUnhealthy {
					t.Fatalf("the host is blamed: %s", w.describe())
				}
				return w.state("host-a") == v1beta1.HostAvailable
			})
		})
	}
}

func TestAForceDeletedNodeClaimIsCleanedUp(t *testing.T) {
	w := newWorld(t, "host-a")
	p := w.start()
	w.available(p, "host-a")
	w.launch(p, "pool-1")
	w.until(p, "the node is in use", w.joined)
	nodeClaim := w.NodeClaim("pool-1")
	nodeClaim.Finalizers = nil
	if err := w.Client.Update(context.Background(), nodeClaim); err != nil {
		t.Fatal(err)
	}
	w.deleteNodeClaim("pool-1")
	node := w.Node("pool-1")
	node.Finalizers = nil // core's, which finds no NodeClaim for it
	if err := w.Client.Update(context.Background(), node); err != nil {
		t.Fatal(err)
	}
	w.until(p, "the host is back", func() bool { return w.state("host-a") == v1beta1.HostAvailable })
	if w.Node("pool-1") != nil || w.hosts["host-a"].running() || w.hosts["host-a"].Claim().UID != "" {
		t.Errorf("something is left: %s", w.describe())
	}
	if got := w.Events.Reasons("SSHHost/host-a"); !slices.Equal(got, []string{"ZombieKubelet", "ZombieLeft"}) {
		t.Errorf("events = %v", got)
	}
}

func TestAHostThatWasOutOfReachAtItsReleaseIsLeftBeforeItIsClaimedAgain(t *testing.T) {
	w := newWorld(t, "host-a")
	p := w.start()
	w.available(p, "host-a")
	w.launch(p, "pool-1")
	w.until(p, "the node is in use", w.joined)
	m := w.hosts["host-a"]
	m.exits[signing.PhaseLeave] = 1
	w.deleteNodeClaim("pool-1")
	w.until(p, "the nodeclaim is gone all the same", func() bool { return w.NodeClaim("pool-1") == nil })
	if got := w.state("host-a"); got != v1beta1.HostUnhealthy {
		t.Errorf("state = %q", got)
	}
	delete(m.exits, signing.PhaseLeave)
	w.until(p, "the debt is settled", func() bool {
		if w.state("host-a") == v1beta1.HostAvailable && m.Claim().UID != "" {
			t.Fatal("the host can be claimed and still holds the old claim")
		}
		w.Clock.Step(10 * time.Second)
		return w.state("host-a") == v1beta1.HostAvailable
	})
	if m.running() {
		t.Error("the kubelet still runs")
	}
}

func TestAHostRebootedWhileWarmStaysOut(t *testing.T) {
	w := newWorld(t, "host-a")
	p := w.start()
	w.available(p, "host-a")
	w.launch(p, "pool-1")
	w.until(p, "the node is in use", w.joined)
	w.deleteNodeClaim("pool-1")
	w.until(p, "the host is back", func() bool { return w.state("host-a") == v1beta1.HostAvailable && w.NodeClaim("pool-1") == nil })
	// A profile whose leave forgets to disable the kubelet.
	m := w.hosts["host-a"]
	m.Reboot()
	m.mu.Lock()
	m.kubelet = true
	m.mu.Unlock()
	w.until(p, "it has been made to leave again", func() bool {
		w.Clock.Step(10 * time.Second)
		return !m.running() && w.state("host-a") == v1beta1.HostAvailable
	})
}

func TestMaintenanceParksAHostAtItsRelease(t *testing.T) {
	w := newWorld(t, "host-a")
	p := w.start()
	w.available(p, "host-a")
	w.launch(p, "pool-1")
	w.until(p, "the node is in use", w.joined)
	host := w.Host("host-a")
	host.Annotations = map[string]string{apis.AnnotationMaintenance: ""}
	if err := w.Client.Update(context.Background(), host); err != nil {
		t.Fatal(err)
	}
	p.round()
	if got := w.state("host-a"); got != v1beta1.HostInUse {
		t.Errorf("state = %q", got)
	}
	w.deleteNodeClaim("pool-1")
	w.until(p, "the host is parked", func() bool { return w.state("host-a") == v1beta1.HostMaintenance && w.NodeClaim("pool-1") == nil })
	host = w.Host("host-a")
	host.Annotations = nil
	if err := w.Client.Update(context.Background(), host); err != nil {
		t.Fatal(err)
	}
	w.available(p, "host-a")
}

func TestANodeClassSaysWhatStandsInItsWay(t *testing.T) {
	w := newWorld(t, "host-a")
	p := w.start()
	login, _ := remotetest.LoginKey(t, "")
	w.secretObject("ssh-key", map[string][]byte{"privateKey": login})
	ready := func() (string, string) {
		t.Helper()
		if _, err := p.status.Reconcile(context.Background(), w.Class(controllertest.ClassName)); err != nil {
			t.Fatal(err)
		}
		c := w.Class(controllertest.ClassName).StatusConditions().Get(v1beta1.ConditionReady)
		return c.Reason, c.Message
	}
	if reason, message := ready(); reason != v1beta1.ReasonReady {
		t.Fatalf("%s: %s", reason, message)
	}
	sessions := w.hosts["host-a"].Sessions()
	for _, tt := range []struct {
		break_, mend func()
		want, says   string
	}{
		{func() { w.edit("echo edited\n") }, func() { w.edit("echo join\n") }, v1beta1.ReasonScriptNotSigned, "the join script of profile"},
		{func() { w.edit("#!/usr/bin/python3\n") }, func() { w.edit("echo join\n") }, v1beta1.ReasonProfileInvalid, "join"},
		{func() { w.vars(map[string]string{"mirror": "m", "other": "x"}) }, func() { w.vars(map[string]string{"mirror": "m"}) }, "ParameterNotAllowed", "KPSSH_VAR_OTHER"},
		{func() { w.pin("https://10.0.0.200:6443") }, func() { w.pin() }, "PinMismatch", "KPSSH_CLUSTER_ENDPOINT"},
		{func() { w.expire(true) }, func() { w.expire(false) }, v1beta1.ReasonTrustExpired, "allowlist"},
		{func() { w.secret("gone") }, func() { w.secret("") }, v1beta1.ReasonJoinSecretNotFound, "kpssh-system/gone"},
		{func() {
			w.secretObject("bad", map[string][]byte{"a.b": []byte("1"), "a-b": []byte("2")})
			w.secret("bad")
		}, func() { w.secret("") }, v1beta1.ReasonJoinSecretInvalid, "KPSSH_SECRET_A_B"},
	} {
		tt.break_()
		if reason, message := ready(); reason != tt.want || !strings.Contains(message, tt.says) {
			t.Errorf("%s: %q, want %s: …%s…", reason, message, tt.want, tt.says)
		}
		tt.mend()
		if reason, message := ready(); reason != v1beta1.ReasonReady {
			t.Fatalf("after it was mended: %s: %s", reason, message)
		}
	}
	signer := w.trust.Signer()
	w.trust.SetSigner(dispatchtest.NewSigner(t))
	if reason, _ := ready(); reason != v1beta1.ReasonDispatchKeyUnknown {
		t.Errorf("a key that root does not list: %s", reason)
	}
	w.trust.SetSigner(signer)
	w.remove(&v1beta1.SSHJoinProfile{}, controllertest.ProfileName)
	if reason, _ := ready(); reason != v1beta1.ReasonProfileNotFound {
		t.Errorf("no profile: %s", reason)
	}
	w.Create(controllertest.Profile())
	w.vanish()
	if reason, _ := ready(); reason != v1beta1.ReasonClusterInfoMissing {
		t.Errorf("no cluster-info: %s", reason)
	}
	w.Create(controllertest.ClusterInfo(t))
	w.removeSecret("ssh-key")
	if reason, _ := ready(); reason != v1beta1.ReasonSSHKeyNotFound {
		t.Errorf("no ssh key: %s", reason)
	}
	if err := w.Client.Delete(context.Background(), w.Host("host-a")); err != nil {
		t.Fatal(err)
	}
	p = w.start()
	if reason, _ := ready(); reason != v1beta1.ReasonNoHosts {
		t.Errorf("no hosts: %s", reason)
	}
	if got := w.hosts["host-a"].Sessions(); got != sessions {
		t.Errorf("a host was dialled %d times", got-sessions)
	}
}

// The hands that break and mend configuration.

func (w *world) edit(join string) {
	w.t.Helper()
	prof := &v1beta1.SSHJoinProfile{}
	w.update(prof, controllertest.ProfileName, func() { prof.Spec.Scripts.Join = join })
}

func (w *world) vars(vars map[string]string) {
	w.t.Helper()
	class := &v1beta1.SSHNodeClass{}
	w.update(class, controllertest.ClassName, func() { class.Spec.Vars = vars })
}

func (w *world) secret(name string) {
	w.t.Helper()
	class := &v1beta1.SSHNodeClass{}
	w.update(class, controllertest.ClassName, func() {
		class.Spec.JoinSecretRef = nil
		if name != "" {
			class.Spec.JoinSecretRef = &v1beta1.SecretRef{Name: name}
		}
	})
}

func (w *world) update(object client.Object, name string, change func()) {
	w.t.Helper()
	if err := w.Client.Get(context.Background(), client.ObjectKey{Name: name}, object); err != nil {
		w.t.Fatal(err)
	}
	change()
	if err := w.Client.Update(context.Background(), object); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(object client.Object, name string) {
	w.t.Helper()
	object.SetName(name)
	if err := w.Client.Delete(context.Background(), object); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) vanish() {
	w.t.Helper()
	if err := w.Client.Delete(context.Background(), controllertest.ClusterInfo(w.t)); err != nil {
		w.t.Fatal(err)
	}
}

// pin has the author pin the endpoint for install and join; to nothing when there is none.
func (w *world) pin(endpoints ...string) {
	w.trust.Change(func(list *signing.Allowlist) {
		list.Scripts = slices.Clone(list.Scripts)
		for i := range list.Scripts {
			list.Scripts[i].Parameters = slices.Clone(list.Scripts[i].Parameters)
			for j := range list.Scripts[i].Parameters {
				if list.Scripts[i].Parameters[j].Name == "KPSSH_CLUSTER_ENDPOINT" {
					list.Scripts[i].Parameters[j].Pins = endpoints
				}
			}
		}
	})
}

// expire ends the allowlist before the time of the clock, and before that of the machine; or makes it last.
func (w *world) expire(expired bool) {
	w.trust.Change(func(list *signing.Allowlist) {
		list.Issued, list.Expires = controllertest.Start.Add(-time.Hour), time.Now().Add(time.Hour)
		if expired {
			list.Expires = controllertest.Start.Add(-time.Minute)
		}
	})
}

func (w *world) secretObject(name string, data map[string][]byte) {
	w.t.Helper()
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: name}, Data: data})
}

func (w *world) removeSecret(name string) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: name}}
	if err := w.Client.Delete(context.Background(), secret); err != nil {
		w.t.Fatal(err)
	}
}
