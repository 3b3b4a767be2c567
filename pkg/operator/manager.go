package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator/logging"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/operator/options"
)

// clusterInfo is what cluster endpoints are read from.
const clusterInfo = "cluster-info"

// newManager makes the manager as core's NewOperator does, with narrower caches.
func newManager(ctx context.Context, config *rest.Config, opts *options.Options, version string) (manager.Manager, error) {
	core, logger := opts.Core, log.FromContext(ctx)
	// The lease has a client of its own: sharing a rate limit with a large scale-up has cost core its lease.
	leaderConfig := rest.CopyConfig(config)
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = float32(core.KubeClientQPS), core.KubeClientBurst
	config.UserAgent = Name + "/" + version
	warmup := !core.DisableLeaderElection && !core.DisableControllerWarmup
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme.Scheme,
		Logger:                        logging.IgnoreDebugEvents(logger),
		LeaderElection:                !core.DisableLeaderElection,
		LeaderElectionID:              core.LeaderElectionName,
		LeaderElectionNamespace:       core.LeaderElectionNamespace,
		LeaderElectionResourceLock:    resourcelock.LeasesResourceLock,
		LeaderElectionReleaseOnCancel: true,
		LeaderElectionConfig:          leaderConfig,
		Metrics:                       server.Options{BindAddress: bindAddress(core.MetricsPort), ExtraHandlers: profiles(core.EnableProfiling)},
		HealthProbeBindAddress:        bindAddress(core.HealthProbePort),
		BaseContext:                   func() context.Context { return core.ToContext(log.IntoContext(context.Background(), logger)) },
		Cache:                         cacheOptions(opts),
		Controller:                    ctrlconfig.Controller{EnableWarmup: &warmup},
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	if err := indexCore(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	return mgr, addChecks(mgr)
}

// bindAddress is where to serve; port 0 is nowhere.
func bindAddress(port int) string {
	if port == 0 {
		return "0"
	}
	return net.JoinHostPort("", strconv.Itoa(port))
}

func named(name string) cache.Config {
	return cache.Config{FieldSelector: fields.OneTermEqualSelector("metadata.name", name)}
}

func cacheOptions(opts *options.Options) cache.Options {
	secrets := map[string]cache.Config{}
	if key := dispatchKeySecret(opts); key.Name != "" { // else the controller need not be allowed to read it
		secrets[key.Namespace] = named(key.Name)
	}
	secrets[opts.PoolNamespace] = cache.Config{} // all of them, also when it is the controller's
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&coordinationv1.Lease{}: {Field: fields.SelectorFromSet(fields.Set{"metadata.namespace": "kube-node-lease"})},
		&v1beta1.SSHHost{}:      {Namespaces: map[string]cache.Config{opts.PoolNamespace: {}}},
		&corev1.Secret{}:        {Namespaces: secrets},
		&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
			opts.Namespace: named(opts.TrustConfigMap), metav1.NamespacePublic: named(clusterInfo),
		}},
	}}
}

// required are the kinds that nothing works without.
func required() []client.Object {
	return []client.Object{&karpv1.NodePool{}, &karpv1.NodeClaim{}, &v1beta1.SSHHost{}, &v1beta1.SSHNodeClass{}, &v1beta1.SSHJoinProfile{}}
}

// missingCRDs returns an error that names each kind that the cluster does not serve.
func missingCRDs(mgr manager.Manager) error {
	var errs []error
	for _, obj := range required() {
		gvk, err := apiutil.GVKForObject(obj, mgr.GetScheme())
		if err != nil {
			return err
		}
		if _, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", gvk.GroupKind(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("looking for the CRDs of karpenter and of this provider: %w", err)
	}
	return nil
}

func addChecks(mgr manager.Manager) error {
	synced := func(req *http.Request) error {
		if !mgr.GetCache().WaitForCacheSync(req.Context()) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}
	return errors.Join(
		mgr.AddHealthzCheck("healthz", healthz.Ping),
		mgr.AddReadyzCheck("readyz", healthz.Ping),
		mgr.AddReadyzCheck("caches", synced),
		mgr.AddReadyzCheck("crds", func(*http.Request) error { return missingCRDs(mgr) }),
	)
}
