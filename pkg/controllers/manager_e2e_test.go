//go:build e2e

package controllers_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// realWorld is world over a real API server, with the controllers in a real manager.
type realWorld struct {
	*world
	config *rest.Config
}

func newRealWorld(t *testing.T, names ...string) *realWorld {
	t.Helper()
	api, err := lab.StartAPIServer(t.Context(), lab.APIServerOptions{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, manifest := range append(crds.Own(), crds.Karpenter()...) {
		if err := api.Apply(t.Context(), string(manifest)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.NewWithWatch(api.RESTConfig(), client.Options{Scheme: controllertest.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	w := &realWorld{config: api.RESTConfig(), world: &world{
		t: t, trust: dispatchtest.NewWorld(t), hosts: map[string]*machine{}, now: time.Now, Env: controllertest.Over(t, c),
	}}
	w.allow()
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: controllertest.Namespace}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "ssh-key"}, Data: map[string][]byte{"privateKey": []byte("key")}},
		controllertest.ClusterInfo(t), controllertest.Class(), controllertest.Profile(),
	}
	for i, name := range names {
		w.hosts[name] = w.newMachine(name)
		host := controllertest.Host(name, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}[i])
		host.Status = v1beta1.SSHHostStatus{}
		host.Spec.Shim.ReceiptKey = dispatchtest.NewSigner(t).Public().String()
		objects = append(objects, host)
	}
	for _, object := range objects {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
		}
	}
	return w
}

// manage runs the controllers in a manager until stop is called.
func (w *realWorld) manage() (p *process, stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	anyName := true
	manager, err := ctrl.NewManager(w.config, ctrl.Options{
		Scheme:  controllertest.Scheme(),
		Logger:  testr.New(w.t),
		Metrics: server.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1beta1.SSHHost{}:  {Namespaces: map[string]cache.Config{controllertest.Namespace: {}}},
			&corev1.Secret{}:    {Namespaces: map[string]cache.Config{controllertest.Namespace: {}}},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{controllertest.Namespace: {}}},
		}},
		Controller: config.Controller{SkipNameValidation: &anyName},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	err = manager.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	inventory := pool.NewInventory(controllertest.Namespace, func(*v1beta1.SSHHost) string { return "" })
	if err := inventory.Feed(ctx, manager.GetCache()); err != nil {
		w.t.Fatal(err)
	}
	hosts := pool.New(manager.GetClient(), manager.GetAPIReader(), inventory, pool.Options{Namespace: controllertest.Namespace})
	all, err := controllers.New(ctx, controllers.Dependencies{
		Client: manager.GetClient(), Live: manager.GetAPIReader(), Cluster: controllertest.Cluster, Indexer: manager.GetFieldIndexer(), Pool: hosts, Inventory: inventory,
		Dispatcher: w.trust.Dispatcher(), Access: access{w.world}, Trust: w.trust,
		TrustConfigMap: types.NamespacedName{Namespace: controllertest.Namespace, Name: "kpssh-trust"},
		DispatchKey:    func() (signing.Key, error) { return w.trust.Signer().Public(), nil },
		Recorder:       w.Events, Registerer: prometheus.NewRegistry(), PoolNamespace: controllertest.Namespace, ProbeInterval: 5 * time.Second,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range all {
		if err := c.Register(ctx, manager); err != nil {
			w.t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	if !manager.GetCache().WaitForCacheSync(ctx) {
		w.t.Fatal("the cache was not filled")
	}
	return &process{w: w.world, pool: hosts}, func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}
}

// eventually waits for the condition, while core does its part.
func (w *realWorld) eventually(p *process, what string, holds func() bool) {
	w.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		w.coreOf(p)
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("never came to be: %s\n%s\nevents:\n%s", what, w.describe(), w.Events.Text())
		}
	}
}

// coreOf lets core try, and tries again at a conflict, as core does.
func (w *realWorld) coreOf(p *process) {
	list := &karpenterv1.NodeClaimList{}
	if err := w.Client.List(context.Background(), list); err != nil {
		w.t.Fatal(err)
	}
	for i := range list.Items {
		if err := w.coreNodeClaim(p, &list.Items[i]); err != nil && !isConflict(err) {
			w.t.Fatal(err)
		}
	}
}

func TestMembershipOnARealAPIServer(t *testing.T) {
	w := newRealWorld(t, "host-a", "host-b")
	p, stop := w.manage()
	free := func() bool {
		return w.state("host-a") == v1beta1.HostAvailable && w.state("host-b") == v1beta1.HostAvailable
	}
	w.eventually(p, "the hosts are Available", free)
	w.eventually(p, "the class is Ready", func() bool {
		return w.Class(controllertest.ClassName).StatusConditions().Get(v1beta1.ConditionReady).IsTrue()
	})
	used := func() bool {
		return w.state("host-a") == v1beta1.HostInUse && w.state("host-b") == v1beta1.HostInUse && w.Tokens() == 0
	}
	for range 2 {
		w.launchReal(p, "pool-1")
		w.launchReal(p, "pool-2")
		w.eventually(p, "both nodes are in use", used)
		w.deleteNodeClaim("pool-1")
		w.deleteNodeClaim("pool-2")
		w.eventually(p, "both hosts are back", func() bool { return free() && w.NodeClaim("pool-1") == nil && w.NodeClaim("pool-2") == nil })
	}
	for name, m := range w.hosts {
		if got := runs(m); got[signing.PhaseInstall] != 1 || got[signing.PhaseJoin] != 2 || got[signing.PhaseLeave] != 2 {
			t.Errorf("%s: runs %v", name, got)
		}
	}

	// The process dies, at moments that nobody chose, until the join has ended all the same.
	w.launchReal(p, "pool-3")
	for range 5 {
		stop()
		p, stop = w.manage()
	}
	w.eventually(p, "the node is in use", func() bool {
		return (w.state("host-a") == v1beta1.HostInUse || w.state("host-b") == v1beta1.HostInUse) && w.Tokens() == 0
	})

	// Its NodeClaim is deleted by force, and its node stays.
	nodeClaim := w.NodeClaim("pool-3")
	nodeClaim.Finalizers = nil
	if err := w.Client.Update(t.Context(), nodeClaim); err != nil {
		t.Fatal(err)
	}
	w.deleteNodeClaim("pool-3")
	w.eventually(p, "the hosts are back", func() bool {
		if node := w.Node("pool-3"); node != nil && !node.DeletionTimestamp.IsZero() && len(node.Finalizers) > 0 {
			node.Finalizers = nil // as core does, which finds no NodeClaim for it
			if err := w.Client.Update(t.Context(), node); client.IgnoreNotFound(err) != nil && !isConflict(err) {
				t.Fatal(err)
			}
		}
		return free() && w.Node("pool-3") == nil
	})

	// A join that fails.
	for _, m := range w.hosts {
		m.mu.Lock()
		m.exits[signing.PhaseJoin] = 3
		m.mu.Unlock()
	}
	w.launchReal(p, "pool-4")
	w.eventually(p, "the nodeclaim is gone", func() bool { return w.NodeClaim("pool-4") == nil })
	if w.Tokens() != 0 {
		t.Errorf("%d tokens are left", w.Tokens())
	}
	w.eventually(p, "the hosts are back", free)
	stop()
}
