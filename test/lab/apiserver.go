package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/kubebin"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/state"
)

// APIServerOptions say how to start an API server alone.
type APIServerOptions struct {
	// Log receives progress; nil is silent. The first run on a machine may take minutes.
	Log func(format string, args ...any)
}

// APIServer is etcd and a kube-apiserver on 127.0.0.1. Nothing else runs: no controller collects garbage, approves
// certificates or makes service accounts.
type APIServer struct {
	control *controlPlane
	entry   *state.Entry
}

// StartAPIServer starts an API server on free ports of 127.0.0.1. It needs no root and no namespace.
func StartAPIServer(ctx context.Context, opts APIServerOptions) (_ *APIServer, err error) {
	log := cachedir.Logf(opts.Log)
	if err := CollectGarbage(opts.Log); err != nil {
		log.Printf("%v", err) // what another run left does not keep this one from working
	}
	finder, err := kubebin.FromEnvironment(os.Getenv, log)
	if err != nil {
		return nil, err
	}
	bins, err := finder.APIServer(ctx)
	if err != nil {
		return nil, err
	}
	// Another process may take a free port between finding and using it.
	for attempt := 1; ; attempt++ {
		server, err := startAPIServerOnce(ctx, bins, log)
		if err == nil || attempt == 3 || ctx.Err() != nil {
			return server, err
		}
		log.Printf("starting the API server again: %v", err)
	}
}

func startAPIServerOnce(ctx context.Context, bins kubebin.Binaries, log cachedir.Logf) (_ *APIServer, err error) {
	site, err := newSite(os.TempDir(), log)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, errors.Join(err, site.close())
	}
	s := &APIServer{entry: site.entry, control: &controlPlane{
		site: site, bins: bins, address: "127.0.0.1", port: ports[0], etcdPort: ports[1],
		dial: (&net.Dialer{}).DialContext,
	}}
	if err := s.control.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// freePorts finds n ports of 127.0.0.1 that nobody listens on.
func freePorts(n int) (ports []int, err error) {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("finding a free port: %w", err)
		}
		listeners = append(listeners, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// RESTConfig is the admin's way to it; a new copy each time.
func (s *APIServer) RESTConfig() *rest.Config { return s.control.restConfig() }

// Kubeconfig is the path of the admin's kubeconfig.
func (s *APIServer) Kubeconfig() string { return s.control.kubeconfig() }

// KubectlPath is a kubectl of the server's version.
func (s *APIServer) KubectlPath() string { return s.control.bins.Path("kubectl") }

// Kubectl runs kubectl as the admin and returns its standard output.
func (s *APIServer) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.control.kubectl(ctx, "", args...)
}

// Apply applies manifests as the admin.
func (s *APIServer) Apply(ctx context.Context, manifests string) error {
	_, err := s.control.kubectl(ctx, manifests, "apply", "-f", "-")
	return err
}

// KillAPIServer kills the API server; RestartAPIServer brings it back.
func (s *APIServer) KillAPIServer() { s.control.killAPIServer() }

// RestartAPIServer starts the API server anew and waits until it is ready.
func (s *APIServer) RestartAPIServer(ctx context.Context) error {
	return s.control.restartAPIServer(ctx)
}

// RestartEtcd kills etcd, starts it on the same data, and waits until the API server is ready.
func (s *APIServer) RestartEtcd(ctx context.Context) error { return s.control.restartEtcd(ctx) }

// LogDir holds what the processes wrote, until Close.
func (s *APIServer) LogDir() string { return filepath.Join(s.control.site.dir, "logs") }

// Close ends the processes and removes their data.
func (s *APIServer) Close() error { return s.control.site.close() }

func (c *controlPlane) restConfig() *rest.Config {
	return &rest.Config{
		Host: c.server(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData: c.ca.Cert, CertData: c.admin.Cert, KeyData: c.admin.Key,
		},
		Dial: c.dial,
		QPS:  -1, // tests wait for conditions, not for a client-side limit
	}
}
