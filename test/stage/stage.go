// Package stage installs the product on a lab the way that a user does: with the programs that `make build` made, the
// CLI's three commands and the manifests in examples/. The demo, the end-to-end tests and the benches play on it.
package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// Namespaces, as `kpssh init` names them.
const (
	PoolNamespace       = "kpssh-system"
	ControllerNamespace = "kpssh-controller"
)

// Options say what to put on the stage.
type Options struct {
	// Repo is the root of the repository: its bin/ and examples/ are what is installed.
	Repo string
	// Hosts is how many pool hosts to enroll.
	Hosts int
	// Log receives progress; nil is silent.
	Log func(format string, args ...any)
	// ControllerArgs are further flags of the controller.
	ControllerArgs []string
	// NoController leaves starting the controller to the caller.
	NoController bool
	// Lab has what is passed to the lab itself.
	Lab lab.Options
}

// Stage is a lab with the product installed on it.
type Stage struct {
	*lab.Lab
	// Client reads and writes the cluster as its admin, without a cache.
	Client client.Client
	// TrustDir is the folder of `kpssh init`.
	TrustDir string

	opts       Options
	mu         sync.Mutex
	controller *lab.Process
}

// Up builds a stage: lab, hosts, keys, manifests, enrolment, controller. The caller closes it, also after an error of
// something that came later; after an error of Up itself everything is gone again.
func Up(ctx context.Context, opts Options) (_ *Stage, err error) {
	if opts.Log == nil {
		opts.Log = func(string, ...any) {}
	}
	opts.Lab.Log = opts.Log
	l, err := lab.Start(ctx, opts.Lab)
	if err != nil {
		return nil, err
	}
	s := &Stage{Lab: l, opts: opts, TrustDir: filepath.Join(l.Dir(), "trust")}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Client, err = newClient(l); err != nil {
		return nil, err
	}
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{fmt.Sprintf("booting %d pool hosts", opts.Hosts), s.addHosts},
		{"applying CRDs and RBAC", s.applyCRDs},
		{"kpssh init: keys, first root document, manifests", s.initTrust},
		{"kpssh profile sign: the author allows the scripts of tls-bootstrap, pinned to this cluster", s.signProfile},
		{"kpssh host enroll: the shim goes onto each host over its admin login", s.enrollHosts},
	}
	if !opts.NoController {
		steps = append(steps, struct {
			name string
			do   func(context.Context) error
		}{"starting the controller and waiting until the hosts are Available", s.startAndWait})
	}
	for _, step := range steps {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		opts.Log("%s (%.1f s)", step.name, time.Since(began).Seconds())
	}
	return s, nil
}

func newClient(l *lab.Lab) (client.Client, error) {
	ctrllog.SetLogger(logr.Discard()) // or controller-runtime complains that nobody did
	scheme := k8sruntime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	gv := schema.GroupVersion{Group: apis.Group, Version: "v1"}
	metav1.AddToGroupVersion(scheme, gv)
	scheme.AddKnownTypes(gv, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	return client.New(l.RESTConfig(), client.Options{Scheme: scheme})
}

func (s *Stage) addHosts(ctx context.Context) error {
	errs := make([]error, s.opts.Hosts)
	var wg sync.WaitGroup
	for i := range s.opts.Hosts {
		wg.Go(func() {
			_, errs[i] = s.AddHost(ctx, lab.HostOptions{Name: fmt.Sprintf("host-%c", 'a'+i)})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Bin is the path of a built program.
func (s *Stage) Bin(name string) string { return filepath.Join(s.opts.Repo, "bin", name) }

// Example reads a file of examples/.
func (s *Stage) Example(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(s.opts.Repo, "examples", name))
	return string(b), err
}

// CLI runs kpssh inside the lab, with the cluster's admin kubeconfig, and returns what it printed on standard output.
func (s *Stage) CLI(ctx context.Context, args ...string) (string, error) {
	return s.RunProcess(ctx, lab.ProcessSpec{
		Name: "kpssh",
		Argv: append([]string{s.Bin("kpssh")}, args...),
		Env:  []string{"KUBECONFIG=" + s.Kubeconfig(), "KPSSH_DIR=" + s.TrustDir, "HOME=" + s.Dir()},
	})
}

// StartController starts the controller; it must not be running.
func (s *Stage) StartController(context.Context) error {
	p, err := s.LaunchController("controller", s.opts.ControllerArgs...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controller = p
	return nil
}

// LaunchController starts a further controller, which the stage knows nothing of: its log is NAME.log, and the caller
// ends it.
func (s *Stage) LaunchController(name string, args ...string) (*lab.Process, error) {
	return s.StartProcess(lab.ProcessSpec{
		Name: name,
		Argv: append([]string{
			s.Bin("karpenter-provider-ssh"),
			"--metrics-port", "0", "--health-probe-port", "0",
		}, args...),
		Env: []string{
			"KUBECONFIG=" + s.Kubeconfig(), "POOL_NAMESPACE=" + PoolNamespace,
			"SYSTEM_NAMESPACE=" + ControllerNamespace, "LOG_LEVEL=debug",
		},
	})
}

// Controller is the running controller.
func (s *Stage) Controller() *lab.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.controller
}

func (s *Stage) startAndWait(ctx context.Context) error {
	if err := s.StartController(ctx); err != nil {
		return err
	}
	return s.WaitAvailable(ctx)
}

// WaitAvailable waits until every enrolled host is Available.
func (s *Stage) WaitAvailable(ctx context.Context) error {
	return s.Until(ctx, "all hosts Available", func(ctx context.Context) error {
		hosts, err := s.SSHHosts(ctx)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			if h.Status.State != v1beta1.HostAvailable {
				return fmt.Errorf("host %q is %q: %s", h.Name, h.Status.State, h.Status.LastProbeError)
			}
		}
		return nil
	})
}

// SSHHosts lists the pool.
func (s *Stage) SSHHosts(ctx context.Context) ([]v1beta1.SSHHost, error) {
	var list v1beta1.SSHHostList
	err := s.Client.List(ctx, &list, client.InNamespace(PoolNamespace))
	return list.Items, err
}

// Nodes lists the nodes of the cluster.
func (s *Stage) Nodes(ctx context.Context) ([]corev1.Node, error) {
	var list corev1.NodeList
	err := s.Client.List(ctx, &list)
	return list.Items, err
}

// NodeClaims lists the node claims of the cluster; none before their CRD is there.
func (s *Stage) NodeClaims(ctx context.Context) ([]karpv1.NodeClaim, error) {
	var list karpv1.NodeClaimList
	err := s.Client.List(ctx, &list)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	return list.Items, err
}

// lookTime bounds one look of Until, so that a request which hangs is not all that is waited for.
const lookTime = 30 * time.Second

// Until polls a condition until it holds or ctx ends or the controller died, and then says what it waited for.
func (s *Stage) Until(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, lookTime)
		err := check(look)
		cancel()
		if err == nil {
			return nil
		}
		var died <-chan struct{}
		if p := s.Controller(); p != nil {
			died = p.Done()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; last: %w", what, ctx.Err(), err)
		case <-died:
			return fmt.Errorf("waiting for %s: the controller ended; its log is %s", what, s.Controller().LogPath)
		case <-tick.C:
		}
	}
}

// Arch is the machine's architecture, which is also that of its pool hosts.
const Arch = runtime.GOARCH
