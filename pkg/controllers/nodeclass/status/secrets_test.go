package status

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestAClassIsLookedAtWhenASecretThatItNeedsChanges(t *testing.T) {
	c := NewController(Options{Namespace: "pool", DispatchKeySecret: types.NamespacedName{Namespace: "control", Name: "key"}})
	for name, tt := range map[string]struct {
		namespace, name string
		want            bool
	}{
		"a join secret or an SSH key":                  {"pool", "any", true},
		"the dispatch key":                             {"control", "key", true},
		"another Secret of the controller's namespace": {"control", "other", false},
		"a Secret like the dispatch key elsewhere":     {"default", "key", false},
	} {
		if got := c.usesSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tt.namespace, Name: tt.name}}); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
