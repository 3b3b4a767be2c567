package cloudprovider_test

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// attempt makes a NodeClaim of the NodePool, has the provider launch it, and returns how long it had to wait before it
// was made, by a clock that only moves while somebody waits.
func attempt(t *testing.T, w *world, damped client.Client, clk *clocktesting.FakeClock, nodePool string, count int) time.Duration {
	t.Helper()
	began := clk.Now()
	for i := range count {
		nc := newNodeClaim(func(nc *karpv1.NodeClaim) {
			nc.Name, nc.UID = nodePool+string(rune('a'+i)), ""
			nc.Labels = map[string]string{karpv1.NodePoolLabelKey: nodePool}
		})
		done := make(chan error, 1)
		go func() { done <- damped.Create(context.Background(), nc) }()
		for waits := true; waits; {
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				waits = false
			default:
				if clk.HasWaiters() {
					clk.Step(500 * time.Millisecond)
				}
			}
		}
		nc.UID = "uid-of-" + nc.UID
		if _, err := w.provider.Create(context.Background(), nc); err != nil && !corecloud.IsInsufficientCapacityError(err) {
			t.Fatal(err)
		}
		if err := damped.Delete(context.Background(), nc); err != nil {
			t.Fatal(err)
		}
	}
	return clk.Since(began)
}

// karpenter#2734, #2703 (R96).
func TestAStaticNodePoolOnAnEmptyPoolIsDamped(t *testing.T) {
	w := newWorld(t, newClass(), newProfile())
	scheme := w.client.Scheme()
	gv := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(gv, &karpv1.NodePool{}, &karpv1.NodeClaim{})
	metav1.AddToGroupVersion(scheme, gv)
	static := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Spec: karpv1.NodePoolSpec{Replicas: ptr.To[int64](2)}}
	dynamic := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "dynamic"}}
	clk := clocktesting.NewFakeClock(time.Now())
	damped := w.provider.Damped(fake.NewClientBuilder().WithScheme(scheme).WithObjects(static, dynamic).Build(), clk)

	var took []time.Duration
	for range 6 {
		took = append(took, attempt(t, w, damped, clk, "static", 1).Round(time.Second))
	}
	want := []time.Duration{0, 1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second}
	for i := range want {
		if took[i] != want[i] {
			t.Fatalf("waited %v, want %v", took, want)
		}
	}
	if took := attempt(t, w, damped, clk, "dynamic", 2); took != 0 {
		t.Errorf("a NodePool that follows its pods waited %s", took)
	}

	host := newHost("a")
	if err := w.client.Create(context.Background(), host); err != nil {
		t.Fatal(err)
	}
	host.Status.State = v1beta1.HostAvailable
	if err := w.pool.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if took := attempt(t, w, damped, clk, "static", 1); took > 2*time.Second {
		t.Errorf("waited %s although a host had come", took)
	}
	if took := attempt(t, w, damped, clk, "static", 1); took != 0 {
		t.Errorf("waited %s after a host was found", took)
	}
}

func TestManyNodeClaimsAreOneAttempt(t *testing.T) {
	w := newWorld(t, newClass(), newProfile())
	for range 5 {
		nc := newNodeClaim(func(nc *karpv1.NodeClaim) { nc.Labels = map[string]string{karpv1.NodePoolLabelKey: "static"} })
		if _, err := w.provider.Create(context.Background(), nc); !corecloud.IsInsufficientCapacityError(err) {
			t.Fatal(err)
		}
	}
	scheme := w.client.Scheme()
	gv := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(gv, &karpv1.NodePool{}, &karpv1.NodeClaim{})
	static := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Spec: karpv1.NodePoolSpec{Replicas: ptr.To[int64](2)}}
	clk := clocktesting.NewFakeClock(time.Now())
	damped := w.provider.Damped(fake.NewClientBuilder().WithScheme(scheme).WithObjects(static).Build(), clk)
	if took := attempt(t, w, damped, clk, "static", 1).Round(time.Second); took != firstPause {
		t.Errorf("waited %s", took)
	}
}

const firstPause = time.Second
