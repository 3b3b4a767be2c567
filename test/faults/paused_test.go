//go:build faults

package faults

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

func signal(t *testing.T, p *lab.Process, s syscall.Signal) {
	t.Helper()
	must(t, syscall.Kill(p.PID, s))
}

// leader is who holds the controllers' lease: a name of its own for each start.
func leader(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: stage.ControllerNamespace, Name: "karpenter-provider-ssh"}
	if err := on.Client.Get(ctx, key, lease); err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errNotYet
	}
	return *lease.Spec.HolderIdentity, nil
}

// TestTheLeaderIsPaused stops the leader of two controllers with SIGSTOP until the other leads, and lets it go on: what it
// still believes to be its turn must change nothing. It then starts anew, as Kubernetes has it do when it ends.
func TestTheLeaderIsPaused(t *testing.T) {
	var started []*lab.Process
	launch := func() *lab.Process {
		p, err := on.LaunchController(fmt.Sprint("controller-", len(started)), "--probe-interval", "10s")
		must(t, err)
		started = append(started, p)
		return p
	}
	// The stage's own controller takes no part in elections. It is kept from acting, and lives on for on.Until's sake.
	signal(t, on.Controller(), syscall.SIGSTOP)
	t.Cleanup(func() { // after the pool has gone, which takes a controller
		for _, p := range started {
			p.Kill9()
		}
		on.Controller().Kill9()
		must(t, on.StartController(context.Background()))
	})
	leads := launch()
	var led string
	must(t, on.Until(within(t), "a leader", func(ctx context.Context) (err error) { led, err = leader(ctx); return err }))
	waits := launch()
	each(t, "paused", []moment{joining, inUse, leaving}, func(t *testing.T, tr *trial, m moment) {
		tr.reach(m)
		signal(t, leads, syscall.SIGSTOP)
		must(t, on.Until(within(t), "the other to lead", func(ctx context.Context) error {
			now, err := leader(ctx)
			if err == nil && now == led {
				return fmt.Errorf("%s leads", now)
			}
			if err == nil {
				led = now
			}
			return err
		}))
		signal(t, leads, syscall.SIGCONT)
		if err := leads.Wait(within(t)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the controller that lost its lease did not end with an error: %v", err)
		}
		leads, waits = waits, launch()
		tr.finish(m)
	})
}
