package bigpool

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

func TestWhoHoldsWhatIsCompared(t *testing.T) {
	given := func(name, host string) *karpv1.NodeClaim {
		return &karpv1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Status:     karpv1.NodeClaimStatus{ProviderID: "kpssh://pool/" + host},
		}
	}
	held := func(host, by string) v1beta1.SSHHost {
		h := v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: "pool", Name: host}}
		if by != "" {
			h.Status.ClaimRef = &v1beta1.ClaimRef{Name: by, UID: types.UID(by)}
		}
		return h
	}
	for name, tc := range map[string]struct {
		hosts  []v1beta1.SSHHost
		claims []*karpv1.NodeClaim
		want   string
	}{
		"as given":         {[]v1beta1.SSHHost{held("a", "x"), held("b", "y"), held("c", "")}, []*karpv1.NodeClaim{given("x", "a"), given("y", "b")}, ""},
		"one given to two": {[]v1beta1.SSHHost{held("a", "x")}, []*karpv1.NodeClaim{given("x", "a"), given("y", "a")}, "given to x and to y"},
		"held by another":  {[]v1beta1.SSHHost{held("a", "y")}, []*karpv1.NodeClaim{given("x", "a")}, `held by "y"`},
		"held by nobody":   {[]v1beta1.SSHHost{held("a", "")}, []*karpv1.NodeClaim{given("x", "a")}, `held by ""`},
		"two held by one":  {[]v1beta1.SSHHost{held("a", "x"), held("b", "x")}, []*karpv1.NodeClaim{given("x", "a")}, "was given another host"},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(misheld(tc.hosts, tc.claims), "; ")
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
