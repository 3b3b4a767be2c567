package startuptaints_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/startuptaints"
)

var (
	cni   = corev1.Taint{Key: "cni.example/not-ready", Effect: corev1.TaintEffectNoSchedule}
	other = corev1.Taint{Key: "team.example/dedicated", Effect: corev1.TaintEffectNoSchedule}
)

func gate(when v1beta1.RemoveWhen) func(*v1beta1.SSHNodeClass) {
	return func(c *v1beta1.SSHNodeClass) {
		c.Spec.StartupTaintGates = []v1beta1.StartupTaintGate{{TaintKey: cni.Key, RemoveWhen: when}}
	}
}

func pod(name, node string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"app": "cni"}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func TestGates(t *testing.T) {
	podsReady := v1beta1.RemoveWhen{PodsReady: &v1beta1.PodsReady{
		Namespace: "kube-system", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "cni"}}, MinReady: 2}}
	condition := v1beta1.RemoveWhen{NodeCondition: &v1beta1.NodeCondition{Type: "StorageReady", Status: corev1.ConditionTrue}}
	stays, goes := []corev1.Taint{cni, other}, []corev1.Taint{other}
	tests := map[string]struct {
		when       v1beta1.RemoveWhen
		pods       []client.Object
		condition  corev1.ConditionStatus
		startup    []corev1.Taint
		registered string
		foreign    bool
		want       []corev1.Taint
	}{
		"opens once enough pods are ready on the node": {
			when: podsReady, pods: []client.Object{pod("a", "pool-1", "True"), pod("b", "pool-1", "True")}, startup: []corev1.Taint{cni}, registered: "true", want: goes},
		"stays shut while one is not ready": {
			when: podsReady, pods: []client.Object{pod("a", "pool-1", "True"), pod("b", "pool-1", "False")}, startup: []corev1.Taint{cni}, registered: "true", want: stays},
		"does not count pods of another node": {
			when: podsReady, pods: []client.Object{pod("a", "pool-1", "True"), pod("b", "pool-2", "True")}, startup: []corev1.Taint{cni}, registered: "true", want: stays},
		"opens once the node has the condition":        {when: condition, condition: "True", startup: []corev1.Taint{cni}, registered: "true", want: goes},
		"stays shut while the condition says no":       {when: condition, condition: "False", startup: []corev1.Taint{cni}, registered: "true", want: stays},
		"stays shut while there is no such condition":  {when: condition, startup: []corev1.Taint{cni}, registered: "true", want: stays},
		"leaves a taint that is no startup taint":      {when: condition, condition: "True", registered: "true", want: stays},
		"leaves a taint of another effect":             {when: condition, condition: "True", startup: []corev1.Taint{{Key: cni.Key, Effect: corev1.TaintEffectNoExecute}}, registered: "true", want: stays},
		"waits for registration (karpenter#1772, R41)": {when: condition, condition: "True", startup: []corev1.Taint{cni}, want: stays},
		"leaves another provider's nodes alone":        {when: condition, condition: "True", startup: []corev1.Taint{cni}, registered: "true", foreign: true, want: stays},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			nodeClaim := controllertest.NodeClaim("pool-1", "kpssh://kpssh-system/host-a", func(n *karpenterv1.NodeClaim) {
				n.Spec.StartupTaints = tt.startup
				if tt.foreign {
					n.Spec.NodeClassRef.Kind = "EC2NodeClass"
				}
			})
			node := controllertest.Node("pool-1", "kpssh://kpssh-system/host-a", "10.0.0.1", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{cni, other}
				n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "pool-1", UID: "uid-pool-1"}}
				if tt.registered != "" {
					n.Labels[karpenterv1.NodeRegisteredLabelKey] = tt.registered
				}
				if tt.condition != "" {
					n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "StorageReady", Status: tt.condition})
				}
			})
			env := controllertest.New(t, append(tt.pods, controllertest.Class(gate(tt.when)), nodeClaim, node)...)
			if _, err := startuptaints.NewController(env.Client).Reconcile(context.Background(), env.Node("pool-1")); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, env.Node("pool-1").Spec.Taints); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
		})
	}
}
