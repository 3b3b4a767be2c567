package hash_test

import (
	"context"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/hash"
)

// karpenter#1510, R74: an upgrade that changes the hash must neither roll nodes nor switch drift off.
func TestMigration(t *testing.T) {
	current := controllertest.Class().Hash()
	annotated := func(sum, version string) map[string]string {
		return map[string]string{apis.AnnotationNodeClassHash: sum, apis.AnnotationNodeClassHashVersion: version, "other": "kept"}
	}
	tests := map[string]struct {
		annotations map[string]string
		drifted     bool
		want        map[string]string
	}{
		"a hash of an earlier version becomes the current one": {
			annotations: annotated("old", "v0"), want: annotated(current, v1beta1.NodeClassHashVersion)},
		"a NodeClaim that is drifted already stays drifted": {
			annotations: annotated("old", "v0"), drifted: true, want: annotated("old", v1beta1.NodeClassHashVersion)},
		"drift that the current version shows is not wiped away": {
			annotations: annotated("other", v1beta1.NodeClassHashVersion), want: annotated("other", v1beta1.NodeClassHashVersion)},
		"a NodeClaim that is not launched yet is left to Create": {
			annotations: map[string]string{"other": "kept"}, want: map[string]string{"other": "kept"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			nodeClaim := controllertest.NodeClaim("pool-1", "kpssh://kpssh-system/host-a", func(n *karpenterv1.NodeClaim) {
				n.Annotations = tt.annotations
				if tt.drifted {
					n.Status.Conditions = []status.Condition{{Type: karpenterv1.ConditionTypeDrifted, Status: metav1.ConditionTrue, Reason: "Drifted"}}
				}
			})
			env := controllertest.New(t, controllertest.Class(), nodeClaim)
			if _, err := hash.NewController(env.Client).Reconcile(context.Background(), env.Class(controllertest.ClassName)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, env.NodeClaim("pool-1").Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
		})
	}
}
