package lab

import (
	"context"
	"strconv"
)

// Addresses of services in the cluster. They answer on the control plane's own node alone: pool hosts have no kube-proxy.
const (
	serviceRange   = "10.96.0.0/16"
	serviceAddress = "10.96.0.1"
)

func (c *controlPlane) startEtcd() error {
	clients := "http://127.0.0.1:" + strconv.Itoa(c.etcdPort)
	p, err := c.site.start(ProcessSpec{Name: "etcd", Argv: []string{
		c.bins.Path("etcd"),
		"--data-dir", c.path("etcd"),
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", "http://127.0.0.1:0",
		"--unsafe-no-fsync", // a lab does not outlive the machine
		"--log-level", "warn",
	}})
	c.set(&c.etcd, p)
	return err
}

func (c *controlPlane) startAPIServer() error {
	args := []string{
		c.bins.Path("kube-apiserver"),
		"--etcd-servers", "http://127.0.0.1:" + strconv.Itoa(c.etcdPort),
		"--bind-address", c.address, "--advertise-address", c.address, "--secure-port", strconv.Itoa(c.port),
		"--tls-cert-file", c.path("apiserver.crt"), "--tls-private-key-file", c.path("apiserver.key"),
		"--client-ca-file", c.path("ca.crt"),
		"--kubelet-client-certificate", c.path("kubelet-client.crt"), "--kubelet-client-key", c.path("kubelet-client.key"),
		"--kubelet-preferred-address-types", "InternalIP",
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", c.path("service-account.key"),
		"--service-account-signing-key-file", c.path("service-account.key"),
		"--service-cluster-ip-range", serviceRange,
		"--authorization-mode", "Node,RBAC",
		"--enable-admission-plugins", "NodeRestriction",
		"--enable-bootstrap-token-auth",
		"--allow-privileged",
		"--profiling=false",
	}
	if !c.whole { // nobody makes the default service accounts that this plugin wants
		args = append(args, "--disable-admission-plugins", "ServiceAccount")
	}
	if c.audit {
		args = append(args,
			"--audit-policy-file", c.path("audit-policy.yaml"), "--audit-log-path", c.auditLog(),
			"--audit-log-maxsize", "1000000", // MB: the default begins a new file at 100
		)
	}
	p, err := c.site.start(ProcessSpec{Name: "kube-apiserver", Argv: args})
	c.set(&c.apiserver, p)
	return err
}

func (c *controlPlane) startManager() error {
	p, err := c.site.start(ProcessSpec{Name: "kube-controller-manager", Argv: []string{
		c.bins.Path("kube-controller-manager"),
		"--kubeconfig", c.path("controller-manager.kubeconfig"),
		"--bind-address", "127.0.0.1",
		"--leader-elect=false",
		"--controllers", "*,bootstrapsigner,tokencleaner",
		"--use-service-account-credentials",
		"--cluster-signing-cert-file", c.path("ca.crt"), "--cluster-signing-key-file", c.path("ca.key"),
		"--root-ca-file", c.path("ca.crt"),
		"--service-account-private-key-file", c.path("service-account.key"),
	}})
	c.set(&c.manager, p)
	return err
}

func (c *controlPlane) startScheduler() error {
	p, err := c.site.start(ProcessSpec{Name: "kube-scheduler", Argv: []string{
		c.bins.Path("kube-scheduler"),
		"--kubeconfig", c.path("scheduler.kubeconfig"),
		"--authentication-kubeconfig", c.path("scheduler.kubeconfig"),
		"--authorization-kubeconfig", c.path("scheduler.kubeconfig"),
		"--bind-address", "127.0.0.1",
		"--leader-elect=false",
	}})
	c.set(&c.scheduler, p)
	return err
}

func (c *controlPlane) set(slot **Process, p *Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*slot = p
}

func (c *controlPlane) get(slot **Process) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *slot
}

// killEtcd kills etcd; its data stay.
func (c *controlPlane) killEtcd() { c.get(&c.etcd).Kill9() }

// killAPIServer kills the API server.
func (c *controlPlane) killAPIServer() { c.get(&c.apiserver).Kill9() }

// restartEtcd kills etcd if it runs, starts it on the same data, and waits until the API server is ready again.
func (c *controlPlane) restartEtcd(ctx context.Context) error {
	c.killEtcd()
	if err := c.startEtcd(); err != nil {
		return err
	}
	return c.waitReady(ctx)
}

// restartAPIServer kills the API server if it runs, starts it, and waits until it is ready.
func (c *controlPlane) restartAPIServer(ctx context.Context) error {
	c.killAPIServer()
	if err := c.startAPIServer(); err != nil {
		return err
	}
	return c.waitReady(ctx)
}
