package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/audit"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/kubebin"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/pki"
)

// readyDeadline bounds how long a component may take to answer, on a machine that has other things to do.
const readyDeadline = 3 * time.Minute

// dialer is how a test reaches the API server.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// controlPlane runs etcd and the API server, and in a whole cluster the controller-manager and the scheduler.
type controlPlane struct {
	site *site
	bins kubebin.Binaries
	// address and port of the API server; etcdPort is on 127.0.0.1 of the same namespace.
	address        string
	port, etcdPort int
	whole, audit   bool
	dial           dialer

	ca    *pki.CA
	admin pki.Pair
	http  *http.Client

	mu                                  sync.Mutex
	etcd, apiserver, manager, scheduler *Process
}

func (c *controlPlane) server() string {
	return "https://" + net.JoinHostPort(c.address, strconv.Itoa(c.port))
}

func (c *controlPlane) path(name string) string { return filepath.Join(c.site.dir, "kubernetes", name) }

// kubeconfig is the file of the cluster's admin.
func (c *controlPlane) kubeconfig() string { return c.path("admin.kubeconfig") }

// auditLog is where the API server logs requests, if it does.
func (c *controlPlane) auditLog() string { return filepath.Join(c.site.dir, "logs", "audit.log") }

// start makes the certificates and brings everything up.
func (c *controlPlane) start(ctx context.Context) error {
	if err := os.MkdirAll(c.path(""), 0o700); err != nil {
		return fmt.Errorf("starting the control plane: %w", err)
	}
	if err := c.makeCredentials(); err != nil {
		return err
	}
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.startAPIServer(); err != nil {
		return err
	}
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	if !c.whole {
		return nil
	}
	if err := c.startManager(); err != nil {
		return err
	}
	if err := c.startScheduler(); err != nil {
		return err
	}
	return c.publishClusterInfo(ctx)
}

// makeCredentials writes every certificate, key, kubeconfig and policy that the components read.
func (c *controlPlane) makeCredentials() error {
	ca, err := pki.NewCA("kpssh-lab")
	if err != nil {
		return err
	}
	c.ca = ca
	files := map[string][]byte{"ca.crt": ca.Cert, "ca.key": ca.Key, "audit-policy.yaml": audit.Policy}
	files["service-account.key"], err = pki.SigningKey()
	if err != nil {
		return err
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	addresses := []net.IP{net.ParseIP(c.address), net.IPv4(127, 0, 0, 1), net.ParseIP(serviceAddress)}
	serving, err := ca.Server("kube-apiserver", names, addresses)
	if err != nil {
		return err
	}
	files["apiserver.crt"], files["apiserver.key"] = serving.Cert, serving.Key
	for _, client := range []struct {
		file, user string
		groups     []string
	}{
		{"admin", "kpssh-lab-admin", []string{"system:masters"}},
		{"kubelet-client", "kube-apiserver-kubelet-client", []string{"system:masters"}},
		{"controller-manager", "system:kube-controller-manager", nil},
		{"scheduler", "system:kube-scheduler", nil},
	} {
		pair, err := ca.Client(client.user, client.groups...)
		if err != nil {
			return err
		}
		files[client.file+".crt"], files[client.file+".key"] = pair.Cert, pair.Key
		files[client.file+".kubeconfig"], err = pki.Kubeconfig(c.server(), ca.Cert, pair)
		if err != nil {
			return err
		}
	}
	c.admin = pki.Pair{Cert: files["admin.crt"], Key: files["admin.key"]}
	for name, content := range files {
		if err := os.WriteFile(c.path(name), content, 0o600); err != nil {
			return fmt.Errorf("writing the cluster's credentials: %w", err)
		}
	}
	return c.makeClient()
}

func (c *controlPlane) makeClient() error {
	cert, err := tls.X509KeyPair(c.admin.Cert, c.admin.Key)
	if err != nil {
		return fmt.Errorf("making the admin's client: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca.Cert)
	c.http = &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DialContext: c.dial, DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS12},
		},
	}
	return nil
}

// waitReady waits until the API server says it is ready.
func (c *controlPlane) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	c.mu.Lock()
	needs := []*Process{c.etcd, c.apiserver}
	c.mu.Unlock()
	return until(ctx, "the API server", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server()+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := c.http.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %s: %s", resp.Status, body)
		}
		return nil
	}, needs...)
}

// kubectl runs kubectl as the cluster's admin.
func (c *controlPlane) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	spec := ProcessSpec{
		Argv:  append([]string{c.bins.Path("kubectl"), "--kubeconfig", c.kubeconfig()}, args...),
		Stdin: strings.NewReader(stdin),
	}
	out, err := c.site.run(ctx, spec)
	return string(out), err
}

// clusterInfo is what a joining machine reads before it trusts anyone. bootstrapsigner adds the signatures.
const clusterInfo = `apiVersion: v1
kind: ConfigMap
metadata:
  name: cluster-info
  namespace: kube-public
data:
  kubeconfig: |
    apiVersion: v1
    kind: Config
    clusters:
    - name: ""
      cluster:
        server: %s
        certificate-authority-data: %s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: kpssh-lab:cluster-info
  namespace: kube-public
rules:
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [cluster-info]
  verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: kpssh-lab:cluster-info
  namespace: kube-public
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: kpssh-lab:cluster-info
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: User
  name: system:anonymous
`

func (c *controlPlane) publishClusterInfo(ctx context.Context) error {
	manifest := fmt.Sprintf(clusterInfo, c.server(), base64.StdEncoding.EncodeToString(c.ca.Cert))
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	return until(ctx, "cluster-info", func(ctx context.Context) error {
		_, err := c.kubectl(ctx, manifest, "apply", "-f", "-")
		return err
	})
}
