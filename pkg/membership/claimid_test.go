package membership_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

func TestAClaimNamesItsCluster(t *testing.T) {
	const cluster membership.Cluster = "7a9b"
	for name, tt := range map[string]struct {
		claim string
		uid   types.UID
		ours  bool
	}{
		"of this cluster":                                  {"7a9b.c0ff", "c0ff", true},
		"of another cluster":                               {"1234.c0ff", "", false},
		"of another cluster with the same beginning":       {"7a9.c0ff", "", false},
		"from before claims named a cluster":               {"c0ff", "c0ff", true},
		"of nobody":                                        {"", "", true},
		"of a cluster without a name, which nobody writes": {".c0ff", "", false},
	} {
		if uid, ours := cluster.Owner(tt.claim); uid != tt.uid || ours != tt.ours {
			t.Errorf("%s: %q, %t", name, uid, ours)
		}
	}
	if claim := cluster.Claim("c0ff"); claim != "7a9b.c0ff" {
		t.Errorf("claim %q", claim)
	}
	if claim := cluster.Claim(""); claim != "" {
		t.Errorf("claim %q of nobody", claim)
	}
}

func TestTheClusterIsTheUIDOfKubeSystem(t *testing.T) {
	env := controllertest.New(t)
	if _, err := membership.ReadCluster(context.Background(), env.Client); err == nil {
		t.Error("no error without the namespace")
	}
	env.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "7a9b"}})
	if cluster, err := membership.ReadCluster(context.Background(), env.Client); err != nil || cluster != "7a9b" {
		t.Errorf("%q, %v", cluster, err)
	}
}
