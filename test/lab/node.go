package lab

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/pki"
)

// nodeFiles are what makes a host the control plane's own node.
//
//go:embed node
var nodeFiles embed.FS

// nodeDeadline bounds how long the node may take to be ready, on a machine that has other things to do.
const nodeDeadline = 3 * time.Minute

// NodeOptions say what kind of node to start.
type NodeOptions struct {
	// Name is the node's and the host's name: a DNS label, unique in the lab; default "control-plane".
	Name string
}

// StartNode starts the control plane's own node, for pods that belong to the cluster itself, such as the controller's.
// It is a host as [Lab.AddHost] makes them, and is not in [Lab.Hosts]: the lab joins it, with a certificate of the
// cluster's CA, and nothing that the product does is for it. A lab has one.
//
// When it returns the node is Ready, has the label node-role.kubernetes.io/control-plane and no taint, and its
// kube-proxy answers for the Service kubernetes: a pod there finds the API server by the in-cluster configuration. Pods
// reach pool hosts, as the node's address, and are reached at their own from inside the lab. Nobody answers names.
func (l *Lab) StartNode(ctx context.Context, opts NodeOptions) (*Host, error) {
	if opts.Name == "" {
		opts.Name = "control-plane"
	}
	if l.hostsOnly {
		return nil, fmt.Errorf("starting node %q: the lab has no control plane", opts.Name)
	}
	h := &Host{Name: opts.Name, lab: l, programs: []string{"kubelet", "kube-proxy"}}
	err := l.add(ctx, h, DefaultSuite, func() error {
		if l.node != nil {
			return fmt.Errorf("the lab has node %q already", l.node.Name)
		}
		l.node = h
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("starting node %q: %w", opts.Name, err) // Close removes what there is of it
	}
	done := cachedir.Step(l.site.log, nil, "joining node %s", h.Name)
	err = h.join(ctx)
	done(err)
	if err != nil {
		return nil, fmt.Errorf("starting node %q: %w", opts.Name, err)
	}
	return h, nil
}

// join makes a host the control plane's own node and returns when pods there find the API server.
func (h *Host) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeDeadline)
	defer cancel()
	if err := h.writeNodeFiles(ctx); err != nil {
		return err
	}
	if _, err := h.Exec(ctx, "systemctl", "enable", "--now", "containerd", "kubelet", "kube-proxy"); err != nil {
		return err
	}
	if _, err := h.lab.Run(ctx, "ip", "route", "add", h.podSubnet(), "via", h.Address); err != nil {
		return err
	}
	node, timeout := "node/"+h.Name, fmt.Sprintf("--timeout=%s", nodeDeadline)
	for _, args := range [][]string{
		{"wait", "--for=create", node, timeout},
		{"label", node, "node-role.kubernetes.io/control-plane="}, // no kubelet may say that of itself
		{"wait", "--for=condition=Ready", node, timeout},
	} {
		if _, err := h.lab.Kubectl(ctx, args...); err != nil {
			return errors.Join(err, h.unitLogs(ctx))
		}
	}
	err := until(ctx, "the Service kubernetes to answer", func(ctx context.Context) error {
		_, err := h.Exec(ctx, "curl", "--silent", "--show-error", "--fail", "--max-time", "1",
			"--cacert", "/etc/kubernetes/ca.crt", "https://"+serviceAddress+"/readyz")
		return err
	})
	if err != nil {
		return errors.Join(err, h.unitLogs(ctx))
	}
	return nil
}

func (h *Host) writeNodeFiles(ctx context.Context) error {
	files := map[string][]byte{"/etc/kubernetes/ca.crt": h.lab.CA()}
	for path, user := range map[string][]string{
		"/etc/kubernetes/kubelet.kubeconfig":    {"system:node:" + h.Name, "system:nodes"},
		"/etc/kubernetes/kube-proxy.kubeconfig": {"system:kube-proxy"},
	} {
		pair, err := h.lab.control.ca.Client(user[0], user[1:]...)
		if err != nil {
			return err
		}
		if files[path], err = pki.Kubeconfig(h.lab.Endpoint(), h.lab.CA(), pair); err != nil {
			return err
		}
	}
	names := strings.NewReplacer("NODE_NAME", h.Name, "NODE_ADDRESS", h.Address, "SERVICE_RANGE", serviceRange, "LAB_ADDRESS", Address)
	for path, source := range map[string]string{
		"/etc/kubernetes/kubelet.yaml":           "node/kubelet.yaml",
		"/etc/kubernetes/kube-proxy.yaml":        "node/kube-proxy.yaml",
		"/etc/systemd/system/kubelet.service":    "node/kubelet.service",
		"/etc/systemd/system/kube-proxy.service": "node/kube-proxy.service",
	} {
		content, err := nodeFiles.ReadFile(source)
		if err != nil {
			return fmt.Errorf("reading the node's files: %w", err)
		}
		files[path] = []byte(names.Replace(string(content)))
	}
	for path, content := range files {
		if err := h.WriteFile(ctx, path, "0600", content); err != nil {
			return err
		}
	}
	return nil
}

// unitLogs is what kubelet and kube-proxy said last, as part of an error. It takes a context of its own: the caller's
// may have ended.
func (h *Host) unitLogs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	const script = `for unit in kubelet kube-proxy; do journalctl --no-pager --lines=10 --output=cat --unit=$unit; done`
	out, err := h.Exec(ctx, "sh", "-c", script)
	if err != nil {
		return err
	}
	return fmt.Errorf("its kubelet and kube-proxy say: %s", out)
}
