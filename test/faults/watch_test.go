//go:build faults

package faults

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// observer sees every version of every SSHHost while things break, and holds each against what must always be true.
type observer struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex
	promises
}

func observe(t *testing.T) *observer {
	t.Helper()
	reader, err := client.NewWithWatch(on.RESTConfig(), client.Options{Scheme: on.Client.Scheme()})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	o := &observer{cancel: cancel}
	t.Cleanup(o.stop)
	var all v1beta1.SSHHostList
	must(t, reader.List(within(t), &all, client.InNamespace(stage.PoolNamespace)))
	for i := range all.Items {
		o.see(&all.Items[i], false)
	}
	o.done.Go(func() {
		for ctx.Err() == nil {
			o.follow(ctx, reader)
		}
	})
	return o
}

// stop may be called twice.
func (o *observer) stop() {
	o.cancel()
	o.done.Wait()
}

// follow looks at all hosts and then at each change, until the API server goes away.
func (o *observer) follow(ctx context.Context, reader client.WithWatch) {
	var all v1beta1.SSHHostList
	listing, cancel := context.WithTimeout(ctx, 10*time.Second)
	err := reader.List(listing, &all, client.InNamespace(stage.PoolNamespace))
	cancel()
	var changes watch.Interface
	if err == nil {
		for i := range all.Items {
			o.see(&all.Items[i], false)
		}
		changes, err = reader.Watch(ctx, &v1beta1.SSHHostList{}, client.InNamespace(stage.PoolNamespace),
			&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: all.ResourceVersion}})
	}
	if err != nil {
		time.Sleep(200 * time.Millisecond) // it is down: one of the faults
		return
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		if host, ok := change.Object.(*v1beta1.SSHHost); ok && change.Type != watch.Deleted {
			o.see(host, true)
		}
	}
}

// see is one version of a host. next says that it is the one after the last that was seen.
func (o *observer) see(host *v1beta1.SSHHost, next bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.promises.see(host.Name, host.Status, next) {
		o.done.Go(func() { o.inspect(host.Name, host.Status.Fence) })
	}
}

// inspect looks on a host that has become Available. What it finds counts when nobody has claimed the host meanwhile.
func (o *observer) inspect(name string, fence int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var found string
	for _, h := range on.Hosts() {
		if h.Name == name {
			var err error
			if found, err = dirt(ctx, h); err != nil {
				return // cut off, or off again
			}
		}
	}
	host := &v1beta1.SSHHost{}
	if err := on.Client.Get(ctx, client.ObjectKey{Namespace: stage.PoolNamespace, Name: name}, host); err != nil {
		return
	}
	if found != "" && free(host.Status) && host.Status.Fence == fence {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.broke("%s was Available with %s", name, found)
	}
}

// look names what is there of a membership. It shares nothing with the shim's own search.
const look = `for u in kubelet containerd; do
  systemctl is-active --quiet $u && echo "unit $u runs"
  systemctl is-enabled --quiet $u 2>/dev/null && echo "unit $u is enabled"
done
pgrep -a '^(kubelet|containerd-shim|pause)' | grep -v ' --version$' | sed 's/^/process /' # a probe asks for the version
grep -o ' /var/lib/kubelet/pods/[^ ]* \| /run/netns/cni-[^ ]* ' /proc/self/mountinfo | sed 's/^/mount/'
find /var/lib/kubelet/pki /etc/kubernetes -name 'kubelet*.pem' -o -name '*kubeconfig*' -o -name '*kubelet.conf' 2>/dev/null | sed 's/^/credential /'
find /etc/systemd/system -path '*.wants/*' \( -name kubelet.service -o -name containerd.service \) | sed 's/^/unit /'
true`

func dirt(ctx context.Context, h *lab.Host) (string, error) {
	out, err := h.Exec(ctx, "sh", "-c", look)
	return strings.Join(strings.Split(strings.TrimSpace(out), "\n"), ", "), err
}

// now names the moment that the claimed host, or one that is not Available, is in.
func (o *observer) now() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.hosts {
		if free(s) {
			continue
		}
		text := string(s.State)
		if s.InstalledProfile != "" {
			text += ", installed"
		}
		if s.BootstrapTokenID != "" {
			text += ", with a token"
		}
		for _, c := range s.Conditions {
			if c.Type == v1beta1.ConditionLeaveRequested && c.Status == metav1.ConditionTrue {
				text += ", leave requested"
			}
		}
		return text
	}
	return "no host is claimed"
}
