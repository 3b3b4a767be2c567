//go:build e2e

package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// real is a real API server with a number of Available hosts, to which more can be added.
type real struct {
	t      *testing.T
	config *rest.Config
	scheme *runtime.Scheme
	client client.Client
	hosts  int
}

func newReal(t *testing.T, hosts int) *real {
	t.Helper()
	log.SetLogger(logr.Discard())
	server, err := lab.StartAPIServer(t.Context(), lab.APIServerOptions{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, manifest := range crds.Own() {
		if err := server.Apply(t.Context(), string(manifest)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := server.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	r := &real{t: t, config: server.RESTConfig(), scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(r.scheme); err != nil {
			t.Fatal(err)
		}
	}
	if r.client, err = client.New(r.config, client.Options{Scheme: r.scheme}); err != nil {
		t.Fatal(err)
	}
	if err := r.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	r.grow(hosts)
	return r
}

func (r *real) grow(to int) {
	r.t.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for ; r.hosts < to; r.hosts++ {
		name := fmt.Sprint("host-", r.hosts)
		group.Go(func() error { return r.make(name) })
	}
	if err := group.Wait(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *real) make(name string) error {
	host := newHost(name)
	host.UID, host.Spec.SSHKeySecretRef.Name = "", "ssh"
	host.Spec.Shim = &v1beta1.ShimIdentity{HostID: "0123456789abcdef-" + name, ReceiptKey: "ed25519:MCowBQYDK2VwAyEA" + strings.Repeat("A", 43) + "="}
	status := host.Status
	if err := r.client.Create(r.t.Context(), host); err != nil {
		return err
	}
	host.Status = status
	return r.client.Status().Update(r.t.Context(), host)
}

// controller is a pool as the program has it: fed by a watch of its own.
func (r *real) controller() *pool.Pool {
	r.t.Helper()
	informers, err := cache.New(r.config, cache.Options{Scheme: r.scheme})
	if err != nil {
		r.t.Fatal(err)
	}
	inventory := pool.NewInventory(namespace, classShape)
	if err := inventory.Feed(r.t.Context(), informers); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		if err := informers.Start(r.t.Context()); err != nil {
			r.t.Error(err)
		}
	}()
	if !informers.WaitForCacheSync(r.t.Context()) {
		r.t.Fatal("the cache was not filled")
	}
	if !toolscache.WaitForCacheSync(r.t.Context().Done(), inventory.Synced) {
		r.t.Fatal("the inventory was not filled")
	}
	p := pool.New(r.client, r.client, inventory, pool.Options{Namespace: namespace})
	if err := p.Prime(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return p
}

func refOf(kind string, i int) pool.Ref {
	return pool.Ref{Name: kind + strconv.Itoa(i), UID: types.UID("uid-" + kind + strconv.Itoa(i))}
}

// timed returns the durations of n runs in a row, sorted.
func timed(t *testing.T, n int, run func(i int) error) []time.Duration {
	t.Helper()
	out := make([]time.Duration, n)
	for i := range n {
		began := time.Now()
		if err := run(i); err != nil {
			t.Fatal(err)
		}
		out[i] = time.Since(began)
	}
	slices.Sort(out)
	return out
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

func TestManyClaimsOnARealAPIServer(t *testing.T) {
	r := newReal(t, 1000)
	first, second := r.controller(), r.controller()
	const claims = 200
	var mu sync.Mutex
	holders := map[string]string{}
	began := time.Now()
	var group errgroup.Group
	for i := range claims {
		p := []*pool.Pool{first, second}[i%2]
		group.Go(func() error {
			ref := refOf("many-", i)
			host, err := p.Claim(t.Context(), pool.Request{Ref: ref})
			for errors.Is(err, pool.ErrContended) {
				host, err = p.Claim(t.Context(), pool.Request{Ref: ref})
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if other, taken := holders[host.Name]; taken {
				return fmt.Errorf("%s holds %s, and so does %s", ref.Name, host.Name, other)
			}
			holders[host.Name] = ref.Name
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	together := time.Since(began)
	list := &v1beta1.SSHHostList{}
	if err := r.client.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	seen := map[types.UID]string{}
	for i := range list.Items {
		host := &list.Items[i]
		ref := pool.RefOn(host)
		if ref.UID == "" {
			continue
		}
		if other, twice := seen[ref.UID]; twice {
			t.Errorf("%s holds %s and %s", ref.Name, other, host.Name)
		}
		seen[ref.UID] = host.Name
		if holders[host.Name] != ref.Name {
			t.Errorf("%s is held by %s and was given to %q", host.Name, ref.Name, holders[host.Name])
		}
	}
	if len(seen) != claims {
		t.Errorf("%d hosts are held, want %d", len(seen), claims)
	}
	update := r.updates(claims)
	var inARow time.Duration
	for _, d := range update {
		inARow += d
	}
	t.Logf("Q4: %d claims at once by two controllers %s / %d status updates in a row %s = %.2f", claims, together, claims, inARow, ratio(together, inARow))
}

// updates times status updates of one host that nobody else writes.
func (r *real) updates(n int) []time.Duration {
	r.t.Helper()
	host := &v1beta1.SSHHost{}
	name := "plain-" + strconv.Itoa(r.hosts)
	if err := r.make(name); err != nil {
		r.t.Fatal(err)
	}
	if err := r.client.Get(r.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, host); err != nil {
		r.t.Fatal(err)
	}
	out := timed(r.t, n, func(i int) error {
		host.Status.LastProbeError = strconv.Itoa(i)
		return r.client.Status().Update(r.t.Context(), host)
	})
	if err := r.client.Delete(r.t.Context(), host); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// A claim costs one write, however many hosts there are.
func TestAClaimCostsTheSameInALargePool(t *testing.T) {
	r := newReal(t, 100)
	const n = 60
	small := r.controller()
	smallTimes := timed(t, n, func(i int) error {
		_, err := small.Claim(t.Context(), pool.Request{Ref: refOf("small-", i)})
		return err
	})
	r.grow(2000)
	large := r.controller()
	largeTimes := timed(t, n, func(i int) error {
		_, err := large.Claim(t.Context(), pool.Request{Ref: refOf("large-", i)})
		return err
	})
	update := r.updates(n)
	t.Logf("Q1: claim p99 %s / status update p50 %s = %.2f", quantile(largeTimes, 0.99), quantile(update, 0.5), ratio(quantile(largeTimes, 0.99), quantile(update, 0.5)))
	t.Logf("Q3: claim p50 of %d hosts %s / of 100 hosts %s = %.2f", r.hosts, quantile(largeTimes, 0.5), quantile(smallTimes, 0.5), ratio(quantile(largeTimes, 0.5), quantile(smallTimes, 0.5)))
	// Generous: a look through all hosts at the API server takes a hundred times as long as an update.
	if got := ratio(quantile(largeTimes, 0.5), quantile(update, 0.5)); got > 5 {
		t.Errorf("a claim among %d hosts takes %.1f times as long as a status update", r.hosts, got)
	}
}

// The API server keeps apart a host and another one that was made under its name.
func TestAWriteForADeletedHostDoesNotReachItsNamesake(t *testing.T) {
	r := newReal(t, 1)
	p := r.controller()
	host, err := p.Claim(t.Context(), pool.Request{Ref: claimA})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.Delete(context.Background(), host); err != nil {
		t.Fatal(err)
	}
	if err := r.make(host.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := p.SetInUse(t.Context(), host, claimA); !errors.Is(err, pool.ErrClaimLost) {
		t.Errorf("got %v", err)
	}
	again, err := p.Claim(t.Context(), pool.Request{Ref: claimA})
	if err != nil || again.UID == host.UID {
		t.Errorf("claimed %v, %v", again, err)
	}
}
