package termination_test

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/termination"
)

func reconcileClass(t *testing.T, env *controllertest.Env) reconcile.Result {
	t.Helper()
	class := env.Class(controllertest.ClassName)
	if class == nil {
		return reconcile.Result{}
	}
	result, err := termination.NewController(env.Client, env.Client, env.Events).Reconcile(context.Background(), class)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// k0smotron#1186, R60: the class went before the machines, and nothing could clean them.
func TestAClassStaysUntilItsLastNodeClaimIsGone(t *testing.T) {
	foreign := controllertest.NodeClaim("other-1", "aws:///i-1", func(n *karpenterv1.NodeClaim) {
		n.Spec.NodeClassRef = &karpenterv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: controllertest.ClassName}
	})
	ours := controllertest.NodeClaim("pool-1", "kpssh://kpssh-system/host-a")
	env := controllertest.New(t, controllertest.Class(), ours, foreign)

	reconcileClass(t, env)
	if class := env.Class(controllertest.ClassName); len(class.Finalizers) != 1 || class.Finalizers[0] != apis.FinalizerTermination {
		t.Fatalf("finalizers = %v", class.Finalizers)
	}
	if err := env.Client.Delete(context.Background(), env.Class(controllertest.ClassName)); err != nil {
		t.Fatal(err)
	}
	if result := reconcileClass(t, env); result.RequeueAfter == 0 {
		t.Error("a held class is not looked at again")
	}
	if env.Class(controllertest.ClassName) == nil {
		t.Fatal("the class is gone while a NodeClaim needs it")
	}
	if got := env.Events.Reasons("SSHNodeClass/" + controllertest.ClassName); len(got) != 1 || got[0] != "WaitingForNodeClaims" {
		t.Errorf("events = %v", got)
	}
	if err := env.Client.Delete(context.Background(), env.NodeClaim("pool-1")); err != nil {
		t.Fatal(err)
	}
	reconcileClass(t, env)
	if class := env.Class(controllertest.ClassName); class != nil {
		t.Errorf("the class stays for another provider's NodeClaim: %v", client.ObjectKeyFromObject(class))
	}
}
