package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const (
	clusterNamespace = "kpssh-system"
	// clusterWriters fill it; more of them only wait for each other.
	clusterWriters = 16
	// poolLabel says which node class a host is for.
	poolLabel = "pool"
)

// cluster is an API server with everything on it that a controller needs, and hosts in this process that speak the shim's protocol
// over real SSH. The controller is the built program.
type cluster struct {
	*bench
	server *lab.APIServer
	client client.Client
	world  *dispatchtest.World
	login  []byte // the private SSH key
	dir    string

	hosts       map[string]*dispatchtest.Host
	controllers []*controller
}

func newCluster(ctx context.Context, b *bench) (_ *cluster, err error) {
	ctrllog.SetLogger(logr.Discard()) // or controller-runtime complains that nobody did
	c := &cluster{bench: b, hosts: map[string]*dispatchtest.Host{}}
	if c.dir, err = os.MkdirTemp("", "kpssh-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.server, err = lab.StartAPIServer(ctx, lab.APIServerOptions{Log: b.detail}); err != nil {
		return nil, err
	}
	for _, manifest := range append(crds.Own(), crds.Karpenter()...) {
		if err := c.server.Apply(ctx, string(manifest)); err != nil {
			return nil, err
		}
	}
	if _, err := c.server.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		return nil, err
	}
	scheme := k8sruntime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	karpenter := schema.GroupVersion{Group: karpapis.Group, Version: "v1"}
	metav1.AddToGroupVersion(scheme, karpenter)
	scheme.AddKnownTypes(karpenter, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	if c.client, err = client.New(c.server.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	return c, c.install(ctx)
}

// close ends all of it; a controller that ended by itself is an error.
func (c *cluster) close() error {
	var errs []error
	for _, controller := range c.controllers {
		errs = append(errs, controller.kill())
	}
	for _, host := range c.hosts {
		host.Server.Close()
	}
	if c.server != nil {
		errs = append(errs, c.server.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// install makes what a user makes: keys, signed documents, a profile.
func (c *cluster) install(ctx context.Context) (err error) {
	stop := &stopper{}
	defer stop.recover(&err)
	c.world = dispatchtest.NewWorld(stop)
	_, dispatchKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	public, err := signing.KeyOf(dispatchKey.Public())
	if err != nil {
		return err
	}
	c.world.Rotate(func(root *signing.Root) { root.Dispatch = signing.RoleKeys{Keys: []signing.Key{public}, Threshold: 1} })
	encoded, err := keys.Encode(dispatchKey, nil)
	if err != nil {
		return err
	}
	_, loginKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(loginKey, "")
	if err != nil {
		return err
	}
	c.login = pem.EncodeToMemory(block)
	scripts := v1beta1.Scripts{Install: "install\n", Join: "join\n", Leave: "leave\n"}
	if err := c.allow(map[profile.Phase]string{profile.Install: scripts.Install, profile.Join: scripts.Join, profile.Leave: scripts.Leave}); err != nil {
		return err
	}
	roots, list, err := c.world.Documents()
	if err != nil {
		return err
	}
	trust := map[string]string{"allowlist.json": string(list)}
	for version, envelope := range roots {
		trust[fmt.Sprintf("root.%d.json", version)] = string(envelope)
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: clusterNamespace, Name: name} }
	return c.create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterNamespace}},
		&corev1.ConfigMap{ObjectMeta: meta("kpssh-trust"), Data: trust},
		&corev1.Secret{ObjectMeta: meta("kpssh-dispatch-key"), Data: map[string][]byte{keys.SecretKey: encoded}},
		&v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: benchProfile}, Spec: v1beta1.SSHJoinProfileSpec{Version: "1", Scripts: scripts}},
	)
}

// allow has the author allow the scripts, with the parameters that they are given.
func (c *cluster) allow(scripts map[profile.Phase]string) error {
	for phase, script := range scripts {
		declared, err := profile.Declare(phase, nil)
		if err != nil {
			return err
		}
		var parameters []signing.Parameter
		for _, p := range declared {
			parameters = append(parameters, signing.Parameter{
				Name: p.Name, Type: signing.ParamType(p.Type), Pattern: p.Pattern, MaxLength: p.MaxLength, Optional: p.Optional, Secret: p.Secret,
			})
		}
		c.world.Allow(dispatchtest.Script(benchProfile, "1", signing.Phase(phase), []byte(script), parameters...))
	}
	return nil
}

func (c *cluster) create(ctx context.Context, objects ...client.Object) error {
	for _, o := range objects {
		if err := c.client.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %q: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// addPool makes a NodePool, and a node class that selects the hosts of its name.
func (c *cluster) addPool(ctx context.Context, name string) error {
	config := c.server.RESTConfig()
	return c.create(ctx,
		&v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1beta1.SSHNodeClassSpec{
			JoinProfileRef: v1beta1.JoinProfileRef{Name: benchProfile},
			HostSelector:   metav1.LabelSelector{MatchLabels: map[string]string{poolLabel: name}},
			Cluster:        &v1beta1.ClusterSpec{Endpoint: config.Host, CABundle: config.CAData},
		}},
		&karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodePoolSpec{
			Template: karpv1.NodeClaimTemplate{
				ObjectMeta: karpv1.ObjectMeta{Labels: map[string]string{apis.LabelManaged: "true"}},
				Spec: karpv1.NodeClaimTemplateSpec{
					NodeClassRef: &karpv1.NodeClassReference{Group: apis.Group, Kind: cloudprovider.NodeClassKind, Name: name},
					Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
						{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{string(corev1.Linux)}},
					},
				},
			},
			Disruption: karpv1.Disruption{ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmpty, ConsolidateAfter: karpv1.MustParseNillableDuration("Never")},
		}},
	)
}

// addHosts makes hosts of a pool, each with a Secret of its own, as somebody does who enrols them.
func (c *cluster) addHosts(ctx context.Context, pool string, n int) (err error) {
	stop := &stopper{}
	defer stop.recover(&err)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clusterWriters)
	for i := range n {
		name := fmt.Sprintf("%s-%04d", pool, i)
		host := c.world.NewHost(name)
		c.hosts[name] = host
		// Hosts of one address would be one machine twice.
		node := fmt.Sprintf("10.9.%d.%d", len(c.hosts)/250, len(c.hosts)%250+1)
		host.Behave(func(b *dispatchtest.Behaviour) { b.Facts = func() wire.HostFacts { return facts(host, node) } })
		group.Go(func() error { return c.addHost(ctx, pool, node, host) })
	}
	return group.Wait()
}

// age leaves all hosts as a controller does that has run for long: free, with all documents, and probed some time in the last
// interval.
func (c *cluster) age(ctx context.Context, interval time.Duration) error {
	trust, err := c.trust()
	if err != nil {
		return err
	}
	list := &v1beta1.SSHHostList{}
	if err := c.client.List(ctx, list); err != nil {
		return err
	}
	now := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clusterWriters)
	for i := range list.Items {
		object := &list.Items[i]
		host := c.hosts[object.Name]
		probed := now.Add(-time.Duration(i) * interval / time.Duration(len(list.Items)))
		group.Go(func() error {
			if err := c.teach(host); err != nil {
				return err
			}
			object.Status = afterProbe(object, host, trust, probed)
			return c.client.Status().Update(ctx, object)
		})
	}
	return group.Wait()
}

func (c *cluster) addHost(ctx context.Context, pool, node string, host *dispatchtest.Host) error {
	reach := host.Dispatch()
	meta := metav1.ObjectMeta{Namespace: clusterNamespace, Name: host.Name, Labels: map[string]string{poolLabel: pool}}
	object := &v1beta1.SSHHost{ObjectMeta: meta, Spec: v1beta1.SSHHostSpec{
		Address: reach.Target.Address, Port: int32(reach.Target.Port), //nolint:gosec // a port
		SSHKeySecretRef: v1beta1.SecretRef{Name: host.Name + "-ssh"}, NodeAddress: node,
		Shim:     &v1beta1.ShimIdentity{HostID: reach.HostID, ReceiptKey: reach.ReceiptKey.String()},
		Capacity: hostCapacity(),
	}}
	return c.create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterNamespace, Name: host.Name + "-ssh"},
		Data:       map[string][]byte{hostaccess.KeyPrivate: c.login, hostaccess.KeyKnownHost: []byte(host.Server.Fingerprint())},
	}, object)
}

// facts are what a free host of that address says of itself.
func facts(host *dispatchtest.Host, node string) wire.HostFacts {
	return wire.HostFacts{
		CPUs: 4, MemoryBytes: 8 << 30, DiskFreeBytes: 20 << 30, PageSize: 4096, Arch: "amd64", KernelArch: "x86_64",
		KubeletState: "inactive", ContainerdState: "inactive", Cgroup: "v2", MemoryCgroup: true, Hostname: host.Name,
		MachineID: host.Dispatch().HostID, OS: "Debian GNU/Linux 13", Kernel: "6.12", Addresses: []string{node}, Clock: time.Now(),
	}
}

func hostCapacity() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")}
}

// trust is what a host believes that has all documents.
func (c *cluster) trust() (*v1beta1.HostTrust, error) {
	roots, list, err := c.world.Documents()
	if err != nil {
		return nil, err
	}
	newest := slices.Max(slices.Collect(maps.Keys(roots)))
	trust := &v1beta1.HostTrust{RootVersion: newest}
	if trust.RootDigest, err = signing.PayloadDigest(roots[newest]); err != nil {
		return nil, err
	}
	if trust.AllowlistDigest, err = signing.PayloadDigest(list); err != nil {
		return nil, err
	}
	root, err := signing.OpenFirstRoot(roots[newest])
	if err != nil {
		return nil, err
	}
	opened, err := signing.OpenAllowlist(list, root)
	if err != nil {
		return nil, err
	}
	trust.AllowlistVersion = opened.Version
	return trust, nil
}

// teach has a host take all documents, in a session like those of a controller but without SSH.
func (c *cluster) teach(host *dispatchtest.Host) error {
	_, list, err := c.world.Documents() // it trusts the newest root from the start
	if err != nil {
		return err
	}
	var in bytes.Buffer
	if err := errors.Join(wire.Write(&in, wire.Allowlist, list), wire.Write(&in, wire.Probe, nil)); err != nil {
		return err
	}
	if status := host.Serve(&remotetest.Session{Stdin: &in, Stdout: io.Discard}); status != 0 {
		return fmt.Errorf("host %q took no documents: status %d", host.Name, status)
	}
	return nil
}

// afterProbe is the status of a free host that was found clean.
func afterProbe(object *v1beta1.SSHHost, host *dispatchtest.Host, trust *v1beta1.HostTrust, at time.Time) v1beta1.SSHHostStatus {
	status := v1beta1.SSHHostStatus{
		State: v1beta1.HostAvailable, ObservedArch: "amd64", ObservedCapacity: hostCapacity(), ObservedGeneration: object.Generation, ObservedPageSize: 4096,
		HostKeyFingerprint: host.Server.Fingerprint(), Trust: trust.DeepCopy(), LastProbeTime: &metav1.Time{Time: at},
	}
	fresh := &v1beta1.SSHHost{Status: status}
	fresh.StatusConditions().SetTrueWithReason(v1beta1.ConditionReady, v1beta1.ReasonProbed, "answered its last probe")
	return fresh.Status
}

// pend makes a pod for a pool that the scheduler, which does not run here, found no node for.
func (c *cluster) pend(ctx context.Context, pool, name string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{karpv1.NodePoolLabelKey: pool},
			Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}, // so that a host has room for one
			}}},
		},
	}
	if err := c.create(ctx, pod); err != nil {
		return err
	}
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	return c.client.Status().Update(ctx, pod)
}

// until looks every few milliseconds until something is so, which is when missing answers nothing; else it says what is missing.
func (c *cluster) until(ctx context.Context, what string, limit time.Duration, missing func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(lookInterval / 2)
	defer ticker.Stop()
	last := "nothing was answered"
	for {
		now, err := missing(ctx)
		switch {
		case err == nil && now == "":
			return nil
		case err == nil:
			last = now
		case ctx.Err() == nil:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w: %s%s", what, ctx.Err(), last, c.tails())
		case <-ticker.C:
		}
	}
}

// tails are the last lines of what the controllers logged.
func (c *cluster) tails() (out string) {
	for _, controller := range c.controllers {
		log, err := os.ReadFile(controller.log)
		if err != nil {
			return err.Error()
		}
		out += fmt.Sprintf("\n%s: %s", filepath.Base(controller.log), log[max(0, len(log)-2000):])
	}
	return out
}

// available waits until all hosts are.
func (c *cluster) available(ctx context.Context) error {
	return c.until(ctx, "all hosts are Available", time.Minute, func(ctx context.Context) (string, error) {
		list := &v1beta1.SSHHostList{}
		if err := c.client.List(ctx, list); err != nil {
			return "", err
		}
		for _, host := range list.Items {
			if host.Status.State != v1beta1.HostAvailable {
				return fmt.Sprintf("host %q is %q: %s", host.Name, host.Status.State, host.Status.LastProbeError), nil
			}
		}
		return "", nil
	})
}
