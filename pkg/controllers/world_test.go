package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclaim/join"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclaim/leave"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/status"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/claim"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/maintenance"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/prepare"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/probe"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/token"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// world is a whole provider without karpenter: an API server in memory, a real pool, a real dispatcher with
// real keys, hosts that speak the shim's protocol over real SSH, and of core just what keeps NodeClaims and
// Nodes going.
type world struct {
	*controllertest.Env
	t     *testing.T
	trust *dispatchtest.World
	hosts map[string]*machine
	// crash, when set, is told of every step outside of core, and may panic in it.
	crash func(step string)
	// now is what the hosts' clocks show.
	now func() time.Time
}

// machine is a host and the kubelet on it.
type machine struct {
	*dispatchtest.Host
	mu      sync.Mutex
	kubelet bool
	// exits are the statuses that phases end with.
	exits map[signing.Phase]int
	// silent keeps the kubelet from registering.
	silent bool
}

type crashed struct{ step string }

func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	w := &world{t: t, trust: dispatchtest.NewWorld(t), hosts: map[string]*machine{}}
	w.now = func() time.Time { return w.Clock.Now() }
	objects := []client.Object{controllertest.Class(), controllertest.Profile(), controllertest.ClusterInfo(t)}
	for i, name := range names {
		address := fmt.Sprintf("10.0.0.%d", i+1)
		objects = append(objects, controllertest.Host(name, address, controllertest.InState("")))
		w.hosts[name] = w.newMachine(name)
	}
	w.Env = controllertest.NewIntercepted(t, w.faults(), objects...)
	w.allow()
	return w
}

// allow has the author sign the profile's scripts, with the class's var declared.
func (w *world) allow() {
	scripts := controllertest.Profile().Spec.Scripts
	for phase, script := range map[profile.Phase]string{profile.Install: scripts.Install, profile.Join: scripts.Join, profile.Leave: scripts.Leave} {
		var declared []profile.Parameter
		if phase != profile.Leave {
			declared = append(declared, profile.Parameter{Name: "KPSSH_VAR_MIRROR", Type: "string"})
		}
		schema, err := profile.Declare(phase, declared)
		if err != nil {
			w.t.Fatal(err)
		}
		var parameters []signing.Parameter
		for _, p := range schema {
			parameters = append(parameters, signing.Parameter{
				Name: p.Name, Type: signing.ParamType(p.Type), Pattern: p.Pattern, MaxLength: p.MaxLength, Optional: p.Optional, Secret: p.Secret, Pins: p.Pins})
		}
		w.trust.Allow(dispatchtest.Script(controllertest.ProfileName, "1", signing.Phase(phase), []byte(script), parameters...))
	}
}

func (w *world) newMachine(name string) *machine {
	m := &machine{Host: w.trust.NewHost(name), exits: map[signing.Phase]int{}}
	m.Behave(func(b *dispatchtest.Behaviour) {
		b.Facts = func() wire.HostFacts {
			facts := wire.HostFacts{CPUs: 4, MemoryBytes: 8 << 30, Arch: "amd64", KubeletState: "inactive", Clock: w.now()}
			if m.running() {
				facts.KubeletState = "active"
			}
			return facts
		}
		b.Run = func(o dispatchtest.Order) dispatchtest.Exit { return w.script(m, o) }
	})
	return m
}

func (m *machine) running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kubelet
}

// script does what the profile's scripts would.
func (w *world) script(m *machine, o dispatchtest.Order) dispatchtest.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	if code := m.exits[o.Phase]; code != 0 {
		return dispatchtest.Exit{Outcome: signing.OutcomeFailed, Code: code, Output: "no luck: " + o.Secrets["KPSSH_BOOTSTRAP_TOKEN"] + "\n"}
	}
	switch o.Phase {
	case signing.PhaseJoin:
		m.kubelet = true
		if !m.silent {
			w.register(o)
		}
	case signing.PhaseLeave:
		m.kubelet = false
	}
	return dispatchtest.Exit{Output: "ok\n"}
}

func (w *world) register(o dispatchtest.Order) {
	node := controllertest.Node(o.Parameters["KPSSH_NODE_NAME"], o.Parameters["KPSSH_PROVIDER_ID"], o.Parameters["KPSSH_NODE_ADDRESS"], func(n *corev1.Node) {
		n.CreationTimestamp = metav1.NewTime(w.Clock.Now())
		n.UID = types.UID("node-" + n.Name)
	})
	err := w.asOthers(func() error {
		status := node.DeepCopy().Status
		if err := w.Client.Create(context.Background(), node); err != nil {
			return client.IgnoreAlreadyExists(err)
		}
		// A real API server does not take the status from a create, and the Node is others' to write to at once, too.
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := w.Client.Get(context.Background(), client.ObjectKeyFromObject(node), node); err != nil {
				return err
			}
			node.Status = status
			return w.Client.Status().Update(context.Background(), node)
		})
	})
	if err != nil {
		w.t.Error(err)
	}
}

// Host implements membership.Access.
func (w *world) access(name string) (dispatch.Host, error) { return w.hosts[name].Dispatch(), nil }

type access struct{ *world }

func (a access) Host(_ context.Context, host *v1beta1.SSHHost) (dispatch.Host, error) {
	return a.access(host.Name)
}

// Login implements controllers.Access.
func (access) Login(context.Context, string) (*hostaccess.Login, error) {
	return &hostaccess.Login{}, nil
}

// stepping tells the world of every run.
type stepping struct {
	membership.Dispatcher
	w *world
}

func (s stepping) Run(ctx context.Context, host dispatch.Host, request dispatch.Request) (*dispatch.Result, error) {
	s.w.step("before " + string(request.Phase))
	result, err := s.Dispatcher.Run(ctx, host, request)
	s.w.step("after " + string(request.Phase))
	return result, err
}

func (w *world) step(what string) {
	if w.crash != nil {
		w.crash(what)
	}
}

// asOthers does something as core or a kubelet would, which never crashes here.
func (w *world) asOthers(do func() error) error {
	if w.crash == nil {
		return do()
	}
	crash := w.crash
	w.crash = nil
	defer func() { w.crash = crash }()
	return do()
}

// faults tell the world of every write.
func (w *world) faults() interceptor.Funcs {
	around := func(what string, do func() error) error {
		w.step("before " + what)
		err := do()
		w.step("after " + what)
		return err
	}
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return around(fmt.Sprintf("create %T", o), func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return around(fmt.Sprintf("delete %T", o), func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return around(fmt.Sprintf("update %s of %T", sub, o), func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return around(fmt.Sprintf("patch %s of %T", sub, o), func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	}
}

// process is one controller process.
type process struct {
	w      *world
	pool   *pool.Pool
	status *status.Controller
	hosts  []interface {
		Reconcile(context.Context, *v1beta1.SSHHost) (reconcile.Result, error)
	}
	mu   sync.Mutex
	errs []error
}

func (w *world) start() *process {
	w.t.Helper()
	p, inventory := w.NewInventory()
	phases := membership.NewPhases(membership.PhasesOptions{
		Dispatcher: stepping{w.trust.Dispatcher(), w}, Access: access{w}, Reader: w.Client, Namespace: controllertest.Namespace, Clock: w.Clock,
		Cluster: controllertest.Cluster,
	})
	tokens, scripts, turns := bootstrap.NewTokens(w.Client, w.Client, w.Clock), membership.NewScripts(w.Client), membership.NewTurns()
	out := &process{w: w, pool: p}
	out.hosts = append(out.hosts,
		join.NewController(join.Options{
			Client: w.Client, Live: w.Client, Hosts: p, Phases: phases, Tokens: tokens, Turns: turns, Recorder: w.Events, Clock: w.Clock, Namespace: controllertest.Namespace}),
		token.NewController(w.Client, p, tokens, controllertest.Namespace, 1),
		leave.NewController(leave.Options{
			Client: w.Client, Live: w.Client, Cluster: controllertest.Cluster, Hosts: p, Phases: phases, Scripts: scripts, Tokens: tokens, Turns: turns, Recorder: w.Events, Clock: w.Clock, Namespace: controllertest.Namespace}),
		claim.NewController(claim.Options{
			Client: w.Client, Live: w.Client, Hosts: p, Tokens: tokens, Turns: turns, Namespace: controllertest.Namespace}),
		maintenance.NewController(p, w.Events, w.Clock, controllertest.Namespace),
		probe.NewController(probe.Options{
			Client: w.Client, Live: w.Client, Cluster: controllertest.Cluster, Hosts: p, Phases: phases, Scripts: scripts, Turns: turns, Recorder: w.Events, Clock: w.Clock, Namespace: controllertest.Namespace}),
		preparing{w, prepare.NewController(prepare.Options{
			Client: w.Client, Hosts: p, Inventory: inventory, Phases: phases, Turns: turns, Recorder: w.Events, Clock: w.Clock, Namespace: controllertest.Namespace})},
	)
	out.status = status.NewController(status.Options{
		Access: hostaccess.New(w.Client, controllertest.Namespace, false),
		Client: w.Client, Live: w.Client, Hosts: p, Environment: phases, Trust: w.trust,
		DispatchKey: func() (signing.Key, error) { return w.trust.Signer().Public(), nil }, Clock: w.Clock, Namespace: controllertest.Namespace,
	})
	return out
}

// round lets every controller look at every host once. Errors are kept: an error asks for another attempt.
func (p *process) round() {
	list := &v1beta1.SSHHostList{}
	if err := p.w.Client.List(context.Background(), list); err != nil {
		p.w.t.Error(err)
		return
	}
	for i := range list.Items {
		for _, c := range p.hosts {
			host := &v1beta1.SSHHost{}
			if err := p.w.Client.Get(context.Background(), client.ObjectKeyFromObject(&list.Items[i]), host); err != nil {
				continue
			}
			if _, err := c.Reconcile(context.Background(), host); err != nil {
				p.mu.Lock()
				p.errs = append(p.errs, err)
				p.mu.Unlock()
			}
		}
	}
}

// core does for NodeClaims and Nodes what karpenter core does: it registers nodes, deletes the nodes of
// deleted NodeClaims, and takes finalizers off once the provider says that the instance is gone.
func (w *world) core(p *process) {
	w.t.Helper()
	ctx := context.Background()
	err := w.asOthers(func() error {
		provider := cloudprovider.New(w.Client, p.pool, nil)
		list := &karpenterv1.NodeClaimList{}
		if err := w.Client.List(ctx, list); err != nil {
			return err
		}
		for i := range list.Items {
			// As core does, it loses a write to somebody else's and comes again.
			if err := w.nodeClaim(ctx, provider, &list.Items[i]); err != nil && !apierrors.IsConflict(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) nodeClaim(ctx context.Context, provider karpcloud.CloudProvider, nodeClaim *karpenterv1.NodeClaim) error {
	nodes := &corev1.NodeList{}
	if err := w.Client.List(ctx, nodes); err != nil {
		return err
	}
	var node *corev1.Node
	for i := range nodes.Items {
		if nodes.Items[i].Spec.ProviderID == nodeClaim.Status.ProviderID {
			node = &nodes.Items[i]
		}
	}
	if nodeClaim.DeletionTimestamp.IsZero() {
		if node != nil && controllerutil.AddFinalizer(node, karpenterv1.TerminationFinalizer) {
			return w.Client.Update(ctx, node)
		}
		return nil
	}
	registered := node != nil && controllerutil.ContainsFinalizer(node, karpenterv1.TerminationFinalizer)
	if registered && node.DeletionTimestamp.IsZero() {
		return w.Client.Delete(ctx, node)
	}
	switch err := provider.Delete(ctx, nodeClaim); {
	case err == nil:
		return nil
	case !karpcloud.IsNodeClaimNotFoundError(err):
		return err
	}
	if registered {
		controllerutil.RemoveFinalizer(node, karpenterv1.TerminationFinalizer)
		return w.Client.Update(ctx, node)
	}
	controllerutil.RemoveFinalizer(nodeClaim, karpenterv1.TerminationFinalizer)
	return client.IgnoreNotFound(w.Client.Update(ctx, nodeClaim))
}

// until runs core and the process, a second a round, until the condition holds.
func (w *world) until(p *process, what string, holds func() bool) {
	w.t.Helper()
	for range 60 {
		if holds() {
			return
		}
		w.core(p)
		p.round()
		w.Clock.Step(time.Second)
	}
	w.t.Fatalf("never came to be: %s\n%s\nevents:\n%s\nerrors: %v", what, w.describe(), w.Events.Text(), p.errs)
}

func (w *world) describe() string {
	var b strings.Builder
	for name, m := range w.hosts {
		h := w.Host(name)
		fmt.Fprintf(&b, "%s: state %s, claim %v, token %q, installed %q, conditions %+v; on the host: claim %+v, kubelet %t, runs %v\n",
			name, h.Status.State, h.Status.ClaimRef, h.Status.BootstrapTokenID, h.Status.InstalledProfile, h.Status.Conditions, m.Claim(), m.running(), runs(m))
	}
	return b.String()
}

func runs(m *machine) map[signing.Phase]int {
	out := map[signing.Phase]int{}
	for _, o := range m.Orders() {
		out[o.Phase]++
	}
	return out
}

func (w *world) state(host string) v1beta1.HostState { return w.Host(host).Status.State }

// launch does what core and Create do: a NodeClaim is made, claims a host, and is given its id.
func (w *world) launch(p *process, name string) {
	w.t.Helper()
	err := w.asOthers(func() error {
		nodeClaim := controllertest.NodeClaim(name, "", func(n *karpenterv1.NodeClaim) {
			n.CreationTimestamp = metav1.NewTime(w.Clock.Now())
			n.Finalizers = []string{karpenterv1.TerminationFinalizer}
		})
		if err := w.Client.Create(context.Background(), nodeClaim); err != nil {
			return err
		}
		host, err := p.pool.Claim(context.Background(), pool.Request{Ref: pool.RefOf(nodeClaim)})
		if err != nil {
			return err
		}
		nodeClaim.Status.ProviderID = host.Status.ProviderID
		return w.Client.Status().Update(context.Background(), nodeClaim)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) deleteNodeClaim(name string) {
	w.t.Helper()
	if err := w.asOthers(func() error { return w.Client.Delete(context.Background(), w.NodeClaim(name)) }); err != nil {
		w.t.Fatal(err)
	}
}
