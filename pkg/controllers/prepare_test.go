package controllers_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/prepare"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// preparing plans before it works, as its manager has it do.
type preparing struct {
	w *world
	*prepare.Controller
}

func (p preparing) Reconcile(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	if _, _, err := p.Plan(ctx); err != nil {
		return reconcile.Result{}, err
	}
	return p.Controller.Reconcile(ctx, host)
}

// prepareAll has the class ask for all hosts.
func (w *world) prepareAll() {
	w.t.Helper()
	err := w.asOthers(func() error {
		class := w.Class(controllertest.ClassName)
		all := intstr.FromString(v1beta1.PrepareAll)
		class.Spec.Prepare = &all
		if err := w.Client.Update(context.Background(), class); err != nil {
			return err
		}
		class.StatusConditions().SetTrue(v1beta1.ConditionReady)
		return w.Client.Status().Update(context.Background(), class)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// prepared says whether host-a is installed, clean and free.
func (w *world) prepared() bool {
	h := w.Host("host-a")
	return h.Status.State == v1beta1.HostAvailable && h.Status.InstalledProfile == controllertest.ProfileName+"@1" &&
		pool.Preparing(h) == "" && w.hosts["host-a"].Claim().UID == ""
}

// TestAPreparationThatDiesBetweenAnyTwoSteps kills the process before and after every write and every run from a host's
// first probe until it is prepared: the next one goes on, and install runs once.
func TestAPreparationThatDiesBetweenAnyTwoSteps(t *testing.T) {
	for fatal := 1; ; fatal++ {
		w := newWorld(t, "host-a")
		w.prepareAll()
		at := w.dieAt(fatal)
		p := w.start()
		w.untilSurvived(&p, "the host is prepared", w.prepared)
		if got := runs(w.hosts["host-a"]); got[signing.PhaseInstall] != 1 || got[signing.PhaseJoin] != 0 {
			t.Errorf("died %s (step %d): runs %v", *at, fatal, got)
		}
		if *at == "" {
			if fatal < 10 {
				t.Errorf("only %d steps were seen", fatal)
			}
			return
		}
	}
}

// TestAHostIsClaimedWhoseProcessDiedPreparingIt has a NodeClaim take the host as the process left it: the next one's
// join collects the install that ran, whatever of it was recorded.
func TestAHostIsClaimedWhoseProcessDiedPreparingIt(t *testing.T) {
	for fatal := 1; ; fatal++ {
		w := newWorld(t, "host-a")
		p := w.start()
		w.available(p, "host-a")
		w.prepareAll()
		at := w.dieAt(fatal)
		p = w.start()
		w.untilDead(p, "the host is prepared", w.prepared)
		w.crash = nil
		p = w.start()
		if w.state("host-a") != v1beta1.HostAvailable {
			w.available(p, "host-a")
		}
		w.launch(p, "pool-1")
		w.until(p, "the node is in use", w.joined)
		if got := runs(w.hosts["host-a"]); got[signing.PhaseInstall] != 1 || got[signing.PhaseJoin] != 1 {
			t.Errorf("died %s (step %d): runs %v", *at, fatal, got)
		}
		if got := w.Host("host-a"); pool.Preparing(got) != "" || got.Status.InstalledProfile != controllertest.ProfileName+"@1" {
			t.Errorf("died %s (step %d): %+v", *at, fatal, got.Status)
		}
		if *at == "" {
			if fatal < 10 {
				t.Errorf("only %d steps were seen", fatal)
			}
			return
		}
	}
}

// dieAt has the process die at a step, and says where that was; empty while it has not come to it.
func (w *world) dieAt(fatal int) *string {
	count, at := 0, new(string)
	w.crash = func(step string) {
		if count++; count == fatal {
			*at = step
			panic(crashed{step})
		}
	}
	return at
}

// untilDead is until, for a process that may die before.
func (w *world) untilDead(p *process, what string, holds func() bool) {
	w.t.Helper()
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crashed); !ok {
				panic(r)
			}
		}
	}()
	w.until(p, what, holds)
}
