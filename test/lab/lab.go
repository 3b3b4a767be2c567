package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/audit"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/netns"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/state"
)

// Address of the control plane, and of everything that [Lab.Command] starts, as pool hosts see it.
const Address = "10.77.0.1"

// bridge joins the control plane and the hosts inside the namespace.
const bridge = "kpssh0"

// defaultDir must not be a tmpfs or an overlay: hosts' file systems are overlays over directories in it.
const defaultDir = "/var/lib/kpssh-lab"

// Options say how to start a lab.
type Options struct {
	// Dir is where the lab makes its own directory; default /var/lib/kpssh-lab.
	Dir string
	// Log receives progress; nil is silent. The first run on a machine may take minutes.
	Log func(format string, args ...any)
	// ControlPlaneOnly prepares nothing for hosts; AddHost still works, and pays for it then.
	ControlPlaneOnly bool
	// HostsOnly starts no control plane, and builds none: for tests of what happens on a host. Nothing that asks the
	// API server works, and hosts have no kubelet.
	HostsOnly bool
	// AuditLog has the API server log every request, for [Lab.Audit].
	AuditLog bool
}

// Lab is a cluster without nodes and the pool hosts that may join it.
type Lab struct {
	site    *site
	control *controlPlane
	admin   *adminKey

	hostsOnly bool

	mu       sync.Mutex
	hosts    []*Host
	node     *Host
	forward  net.Listener
	forwards sync.WaitGroup
	closed   bool
}

// Start starts a lab. It needs root. It first removes what killed labs left, and gets what the machine lacks.
func Start(ctx context.Context, opts Options) (_ *Lab, err error) {
	log := cachedir.Logf(opts.Log)
	if os.Geteuid() != 0 {
		return nil, errors.New("starting a lab: it makes namespaces, mounts and control groups, and so needs root")
	}
	if err := CollectGarbage(opts.Log); err != nil {
		log.Printf("%v", err)
	}
	bins, err := prepare(ctx, log, opts)
	if err != nil {
		return nil, err
	}
	dir := opts.Dir
	if dir == "" {
		dir = defaultDir
	}
	site, err := newSite(dir, log)
	if err != nil {
		return nil, err
	}
	l := &Lab{site: site, hostsOnly: opts.HostsOnly}
	l.control = &controlPlane{
		site: site, bins: bins, address: Address, port: 6443, etcdPort: 2379, whole: true, dial: l.DialContext,
		audit: opts.AuditLog,
	}
	what := "the control plane of lab"
	if opts.HostsOnly {
		what = "lab"
	}
	done := cachedir.Step(log, nil, "starting %s %s", what, site.id)
	err = l.bringUp(ctx)
	done(err)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) bringUp(ctx context.Context) (err error) {
	if l.admin, err = newAdminKey(l.AdminKeyPath()); err != nil {
		return err
	}
	if err := l.makeNetwork(ctx); err != nil {
		return err
	}
	if l.hostsOnly {
		return nil
	}
	return l.control.start(ctx)
}

// makeNetwork makes the namespace with its bridge. There is no default route on purpose.
func (l *Lab) makeNetwork(ctx context.Context) error {
	name := "kpssh-" + l.site.id
	if err := l.site.entry.Update(func(r *state.Record) { r.Netns = name }); err != nil {
		return err
	}
	if _, err := l.site.run(ctx, ProcessSpec{Argv: []string{"ip", "netns", "add", name}}); err != nil {
		return err
	}
	l.site.netns = name
	for _, command := range []string{
		"ip link set lo up",
		"ip link add " + bridge + " type bridge forward_delay 0",
		"ip addr add " + Address + "/24 dev " + bridge,
		"ip link set " + bridge + " up",
	} {
		if _, err := l.site.run(ctx, ProcessSpec{Argv: strings.Fields(command)}); err != nil {
			return err
		}
	}
	return nil
}

// ID is short and unique on this machine.
func (l *Lab) ID() string { return l.site.id }

// Dir is the lab's directory, LogDir the part of it that holds the logs of all processes.
func (l *Lab) Dir() string { return l.site.dir }

// LogDir holds what the lab's processes wrote.
func (l *Lab) LogDir() string { return filepath.Join(l.site.dir, "logs") }

// KeepLogs makes Close leave LogDir in place.
func (l *Lab) KeepLogs() error {
	return l.site.entry.Update(func(r *state.Record) { r.KeepLogs = true })
}

// DialContext connects from inside the lab. The address must hold an IP literal.
func (l *Lab) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return netns.Dial(ctx, "kpssh-"+l.site.id, network, addr)
}

// RESTConfig is the admin's way to the API server from this process; a new copy each time.
func (l *Lab) RESTConfig() *rest.Config { return l.control.restConfig() }

// Kubeconfig is the path of the admin's kubeconfig for processes inside the lab.
func (l *Lab) Kubeconfig() string { return l.control.kubeconfig() }

// Endpoint is the API server's URL inside the lab, CA its certificate authority in PEM.
func (l *Lab) Endpoint() string { return l.control.server() }

// CA is the cluster's certificate authority in PEM.
func (l *Lab) CA() []byte { return l.control.ca.Cert }

// BinDir has kubectl and the other Kubernetes programs.
func (l *Lab) BinDir() string { return l.control.bins.Dir() }

// Kubectl runs kubectl as the admin and returns its standard output.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	return l.control.kubectl(ctx, "", args...)
}

// Apply applies manifests as the admin.
func (l *Lab) Apply(ctx context.Context, manifests string) error {
	_, err := l.control.kubectl(ctx, manifests, "apply", "-f", "-")
	return err
}

// Command starts a process inside the lab, such as the controller under test. Its log is NAME.log in LogDir.
func (l *Lab) Command(_ context.Context, name string, argv ...string) (*Process, error) {
	return l.site.start(ProcessSpec{Name: name, Argv: argv})
}

// StartProcess is Command with an environment and a directory.
func (l *Lab) StartProcess(spec ProcessSpec) (*Process, error) { return l.site.start(spec) }

// Run runs a command inside the lab to its end and returns its standard output.
func (l *Lab) Run(ctx context.Context, argv ...string) (string, error) {
	return l.RunProcess(ctx, ProcessSpec{Argv: argv})
}

// RunProcess is Run with an environment, a directory and standard input.
func (l *Lab) RunProcess(ctx context.Context, spec ProcessSpec) (string, error) {
	out, err := l.site.run(ctx, spec)
	return string(out), err
}

// Audit is every request that the API server has answered so far, in a lab with [Options.AuditLog]. The log itself is
// audit.log in LogDir.
func (l *Lab) Audit() ([]audit.Event, error) {
	if !l.control.audit {
		return nil, errors.New("reading the audit log: the lab was started without Options.AuditLog")
	}
	return audit.Read(l.control.auditLog())
}

// KillAPIServer kills the API server; RestartAPIServer brings it back.
func (l *Lab) KillAPIServer() { l.control.killAPIServer() }

// RestartAPIServer starts the API server anew and waits until it is ready.
func (l *Lab) RestartAPIServer(ctx context.Context) error { return l.control.restartAPIServer(ctx) }

// KillEtcd kills etcd; RestartEtcd brings it back.
func (l *Lab) KillEtcd() { l.control.killEtcd() }

// RestartEtcd kills etcd, starts it on the same data, and waits until the API server is ready.
func (l *Lab) RestartEtcd(ctx context.Context) error { return l.control.restartEtcd(ctx) }

// Hosts are the pool hosts in the order in which they were added.
func (l *Lab) Hosts() []*Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*Host(nil), l.hosts...)
}

// machines are the pool hosts and the control plane's own node. l.mu is held.
func (l *Lab) machines() []*Host {
	all := append([]*Host(nil), l.hosts...)
	if l.node != nil {
		all = append(all, l.node)
	}
	return all
}

// Close removes the lab: processes, hosts, mounts, control groups, namespace and files. A second call does nothing.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	machines, forward := l.machines(), l.forward
	l.mu.Unlock()
	for _, h := range machines {
		h.PowerCut()
	}
	var err error
	if forward != nil {
		err = forward.Close()
	}
	err = errors.Join(err, l.site.close())
	l.forwards.Wait()
	if err != nil {
		return fmt.Errorf("closing lab %s: %w", l.site.id, err)
	}
	return nil
}
