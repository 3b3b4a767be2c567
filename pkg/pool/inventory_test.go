package pool_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func version(v string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) { h.ResourceVersion = v }
}

func as(of *v1beta1.SSHHost, changes ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	h := of.DeepCopy()
	for _, change := range changes {
		change(h)
	}
	return h
}

func TestTheRevisionGrowsWithWhatInstanceTypesAreMadeOf(t *testing.T) {
	first := newHost("a", version("1"))
	for name, tc := range map[string]struct {
		next   *v1beta1.SSHHost
		grows  bool
		layout bool
	}{
		"a probe that found nothing new": {as(first, version("2"), func(h *v1beta1.SSHHost) { h.Status.ObservedGeneration = 4 }), false, false},
		"a host that ceased to be free":  {as(first, version("2"), inState(v1beta1.HostUnhealthy)), true, false},
		"a host that was claimed":        {as(first, version("2"), inState(v1beta1.HostClaimed)), true, false},
		"a host that was parked":         {as(first, version("2"), parked), true, false},
		"another class":                  {as(first, version("2"), labelled(apis.LabelHostClass, "big")), true, true},
		"another label":                  {as(first, version("2"), labelled("rack", "7")), true, true},
		"the same version again":         {as(first, labelled("rack", "7")), false, false},
		"an older version":               {as(first, version("0"), labelled("rack", "7")), true, true}, // "0" is no version: believe it
		"another host":                   {newHost("b", version("1")), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			inv := pool.NewInventory(namespace, classShape)
			inv.OnAdd(first, true)
			before, layout := inv.Revision(), inv.Layout()
			inv.OnUpdate(first, tc.next)
			if grew := inv.Revision() > before; grew != tc.grows {
				t.Errorf("grew: %v", grew)
			}
			if grew := inv.Layout() > layout; grew != tc.layout {
				t.Errorf("the layout grew: %v", grew)
			}
		})
	}
}

func TestADeletedHostDoesNotComeBack(t *testing.T) {
	for name, forget := range map[string]func(*pool.Inventory, *v1beta1.SSHHost){
		"the watch saw the deletion": func(i *pool.Inventory, h *v1beta1.SSHHost) { i.OnDelete(h) },
		"the watch inferred it":      func(i *pool.Inventory, h *v1beta1.SSHHost) { i.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: h}) },
		"the watch missed it entirely": func(i *pool.Inventory, h *v1beta1.SSHHost) {
			i.OnUpdate(h, newHost("a", version("1"), inState(v1beta1.HostPending)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inv := pool.NewInventory(namespace, classShape)
			host := newHost("a", version("1"))
			inv.OnAdd(host, true)
			layout := inv.Layout()
			forget(inv, host)
			if inv.Layout() == layout {
				t.Error("the layout did not grow")
			}
			before := inv.Revision()
			inv.OnUpdate(host, as(host, version("5"))) // a write that was under way
			if inv.Revision() != before {
				t.Error("it came back")
			}
		})
	}
}

func TestAHostOfTheSameNameReplacesTheOld(t *testing.T) {
	w := newWorld(t, newHost("a", labelled(apis.LabelHostClass, "old")))
	ctx := context.Background()
	if err := w.client.Delete(ctx, w.stored("a")); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Create(ctx, newHost("a", labelled(apis.LabelHostClass, "new"))); err != nil {
		t.Fatal(err)
	}
	w.sync(w.inventory)
	host, err := w.pool.Claim(ctx, pool.Request{Ref: claimA, Shapes: []string{"new"}})
	if err != nil || host.Class() != "new" {
		t.Fatalf("got %v, %v", host, err)
	}
}

func TestAHostWhoseClaimFailedUnansweredIsOfferedAgain(t *testing.T) {
	fail := true
	w := newWorldWith(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			if fail {
				fail = false
				return errors.New("connection refused")
			}
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
	}, newHost("a"))
	if _, err := w.pool.Claim(context.Background(), pool.Request{Ref: claimA}); err == nil {
		t.Fatal("claimed in spite of the failure")
	}
	if _, err := w.pool.Claim(context.Background(), pool.Request{Ref: claimA}); err != nil {
		t.Fatal(err)
	}
}

func TestLookingUpByProviderID(t *testing.T) {
	w := newWorld(t,
		newHost("static", inState(v1beta1.HostInUse)),
		newHost("adopted", inState(v1beta1.HostInUse), func(h *v1beta1.SSHHost) { h.Status.ProviderID = "eks-hybrid:///mi-1" }),
		newHost("free"),
	)
	for id, want := range map[string]struct{ host, claimed string }{
		"kpssh://kpssh-system/static":  {"static", "static"},
		"kpssh://kpssh-system/adopted": {"adopted", "adopted"},
		"eks-hybrid:///mi-1":           {"adopted", "adopted"},
		"kpssh://kpssh-system/free":    {"free", ""},
		"kpssh://other/static":         {"", ""},
		"kpssh://kpssh-system/":        {"", ""},
		"aws:///zone/i-1":              {"", ""},
		"":                             {"", ""},
	} {
		for what, got := range map[string]func() (*v1beta1.SSHHost, error){
			want.host:    func() (*v1beta1.SSHHost, error) { return w.pool.ByProviderID(id) },
			want.claimed: func() (*v1beta1.SSHHost, error) { return w.pool.ClaimedByProviderID(context.Background(), id) },
		} {
			host, err := got()
			if what == "" && !errors.Is(err, pool.ErrHostNotFound) || what != "" && (err != nil || host.Name != what) {
				t.Errorf("%q: got %v, %v; want %q", id, host, err, what)
			}
		}
	}
}

func TestBeginLeavingRaisesTheFenceOnce(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a", func(h *v1beta1.SSHHost) { h.Status.Fence = 4 }))
	host, err := w.pool.BeginLeaving(ctx, w.stored("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.pool.BeginLeaving(ctx, host, "") // after a crash
	if err != nil || host.Status.Fence != 5 || again.Status.Fence != 5 {
		t.Errorf("fence %d, then %d, %v", host.Status.Fence, again.Status.Fence, err)
	}
}

func TestWhatIsReadIsACopy(t *testing.T) {
	w := newWorld(t, newHost("a", inState(v1beta1.HostInUse)))
	list, err := w.pool.List()
	if err != nil {
		t.Fatal(err)
	}
	byClaim, err := w.pool.ByClaim(claimA.UID)
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.pool.Get("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range append(append(list, byClaim, got), w.pool.AllByClaim(claimA.UID)...) {
		h.Spec.Capacity[corev1.ResourceCPU] = resource.MustParse("1")
		h.Status.ClaimRef.Name = "spoilt"
	}
	if again, err := w.pool.Get("a"); err != nil || again.Spec.Capacity.Cpu().Value() != 8 || again.Status.ClaimRef.Name != claimA.Name {
		t.Errorf("got %+v, %v", again, err)
	}
}

func TestAnOlderVersionDoesNotReplaceANewer(t *testing.T) {
	w := newWorld(t, newHost("a"))
	old := w.stored("a")
	if _, err := w.pool.Claim(context.Background(), pool.Request{Ref: claimA}); err != nil {
		t.Fatal(err)
	}
	w.inventory.OnUpdate(nil, old) // the watch lags behind
	if host, err := w.pool.ByClaim(claimA.UID); err != nil || host.Name != "a" {
		t.Errorf("got %v, %v", host, err)
	}
}

func TestAClaimThatTheCacheMissedIsFoundBeforeItIsCalledGone(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a"))
	w.meanwhile("a", func(h *v1beta1.SSHHost) {
		inState(v1beta1.HostInUse)(h)
		h.Status.ProviderID = "eks-hybrid:///mi-1"
	})
	held, err := w.pool.HeldBy(ctx, claimA, "eks-hybrid:///mi-1")
	if err != nil || len(held) != 1 || held[0].Name != "a" {
		t.Errorf("HeldBy: %v, %v", held, err)
	}
	w = newWorld(t, newHost("a"))
	w.meanwhile("a", func(h *v1beta1.SSHHost) {
		inState(v1beta1.HostInUse)(h)
		h.Status.ProviderID = "eks-hybrid:///mi-1"
	})
	if host, err := w.pool.ClaimedByProviderID(ctx, "eks-hybrid:///mi-1"); err != nil || host.Name != "a" {
		t.Errorf("ClaimedByProviderID: %v, %v", host, err)
	}
}

func TestClaimsOfOneProcessDoNotCollide(t *testing.T) {
	var writes atomic.Int32
	w := newWorldWith(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			writes.Add(1)
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
	}, newHost("a"), newHost("b"), newHost("c"), newHost("d"))
	var wg sync.WaitGroup
	for _, name := range []string{"1", "2", "3", "4"} {
		wg.Go(func() {
			if _, err := w.pool.Claim(context.Background(), pool.Request{Ref: pool.Ref{Name: name, UID: types.UID(name)}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := writes.Load(); got != 4 {
		t.Errorf("%d writes for 4 claims", got)
	}
}
