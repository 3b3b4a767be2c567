//go:build e2e

package operator_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/operator"
	"github.com/kpssh/karpenter-provider-ssh/pkg/operator/options"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const (
	namespace   = "kpssh-system"
	profileName = "in-memory"
)

// cluster is a real API server with the whole controller on it. Hosts are in memory, behind real SSH.
type cluster struct {
	login  []byte // the private SSH key
	t      *testing.T
	server *lab.APIServer
	client client.Client
	trust  *dispatchtest.World
	key    []byte // the dispatch key as kpssh writes it
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	server, err := lab.StartAPIServer(t.Context(), lab.APIServerOptions{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, manifest := range append(crds.Own(), crds.Karpenter()...) {
		if err := server.Apply(t.Context(), string(manifest)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := server.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	if err := v1beta1.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, server: server, trust: dispatchtest.NewWorld(t)}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := signing.KeyOf(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	c.trust.Rotate(func(root *signing.Root) { root.Dispatch = signing.RoleKeys{Keys: []signing.Key{public}, Threshold: 1} })
	if c.key, err = keys.Encode(private, nil); err != nil {
		t.Fatal(err)
	}
	if c.client, err = client.New(server.RESTConfig(), client.Options{Scheme: scheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) create(objects ...client.Object) {
	c.t.Helper()
	for _, o := range objects {
		if err := c.client.Create(c.t.Context(), o); err != nil {
			c.t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
		}
	}
}

func (c *cluster) get(name string, o client.Object) error {
	return c.client.Get(c.t.Context(), client.ObjectKey{Namespace: namespaceOf(o), Name: name}, o)
}

func namespaceOf(o client.Object) string {
	switch o.(type) {
	case *v1beta1.SSHHost:
		return namespace
	case *corev1.Pod:
		return metav1.NamespaceDefault
	}
	return ""
}

// eventually waits until the condition holds.
func (c *cluster) eventually(what string, limit time.Duration, holds func() bool) {
	c.t.Helper()
	began := time.Now()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
			if time.Since(began) > limit {
				out, _ := c.server.Kubectl(context.Background(), "get", "sshhosts,sshnodeclasses,nodepools,nodeclaims,nodes,pods,events", "-A", "-o", "wide")
				c.t.Fatalf("after %s still not: %s\n%s", limit, what, out)
			}
		case <-c.t.Context().Done():
			c.t.Fatal(c.t.Context().Err())
		}
	}
}

func (c *cluster) state(host string) v1beta1.HostState {
	h := &v1beta1.SSHHost{}
	if err := c.get(host, h); err != nil {
		return ""
	}
	return h.Status.State
}

// prepare creates what a user does: namespace, keys, signed documents, profile, class.
func (c *cluster) prepare() {
	c.t.Helper()
	scripts := v1beta1.Scripts{Install: "install\n", Join: "join\n", Leave: "leave\n"}
	for phase, script := range map[profile.Phase]string{profile.Install: scripts.Install, profile.Join: scripts.Join, profile.Leave: scripts.Leave} {
		schema, err := profile.Declare(phase, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		var parameters []signing.Parameter
		for _, p := range schema {
			parameters = append(parameters, signing.Parameter{
				Name: p.Name, Type: signing.ParamType(p.Type), Pattern: p.Pattern, MaxLength: p.MaxLength, Optional: p.Optional, Secret: p.Secret,
			})
		}
		c.trust.Allow(dispatchtest.Script(profileName, "1", signing.Phase(phase), []byte(script), parameters...))
	}
	roots, allowlist, err := c.trust.Documents()
	if err != nil {
		c.t.Fatal(err)
	}
	trust := map[string]string{"allowlist.json": string(allowlist)}
	for version, envelope := range roots {
		trust[fmt.Sprintf("root.%d.json", version)] = string(envelope)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		c.t.Fatal(err)
	}
	c.login = pem.EncodeToMemory(block)
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	c.create(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ConfigMap{ObjectMeta: meta("kpssh-trust"), Data: trust},
		&corev1.Secret{ObjectMeta: meta("kpssh-dispatch-key"), Data: map[string][]byte{keys.SecretKey: c.key}},
		&v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: profileName}, Spec: v1beta1.SSHJoinProfileSpec{Scripts: scripts}},
		&v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Spec: v1beta1.SSHNodeClassSpec{
			JoinProfileRef: v1beta1.JoinProfileRef{Name: profileName},
			Cluster:        &v1beta1.ClusterSpec{Endpoint: c.server.RESTConfig().Host, CABundle: c.server.RESTConfig().CAData},
		}},
		&karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Spec: karpv1.NodePoolSpec{
			Template: karpv1.NodeClaimTemplate{
				ObjectMeta: karpv1.ObjectMeta{Labels: map[string]string{apis.LabelManaged: "true"}},
				Spec: karpv1.NodeClaimTemplateSpec{
					NodeClassRef: &karpv1.NodeClassReference{Group: apis.Group, Kind: "SSHNodeClass", Name: "pool"},
					Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}},
				},
			},
			Disruption: karpv1.Disruption{ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmpty, ConsolidateAfter: karpv1.MustParseNillableDuration("Never")},
		}},
	)
}

// start runs the controller until the test ends.
func (c *cluster) start(args ...string) {
	c.t.Helper()
	c.t.Setenv("KUBECONFIG", c.server.Kubeconfig())
	opts, err := options.Parse(append([]string{
		"--metrics-port", "0", "--health-probe-port", "0", "--disable-leader-election=true", "--probe-interval", "2s", "--log-level", "error",
		"--log-output-paths", filepath.Join(c.t.TempDir(), "controller.log"),
	}, args...), func(string) (string, bool) { return "", false })
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	o, err := operator.New(ctx, opts, "test", c.t.Output())
	if err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- o.Start(ctx) }()
	c.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			c.t.Errorf("the controller ended with %v", err)
		}
	})
}

// member is a host in memory, with a kubelet that registers when join says so.
type member struct {
	*dispatchtest.Host
	c       *cluster
	mu      sync.Mutex
	kubelet bool
	bare    bool // the kubelet is given none of the taints
}

func (c *cluster) addHost(name string) *member {
	c.t.Helper()
	m := &member{Host: c.trust.NewHost(name), c: c}
	m.Behave(func(b *dispatchtest.Behaviour) {
		b.Facts = func() wire.HostFacts {
			m.mu.Lock()
			defer m.mu.Unlock()
			facts := wire.HostFacts{CPUs: 4, MemoryBytes: 8 << 30, Arch: "amd64", KubeletState: "inactive", Clock: time.Now()}
			if m.kubelet {
				facts.KubeletState = "active"
			}
			return facts
		}
		b.Run = m.run
	})
	reach := m.Dispatch()
	c.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-ssh"}, Data: map[string][]byte{
		hostaccess.KeyPrivate: c.login, hostaccess.KeyKnownHost: []byte(m.Server.Fingerprint()),
	}})
	c.create(&v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1beta1.SSHHostSpec{
		Address: reach.Target.Address, Port: int32(reach.Target.Port), SSHKeySecretRef: v1beta1.SecretRef{Name: name + "-ssh"}, NodeAddress: nodeAddress(name),
		Shim:     &v1beta1.ShimIdentity{HostID: reach.HostID, ReceiptKey: reach.ReceiptKey.String()},
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")},
	}})
	return m
}

func nodeAddress(host string) string { return "10.9.8." + fmt.Sprint(int(host[len(host)-1])) }

// run does what the scripts would.
func (m *member) run(o dispatchtest.Order) dispatchtest.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch o.Phase {
	case signing.PhaseJoin:
		m.kubelet = true
		if err := m.register(o); err != nil {
			return dispatchtest.Exit{Outcome: signing.OutcomeFailed, Code: 1, Output: err.Error()}
		}
	case signing.PhaseLeave:
		m.kubelet = false
	}
	return dispatchtest.Exit{}
}

func (m *member) register(o dispatchtest.Order) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: o.Parameters["KPSSH_NODE_NAME"], Labels: map[string]string{corev1.LabelHostname: o.Parameters["KPSSH_NODE_NAME"]}},
		Spec:       corev1.NodeSpec{ProviderID: o.Parameters["KPSSH_PROVIDER_ID"], Taints: []corev1.Taint{karpv1.UnregisteredNoExecuteTaint}},
	}
	if m.bare {
		node.Spec.Taints = nil
	}
	if err := m.c.client.Create(context.Background(), node); err != nil {
		return err
	}
	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
	status := corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: o.Parameters["KPSSH_NODE_ADDRESS"]}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
	}
	ctx := context.Background()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := m.c.client.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return err
		}
		node.Status = status
		return m.c.client.Status().Update(ctx, node)
	})
	if err != nil {
		return err
	}
	// Admission taints every new node; the controller that takes the taint off again does not run here.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := m.c.client.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return err
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
		return m.c.client.Update(ctx, node)
	})
}

// A pending pod pulls a host in and its NodeClaim's end gives it back, with karpenter core and all controllers wired as
// they are in the program.
func TestTheProgramOnARealAPIServer(t *testing.T) {
	c := newCluster(t)
	c.prepare()
	first, second := c.addHost("host-1"), c.addHost("host-2")
	c.start()
	c.eventually("both hosts are Available", time.Minute, func() bool {
		return c.state("host-1") == v1beta1.HostAvailable && c.state("host-2") == v1beta1.HostAvailable
	})
	for round, name := range []string{"cold", "warm"} {
		c.pend(name)
		var claim *karpv1.NodeClaim
		c.eventually(name+": a NodeClaim has a provider id", 30*time.Second, func() bool {
			claim = c.nodeClaim()
			return claim != nil && claim.Status.ProviderID != ""
		})
		c.eventually(name+": the node is initialized", time.Minute, func() bool {
			claim = c.nodeClaim()
			return claim != nil && claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue()
		})
		c.checkNode(claim)
		host := claim.Status.ProviderID[len("kpssh://"+namespace+"/"):]
		c.eventually(name+": the host is in use", 30*time.Second, func() bool { return c.state(host) == v1beta1.HostInUse })
		if err := c.client.Delete(t.Context(), c.pod(name), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		if err := c.client.Delete(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		c.eventually(name+": all is as before", time.Minute, func() bool {
			return c.nodeClaim() == nil && c.state("host-1") == v1beta1.HostAvailable && c.state("host-2") == v1beta1.HostAvailable
		})
		phases := map[signing.Phase]int{}
		for _, o := range append(first.Orders(), second.Orders()...) {
			phases[o.Phase]++
		}
		if phases[signing.PhaseInstall] != 1 || phases[signing.PhaseJoin] != round+1 || phases[signing.PhaseLeave] != round+1 {
			t.Errorf("%s: ran %v", name, phases)
		}
	}
}

func (c *cluster) pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}}},
	}}
}

// pend makes a pod that the scheduler, which does not run here, found no node for.
func (c *cluster) pend(name string) {
	c.t.Helper()
	pod := c.pod(name)
	c.create(pod)
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	if err := c.client.Status().Update(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) nodeClaim() *karpv1.NodeClaim {
	c.t.Helper()
	list := &karpv1.NodeClaimList{}
	if err := c.client.List(c.t.Context(), list); err != nil {
		c.t.Fatal(err)
	}
	if len(list.Items) > 1 {
		c.t.Fatalf("%d NodeClaims", len(list.Items))
	}
	for i := range list.Items {
		return &list.Items[i]
	}
	return nil
}

// checkNode looks at what core made of what Create returned.
func (c *cluster) checkNode(claim *karpv1.NodeClaim) {
	c.t.Helper()
	node := &corev1.Node{}
	if err := c.get(claim.Status.NodeName, node); err != nil {
		c.t.Fatal(err)
	}
	for key, want := range map[string]string{
		corev1.LabelInstanceTypeStable: "default", corev1.LabelArchStable: "amd64", corev1.LabelTopologyZone: "pool",
		karpv1.CapacityTypeLabelKey: "on-demand", apis.LabelHostClass: "default", apis.LabelManaged: "true", karpv1.NodePoolLabelKey: "pool",
	} {
		if got := node.Labels[key]; got != want {
			c.t.Errorf("label %s of the node is %q, want %q", key, got, want)
		}
	}
	class := &v1beta1.SSHNodeClass{}
	if err := c.get("pool", class); err != nil {
		c.t.Fatal(err)
	}
	if got := claim.Annotations[apis.AnnotationNodeClassHash]; got != class.Hash() {
		c.t.Errorf("hash of the class is %q, want %q", got, class.Hash())
	}
	if got := claim.Status.Allocatable.Cpu().String(); got != "3920m" {
		c.t.Errorf("allocatable CPU is %s", got)
	}
}

// karpenter#1049, R40: the node of a join that gives the kubelet no taints gets those of its NodeClaim all the same, the
// startup taints among them, and there is one warning that says how it is mended.
func TestAnUntaintedNode(t *testing.T) {
	if !alone(t) {
		return
	}
	startup := corev1.Taint{Key: "cni.example/not-ready", Effect: corev1.TaintEffectNoSchedule}
	c := newCluster(t)
	c.prepare()
	nodePool := &karpv1.NodePool{}
	if err := c.get("pool", nodePool); err != nil {
		t.Fatal(err)
	}
	nodePool.Spec.Template.Spec.StartupTaints = []corev1.Taint{startup}
	if err := c.client.Update(t.Context(), nodePool); err != nil {
		t.Fatal(err)
	}
	c.addHost("host-1").bare = true
	c.start()
	c.eventually("the host is Available", time.Minute, func() bool { return c.state("host-1") == v1beta1.HostAvailable })
	c.pend("bare")
	var claim *karpv1.NodeClaim
	c.eventually("the node is registered", time.Minute, func() bool {
		claim = c.nodeClaim()
		return claim != nil && claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue()
	})
	node := &corev1.Node{}
	if err := c.get(claim.Status.NodeName, node); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.MatchTaint(&startup) }) {
		t.Errorf("the node's taints are %v, and its startup taint is lost", node.Spec.Taints)
	}
	told := func() []corev1.Event {
		list := &corev1.EventList{}
		if err := c.client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Reason != "RegisteredUntainted" })
	}
	c.eventually("there is a warning", 30*time.Second, func() bool { return len(told()) > 0 })
	if got := told(); len(got) != 1 || got[0].InvolvedObject.Name != claim.Name || got[0].Type != corev1.EventTypeWarning || max(got[0].Count, 1) != 1 || !strings.Contains(got[0].Message, "KPSSH_TAINTS") {
		t.Errorf("told: %+v", got)
	}
}

// alone says whether this process is there for the test alone; where it is not, one is started that is, since core
// registers its metrics once in a process, and so a process has one controller in its life.
func alone(t *testing.T) bool {
	t.Helper()
	const variable = "KPSSH_TEST_ALONE"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), variable+"="+t.Name())
	out, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}
