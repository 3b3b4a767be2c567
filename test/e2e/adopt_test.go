//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// TestAdoptTakesTheProviderIDThatTheNodeBrings joins with a script that sets an id of its own, as nodeadm does on EKS.
func TestAdoptTakesTheProviderIDThatTheNodeBrings(t *testing.T) {
	settled(t)
	p := shipped(t, "adopted")
	p.class.Spec.ProviderIDSource = v1beta1.ProviderIDAdopt
	join := &p.profile.Spec.Scripts.Join
	const start = "set -euo pipefail\n"
	if strings.Count(*join, start) != 1 {
		t.Fatalf("join does not hold %q once", start)
	}
	*join = strings.Replace(*join, start, start+"KPSSH_PROVIDER_ID=\"eks-hybrid:///lab/$KPSSH_NODE_NAME\"\n", 1)
	p.sign(t)
	p.apply(t)
	p.ready(t)
	p.scale(t, 1)
	claim, host := p.running(t)
	want := "eks-hybrid:///lab/" + claim
	nodeClaim := &karpv1.NodeClaim{}
	until(t, "the NodeClaim to be initialized under the node's own id", func(ctx context.Context) error {
		if err := on.Client.Get(ctx, client.ObjectKey{Name: claim}, nodeClaim); err != nil {
			return err
		}
		if nodeClaim.Status.ProviderID != want || !nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() {
			return fmt.Errorf("provider id %q, initialized %v", nodeClaim.Status.ProviderID, nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized))
		}
		return nil
	})
	p.giveUp(t)
	settled(t)
	must(t, on.CheckWarm(within(t), host))
}
