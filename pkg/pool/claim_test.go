package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func failedLately(h *v1beta1.SSHHost) {
	h.Status.Failures = &v1beta1.HostFailures{Count: 1, Reason: v1beta1.ReasonJoinFailed, Generation: h.Generation}
}

func TestClaimTakesTheHostThatSuitsBest(t *testing.T) {
	small, big := labelled(apis.LabelHostClass, "small"), labelled(apis.LabelHostClass, "big")
	for name, tc := range map[string]struct {
		hosts []*v1beta1.SSHHost
		req   pool.Request
		want  string // empty: ErrNoHost
	}{
		"an Available host is taken": {
			hosts: []*v1beta1.SSHHost{newHost("a")}, want: "a",
		},
		"hosts in any other state are not": {
			hosts: []*v1beta1.SSHHost{
				newHost("a", inState("")), newHost("b", inState(v1beta1.HostPending)), newHost("c", inState(v1beta1.HostClaimed)),
				newHost("d", inState(v1beta1.HostInUse)), newHost("e", inState(v1beta1.HostUnhealthy)),
				newHost("f", inState(v1beta1.HostLeaving)), newHost("g", inState(v1beta1.HostMaintenance)),
			},
		},
		"a parked host is not, even before its state follows": {
			hosts: []*v1beta1.SSHHost{newHost("a", parked)},
		},
		"an Available host with a claim, which nothing should write, is not": {
			hosts: []*v1beta1.SSHHost{newHost("a", inState(v1beta1.HostClaimed), func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostAvailable })},
		},
		"a host of another namespace is not": {
			hosts: []*v1beta1.SSHHost{newHost("a", func(h *v1beta1.SSHHost) { h.Namespace = "other" })},
		},
		"the selector must match": {
			hosts: []*v1beta1.SSHHost{newHost("a"), newHost("b", labelled("rack", "2"))},
			req:   pool.Request{Selector: labels.SelectorFromSet(labels.Set{"rack": "2"})}, want: "b",
		},
		"the shape must be one of those asked for": {
			hosts: []*v1beta1.SSHHost{newHost("a", small)}, req: pool.Request{Shapes: []string{"big"}},
		},
		"no shape at all is not any shape": {
			hosts: []*v1beta1.SSHHost{newHost("a", small)}, req: pool.Request{Shapes: []string{}},
		},
		"the shape named first is taken first": {
			hosts: []*v1beta1.SSHHost{newHost("a", small), newHost("b", big)}, req: pool.Request{Shapes: []string{"big", "small"}}, want: "b",
		},
		"the next shape is taken when the first has none free": {
			hosts: []*v1beta1.SSHHost{newHost("a", small)}, req: pool.Request{Shapes: []string{"big", "small"}}, want: "a",
		},
		"what does not fit is passed over": {
			hosts: []*v1beta1.SSHHost{newHost("a"), newHost("b")},
			req:   pool.Request{Fits: func(h *v1beta1.SSHHost) bool { return h.Name == "b" }}, want: "b",
		},
		"a host that has the profile installed is preferred": {
			hosts: []*v1beta1.SSHHost{newHost("a"), newHost("b", installed("p@2")), newHost("c", installed("p@1"))},
			req:   pool.Request{Prefer: "p@2"}, want: "b",
		},
		"a host that failed lately is the last choice, even with the profile installed": {
			hosts: []*v1beta1.SSHHost{newHost("a", installed("p@2"), failedLately), newHost("b")},
			req:   pool.Request{Prefer: "p@2"}, want: "b",
		},
		"it is a choice when there is no other": {
			hosts: []*v1beta1.SSHHost{newHost("a", failedLately)}, want: "a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.hosts...)
			tc.req.Ref = claimB
			host, err := w.pool.Claim(context.Background(), tc.req)
			if tc.want == "" {
				if !errors.Is(err, pool.ErrNoHost) {
					t.Fatalf("got host %v, error %v", host, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			stored := w.stored(tc.want)
			if host.Name != tc.want || !pool.Held(stored, claimB) || stored.Status.State != v1beta1.HostClaimed {
				t.Fatalf("got %q; %q has state %s, claim %v", host.Name, tc.want, stored.Status.State, stored.Status.ClaimRef)
			}
			if stored.Status.Fence != 1 || stored.Status.ProviderID != "kpssh://kpssh-system/"+tc.want {
				t.Errorf("fence %d, providerID %q", stored.Status.Fence, stored.Status.ProviderID)
			}
		})
	}
}

func TestClaimIsIdempotentByUID(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a"), newHost("b"), newHost("c"))
	first, err := w.pool.Claim(ctx, pool.Request{Ref: claimA})
	if err != nil {
		t.Fatal(err)
	}
	_, successor := w.another() // a process that starts after the first claim
	for name, p := range map[string]*pool.Pool{"the same process": w.pool, "the next process": successor} {
		again, err := p.Claim(ctx, pool.Request{Ref: claimA})
		if err != nil || again.Name != first.Name || again.Status.Fence != 1 {
			t.Errorf("%s: got %v, %v; want %q again", name, again, err, first.Name)
		}
	}
	same := pool.Ref{Name: claimA.Name, UID: "another-uid"}
	other, err := w.pool.Claim(ctx, pool.Request{Ref: same})
	if err != nil || other.Name == first.Name {
		t.Errorf("a NodeClaim of the same name and another uid got %v, %v", other, err)
	}
}

func TestANewProcessReadsTheClaimsThatItsCacheMissed(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a"), newHost("b"))
	_, second := w.another() // its cache is filled now
	first, err := w.pool.Claim(ctx, pool.Request{Ref: claimA})
	if err != nil {
		t.Fatal(err)
	}
	again, err := second.Claim(ctx, pool.Request{Ref: claimA}) // and has not seen this
	if err != nil || again.Name != first.Name {
		t.Fatalf("got %v, %v; want %q", again, err, first.Name)
	}
}

func TestTheLoserOfAHostGoesOnToTheNext(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a"), newHost("b"))
	_, other := w.another()
	if err := other.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.pool.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	first, err := w.pool.Claim(ctx, pool.Request{Ref: claimA})
	if err != nil {
		t.Fatal(err)
	}
	second, err := other.Claim(ctx, pool.Request{Ref: claimB})
	if err != nil || second.Name == first.Name {
		t.Fatalf("got %v, %v beside %q", second, err, first.Name)
	}
}

func TestAConflictThatTookNothingIsNotALackOfHosts(t *testing.T) {
	w := newWorld(t, newHost("a"))
	changed := false
	host, err := w.pool.Claim(context.Background(), pool.Request{Ref: claimA, Fits: func(*v1beta1.SSHHost) bool {
		if !changed { // after the host was picked from the cache and before it is written
			changed = true
			w.meanwhile("a", func(h *v1beta1.SSHHost) { h.Status.LastProbeError = "changed" })
		}
		return true
	}})
	if err != nil || host.Name != "a" {
		t.Fatalf("got %v, %v", host, err)
	}
}

func TestHostsThatChangeForEverAreContendedAndNotLacking(t *testing.T) {
	w := newWorldWith(t, interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			return apierrors.NewConflict(v1beta1.GroupVersion.WithResource("sshhosts").GroupResource(), "a", errors.New("changed"))
		},
	}, newHost("a"))
	if _, err := w.pool.Claim(context.Background(), pool.Request{Ref: claimA}); !errors.Is(err, pool.ErrContended) {
		t.Fatalf("got %v", err)
	}
}

func TestAClaimWhoseAnswerWasLostIsFoundAgain(t *testing.T) {
	lose := true
	w := newWorldWith(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			err := c.SubResource(sub).Update(ctx, obj, opts...)
			if lose {
				lose = false
				return apierrors.NewTimeoutError("the answer got lost", 1)
			}
			return err
		},
	}, newHost("a"), newHost("b"), newHost("c"))
	ctx := context.Background()
	if host, err := w.pool.Claim(ctx, pool.Request{Ref: claimA}); err == nil {
		t.Fatalf("got %q in spite of the time-out", host.Name)
	}
	host, err := w.pool.Claim(ctx, pool.Request{Ref: claimA})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		if h := w.stored(name); pool.Held(h, claimA) != (name == host.Name) {
			t.Errorf("host %q is held by %v; %q was returned", name, h.Status.ClaimRef, host.Name)
		}
	}
}

func TestAColdPoolClaimsAndListsNothing(t *testing.T) {
	w := newWorld(t, newHost("a"))
	p := pool.New(w.client, w.client, pool.NewInventory(namespace, classShape), pool.Options{Namespace: namespace})
	_, claimErr := p.Claim(context.Background(), pool.Request{Ref: claimA})
	_, listErr := p.List()
	_, claimedErr := p.Claimed()
	_, heldErr := p.HeldBy(context.Background(), claimA, "")
	_, getErr := p.ClaimedByProviderID(context.Background(), "kpssh://kpssh-system/a")
	for what, err := range map[string]error{"Claim": claimErr, "List": listErr, "Claimed": claimedErr, "HeldBy": heldErr, "ClaimedByProviderID": getErr} {
		if !errors.Is(err, pool.ErrCold) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestManyClaimsAtOnceShareOutTheHosts(t *testing.T) {
	const hosts, controllers = 60, 2
	all := make([]*v1beta1.SSHHost, hosts)
	for i := range all {
		all[i] = newHost(fmt.Sprintf("host-%02d", i))
	}
	w := newWorld(t, all...)
	pools := []*pool.Pool{w.pool}
	for len(pools) < controllers {
		_, p := w.another()
		pools = append(pools, p)
	}
	var mu sync.Mutex
	holders := map[string]types.UID{}
	var wg sync.WaitGroup
	for i := range hosts {
		ref := pool.Ref{Name: fmt.Sprint("claim-", i), UID: types.UID(fmt.Sprint("uid-", i))}
		p := pools[i%controllers]
		for range 2 { // twice for each NodeClaim
			wg.Go(func() {
				var host *v1beta1.SSHHost
				var err error
				for host == nil && (err == nil || errors.Is(err, pool.ErrContended)) {
					host, err = p.Claim(context.Background(), pool.Request{Ref: ref})
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("%s: %v", ref.Name, err)
				} else if other, taken := holders[host.Name]; taken && other != ref.UID {
					t.Errorf("host %q was given to %q and %q", host.Name, other, ref.UID)
				} else {
					holders[host.Name] = ref.UID
				}
			})
		}
	}
	wg.Wait()
	if len(holders) != hosts {
		t.Errorf("%d hosts claimed, want %d", len(holders), hosts)
	}
}

func TestAWaitingClaimGivesUpWithItsContext(t *testing.T) {
	entered, hold := make(chan struct{}), make(chan struct{})
	w := newWorldWith(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			close(entered)
			<-hold
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
	}, newHost("a"))
	done := make(chan error)
	go func() {
		_, err := w.pool.Claim(context.Background(), pool.Request{Ref: claimA})
		done <- err
	}()
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := w.pool.Claim(ctx, pool.Request{Ref: claimA}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(hold)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheHostInExcessIsTheOneThatTheNodeClaimDoesNotName(t *testing.T) {
	held := func(h *v1beta1.SSHHost) { inState(v1beta1.HostClaimed)(h) }
	adopted := func(h *v1beta1.SSHHost) { held(h); h.Status.ProviderID = "eks-hybrid:///mi-1" }
	for name, tc := range map[string]struct {
		hosts      []*v1beta1.SSHHost
		providerID string
		want       []string
	}{
		"two hosts, the NodeClaim names one":            {[]*v1beta1.SSHHost{newHost("a", held), newHost("b", held)}, "kpssh://kpssh-system/b", []string{"a"}},
		"two hosts, the NodeClaim names none yet":       {[]*v1beta1.SSHHost{newHost("a", held), newHost("b", held)}, "", nil},
		"two hosts, one named by its adopted id":        {[]*v1beta1.SSHHost{newHost("a", adopted), newHost("b", held)}, "eks-hybrid:///mi-1", []string{"b"}},
		"one host, not the one that is named":           {[]*v1beta1.SSHHost{newHost("a", held), newHost("b")}, "kpssh://kpssh-system/b", nil},
		"adopted on the host, not on the NodeClaim yet": {[]*v1beta1.SSHHost{newHost("a", adopted)}, "kpssh://kpssh-system/a", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.hosts...)
			var got []string
			for _, h := range tc.hosts {
				if w.pool.Extra(w.stored(h.Name), tc.providerID) {
					got = append(got, h.Name)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
