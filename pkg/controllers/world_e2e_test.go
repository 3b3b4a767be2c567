//go:build e2e

package controllers_test

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func isConflict(err error) bool { return apierrors.IsConflict(err) }

func (w *realWorld) coreNodeClaim(p *process, nodeClaim *karpenterv1.NodeClaim) error {
	return w.nodeClaim(context.Background(), cloudprovider.New(w.Client, p.pool, nil), nodeClaim)
}

// launchReal is launch, with an object that a real API server takes.
func (w *realWorld) launchReal(p *process, name string) {
	w.t.Helper()
	nodeClaim := controllertest.NodeClaim(name, "", func(n *karpenterv1.NodeClaim) {
		n.UID = ""
		n.Finalizers = []string{karpenterv1.TerminationFinalizer}
		n.Spec.Requirements = []karpenterv1.NodeSelectorRequirementWithMinValues{{Key: "kubernetes.io/os", Operator: "In", Values: []string{"linux"}}}
	})
	if err := w.Client.Create(w.t.Context(), nodeClaim); err != nil {
		w.t.Fatal(err)
	}
	host, err := p.pool.Claim(w.t.Context(), pool.Request{Ref: pool.RefOf(nodeClaim)})
	if err != nil {
		w.t.Fatal(err)
	}
	nodeClaim.Status.ProviderID = host.Status.ProviderID
	if err := w.Client.Status().Update(w.t.Context(), nodeClaim); err != nil {
		w.t.Fatal(err)
	}
}
