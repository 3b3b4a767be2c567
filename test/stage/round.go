package stage

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

// Workload is the Deployment of examples/demo.yaml.
const Workload = "demo"

// Milestone is a step of a round that was seen, and when, counted from its start.
type Milestone struct {
	What string
	At   time.Duration
}

// Round is one scale-up and scale-down as an outsider sees it in the API.
type Round struct {
	Up, Down []Milestone
	// Host and NodeClaim took part in it.
	Host, NodeClaim string
}

// view is what one look at the cluster shows.
type view struct {
	pods   []corev1.Pod
	claims []karpv1.NodeClaim
	hosts  []v1beta1.SSHHost
	nodes  []corev1.Node
}

func (s *Stage) look(ctx context.Context) (v view, err error) {
	var pods corev1.PodList
	if err = s.Client.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": Workload}); err != nil {
		return v, err
	}
	v.pods = pods.Items
	if v.claims, err = s.NodeClaims(ctx); err != nil {
		return v, err
	}
	if v.hosts, err = s.SSHHosts(ctx); err != nil {
		return v, err
	}
	v.nodes, err = s.Nodes(ctx)
	return v, err
}

// step is a milestone to come; seen says whether a look shows it, and may add to its text.
type step struct {
	what string
	seen func(view) (string, bool)
}

func (v view) claimed() *v1beta1.SSHHost {
	for i := range v.hosts {
		if v.hosts[i].Status.ClaimRef != nil {
			return &v.hosts[i]
		}
	}
	return nil
}

func upSteps() []step {
	onClaim := func(f func(*karpv1.NodeClaim) bool) func(view) (string, bool) {
		return func(v view) (string, bool) {
			if len(v.claims) == 0 {
				return "", false
			}
			return v.claims[0].Name, f(&v.claims[0])
		}
	}
	onHost := func(f func(*v1beta1.SSHHost) (string, bool)) func(view) (string, bool) {
		return func(v view) (string, bool) {
			if h := v.claimed(); h != nil {
				return f(h)
			}
			return "", false
		}
	}
	return []step{
		{"pod pending", func(v view) (string, bool) {
			return "", len(v.pods) > 0
		}},
		{"NodeClaim made by karpenter", onClaim(func(*karpv1.NodeClaim) bool { return true })},
		{"host claimed", onHost(func(h *v1beta1.SSHHost) (string, bool) { return h.Name, true })},
		{"NodeClaim launched", onClaim(func(c *karpv1.NodeClaim) bool { return c.Status.ProviderID != "" })},
		{"profile installed", onHost(func(h *v1beta1.SSHHost) (string, bool) {
			return h.Status.InstalledProfile, h.Status.InstalledProfile != ""
		})},
		{"Node registered", onClaim(func(c *karpv1.NodeClaim) bool {
			return c.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue()
		})},
		{"Node Ready", func(v view) (string, bool) {
			for i := range v.nodes {
				if membership.Ready(&v.nodes[i]) {
					return v.nodes[i].Name, true
				}
			}
			return "", false
		}},
		{"host InUse", onHost(func(h *v1beta1.SSHHost) (string, bool) {
			return h.Name, h.Status.State == v1beta1.HostInUse
		})},
		{"pod Running", func(v view) (string, bool) {
			for _, p := range v.pods {
				if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
					return p.Spec.NodeName, true
				}
			}
			return "", false
		}},
	}
}

func downSteps(host string) []step {
	return []step{
		{"pod gone", func(v view) (string, bool) { return "", len(v.pods) == 0 }},
		{"NodeClaim being deleted, node draining", func(v view) (string, bool) {
			return "", len(v.claims) == 0 || v.claims[0].DeletionTimestamp != nil
		}},
		{"left, by signed order; host Available", func(v view) (string, bool) {
			for _, h := range v.hosts {
				if h.Name == host {
					return host, h.Status.State == v1beta1.HostAvailable && h.Status.ClaimRef == nil
				}
			}
			return "", false
		}},
		{"Node gone", func(v view) (string, bool) { return "", len(v.nodes) == 0 }},
		{"NodeClaim gone", func(v view) (string, bool) { return "", len(v.claims) == 0 }},
	}
}

// follow looks at the cluster until all steps were seen, in whatever order they come.
func (s *Stage) follow(ctx context.Context, steps []step, seen func(Milestone)) error {
	began := time.Now()
	done := make([]bool, len(steps))
	return s.Until(ctx, "the next steps", func(ctx context.Context) error {
		v, err := s.look(ctx)
		if err != nil {
			return err
		}
		var missing []string
		for i, st := range steps {
			if done[i] {
				continue
			}
			detail, ok := st.seen(v)
			if !ok {
				missing = append(missing, st.what)
				continue
			}
			done[i] = true
			if detail != "" {
				detail = " (" + detail + ")"
			}
			seen(Milestone{What: st.what + detail, At: time.Since(began)})
		}
		if len(missing) > 0 {
			return fmt.Errorf("not yet: %s", strings.Join(missing, "; "))
		}
		return nil
	})
}

// Scale sets the replicas of the workload.
func (s *Stage) Scale(ctx context.Context, replicas int32) error {
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = "default", Workload
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	return s.Client.Patch(ctx, d, client.RawPatch("application/merge-patch+json", patch))
}

// ScaleUp asks for one pod and follows it until it runs.
func (s *Stage) ScaleUp(ctx context.Context, r *Round, report func(Milestone)) error {
	if err := s.Scale(ctx, 1); err != nil {
		return err
	}
	err := s.follow(ctx, upSteps(), func(m Milestone) { r.Up = append(r.Up, m); report(m) })
	if err != nil {
		return err
	}
	v, err := s.look(ctx)
	if err != nil {
		return err
	}
	h := v.claimed()
	if h == nil || len(v.claims) != 1 {
		return fmt.Errorf("the pod runs, but %d NodeClaims and host %v stand for it", len(v.claims), h)
	}
	r.Host, r.NodeClaim = h.Name, v.claims[0].Name
	return nil
}

// ScaleDown takes the pod away and follows its host back into the pool.
func (s *Stage) ScaleDown(ctx context.Context, r *Round, report func(Milestone)) error {
	if err := s.Scale(ctx, 0); err != nil {
		return err
	}
	return s.follow(ctx, downSteps(r.Host), func(m Milestone) { r.Down = append(r.Down, m); report(m) })
}

// CheckWarm says whether a host is as a released one must be: kubelet and containerd stopped and disabled.
func (s *Stage) CheckWarm(ctx context.Context, host string) error {
	for _, h := range s.Hosts() {
		if h.Name != host {
			continue
		}
		for _, unit := range []string{"kubelet", "containerd"} {
			out, err := h.Exec(ctx, "sh", "-c", "systemctl is-active "+unit+" || true; systemctl is-enabled "+unit+" || true")
			if err != nil {
				return err
			}
			if got := strings.Join(strings.Fields(out), " "); got != "inactive disabled" {
				return fmt.Errorf("%s on %q is %q, not stopped and disabled", unit, host, got)
			}
		}
		return nil
	}
	return fmt.Errorf("there is no host %q", host)
}
