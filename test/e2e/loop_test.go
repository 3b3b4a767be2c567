//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// shippedWorkload applies the examples as they are, and removes them when the test ends.
func shippedWorkload(t *testing.T) {
	t.Helper()
	must(t, on.ApplyWorkload(within(t)))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		d, np := &appsv1.Deployment{}, &karpv1.NodePool{}
		d.Namespace, d.Name, np.Name = "default", stage.Workload, "pool"
		if err := on.Client.Delete(ctx, d); err != nil {
			t.Error(err)
		}
		if err := on.Client.Delete(ctx, np); err != nil {
			t.Error(err)
		}
		settled(t)
	})
}

func TestAPendingPodPullsAHostInAndTheIdleHostGoesBack(t *testing.T) {
	settled(t)
	shippedWorkload(t)
	var rounds []stage.Round
	for _, title := range []string{"cold", "warm"} {
		t.Run(title, func(t *testing.T) {
			var r stage.Round
			report := func(m stage.Milestone) { t.Logf("%6.1f s  %s", m.At.Seconds(), m.What) }
			must(t, on.ScaleUp(within(t), &r, report))
			must(t, on.ScaleDown(within(t), &r, report))
			must(t, on.CheckWarm(within(t), r.Host))
			found, err := on.Kubectl(within(t), "-n", stage.PoolNamespace, "get", "sshhost", r.Host, "-o", `jsonpath={.status.conditions[?(@.type=="Clean")].status}`)
			must(t, err)
			if found != "True" { // k0smotron#1596, R58
				t.Errorf("the host is Available, and Clean is %q", found)
			}
			if left := tokens(t); left != "" {
				t.Errorf("token Secrets are left: %s", left)
			}
			rounds = append(rounds, r)
		})
	}
	audited(t, rounds...)
}

// tokens names the bootstrap token Secrets of the cluster.
func tokens(t *testing.T) string {
	t.Helper()
	out, err := on.Tokens(within(t))
	must(t, err)
	return out
}

func TestAHostThatRebootsWhileWarmStaysOutOfTheCluster(t *testing.T) {
	settled(t)
	shippedWorkload(t)
	var r stage.Round
	quiet := func(stage.Milestone) {}
	must(t, on.ScaleUp(within(t), &r, quiet))
	must(t, on.ScaleDown(within(t), &r, quiet))

	h := machine(t, r.Host)
	before, err := h.BootID(within(t))
	must(t, err)
	must(t, h.Reboot(within(t)))
	after, err := h.BootID(within(t))
	must(t, err)
	if before == after {
		t.Fatalf("%s did not reboot", r.Host)
	}
	must(t, on.CheckWarm(within(t), r.Host))
	// A probe that finds it well says that the controller, too, has seen the new boot.
	out, err := on.Kubectl(within(t), "-n", stage.PoolNamespace, "get", "sshhost", r.Host, "-o", "jsonpath={.status.lastProbeTime}")
	must(t, err)
	_, err = on.Kubectl(within(t), "-n", stage.PoolNamespace, "patch", "sshhost", r.Host, "--type=merge", "-p",
		`{"metadata":{"labels":{"rebooted":"yes"}},"spec":{"nodeAddress":"`+h.Address+`"}}`)
	must(t, err)
	until(t, "a probe after the reboot", func(ctx context.Context) error {
		now, err := on.Kubectl(ctx, "-n", stage.PoolNamespace, "get", "sshhost", r.Host, "-o", "jsonpath={.status.lastProbeTime} {.status.state}")
		if err != nil {
			return err
		}
		if fields := strings.Fields(now); len(fields) != 2 || fields[0] == out || fields[1] != "Available" {
			return fmt.Errorf("it is %q, and was probed at %s before", now, out)
		}
		return nil
	})
	nodes, err := on.Nodes(within(t))
	must(t, err)
	if len(nodes) != 0 {
		t.Errorf("%d Nodes after the reboot", len(nodes))
	}
	must(t, on.CheckWarm(within(t), r.Host))
	// And it can still be joined.
	must(t, on.ScaleUp(within(t), &r, quiet))
	must(t, on.ScaleDown(within(t), &r, quiet))
}
