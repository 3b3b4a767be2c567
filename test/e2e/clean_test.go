//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// k0smotron#1596, R58: what leave does not take away keeps a host out of the pool until somebody does.
func TestAHostIsGivenOutWhenItWasFoundClean(t *testing.T) {
	settled(t)
	const credential = "/etc/kubernetes/kubelet.conf" // another profile's: the shipped leave knows nothing of it
	shippedWorkload(t)
	// The host was a member with a profile that is still there: one that an earlier test took away has no script to leave
	// with, and such a host stays fenced.
	var r stage.Round
	quiet := func(stage.Milestone) {}
	must(t, on.ScaleUp(within(t), &r, quiet))
	must(t, on.ScaleDown(within(t), &r, quiet))
	h := machine(t, r.Host)
	_, err := h.Exec(within(t), "sh", "-c", "mkdir -p /etc/kubernetes && echo secret >"+credential)
	must(t, err)
	t.Cleanup(func() { _, _ = h.Exec(within(t), "rm", "-f", credential) })
	clean := func(state v1beta1.HostState, value, message string) func(context.Context) error {
		return func(ctx context.Context) error {
			object := &v1beta1.SSHHost{}
			if err := on.Client.Get(ctx, client.ObjectKey{Namespace: stage.PoolNamespace, Name: h.Name}, object); err != nil {
				return err
			}
			found := object.StatusConditions().Get(v1beta1.ConditionClean)
			if object.Status.State != state || string(found.GetStatus()) != value || !strings.Contains(found.Message, message) {
				return fmt.Errorf("it is %s, and %+v", object.Status.State, found)
			}
			return nil
		}
	}
	until(t, "the host to be Unhealthy", clean(v1beta1.HostUnhealthy, "False", "credential:"+credential))
	out, err := on.Kubectl(within(t), "-n", stage.PoolNamespace, "get", "sshhost", h.Name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].reason}`)
	must(t, err)
	if out != v1beta1.ReasonNotClean {
		t.Errorf("the reason is %q", out)
	}
	_, err = h.Exec(within(t), "rm", "-f", credential)
	must(t, err)
	until(t, "the host to be Available", clean(v1beta1.HostAvailable, "True", ""))
}
