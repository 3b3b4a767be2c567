package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// Pool is a join profile, a node class, a NodePool and a Deployment of the same name.
type Pool struct {
	Name    string
	Profile *v1beta1.SSHJoinProfile
	Class   *v1beta1.SSHNodeClass

	on *Stage
}

// NewPool reads the profile and the class of examples/ under another name. Nothing is applied yet.
func (s *Stage) NewPool(name string) (*Pool, error) {
	manifest, err := s.Example(Profile)
	if err != nil {
		return nil, err
	}
	p := &Pool{Name: name, Profile: &v1beta1.SSHJoinProfile{}, Class: &v1beta1.SSHNodeClass{}, on: s}
	docs := strings.Split(manifest, "\n---\n")
	if len(docs) != 2 {
		return nil, fmt.Errorf("examples/%s has %d documents", Profile, len(docs))
	}
	if err := errors.Join(yaml.UnmarshalStrict([]byte(docs[0]), p.Profile), yaml.UnmarshalStrict([]byte(docs[1]), p.Class)); err != nil {
		return nil, err
	}
	p.Profile.Name, p.Class.Name, p.Class.Spec.JoinProfileRef.Name = name, name, name
	return p, nil
}

// Witness is the file on a host to which counted scripts write. It is theirs alone: what it says does not come from any
// part of the product.
const Witness = "/var/log/kpssh-e2e"

// Count makes the pool's scripts say when they begin and when they have got to their end, and take long enough for a
// fault to hit them.
func (p *Pool) Count() error {
	scripts := &p.Profile.Spec.Scripts
	for phase, script := range map[string]*string{"install": &scripts.Install, "join": &scripts.Join, "leave": &scripts.Leave} {
		const start = "set -euo pipefail\n"
		if strings.Count(*script, start) != 1 {
			return fmt.Errorf("%s does not hold %q once", phase, start)
		}
		*script = strings.Replace(*script, start, fmt.Sprintf("%secho %s-began >>%s\nsleep 2\n", start, phase, Witness), 1) +
			fmt.Sprintf("\necho %s-ended >>%s\n", phase, Witness)
	}
	return nil
}

// Witnessed is what counted scripts wrote on a host, and nothing when none did.
func (s *Stage) Witnessed(ctx context.Context, h *lab.Host) (string, error) {
	return h.Exec(ctx, "sh", "-c", "cat "+Witness+" 2>/dev/null || true")
}

// Forget makes the pool cold again: nothing is marked as installed, and nothing was witnessed.
func (s *Stage) Forget(ctx context.Context) error {
	for _, h := range s.Hosts() {
		if _, err := h.Exec(ctx, "rm", "-f", Witness); err != nil {
			return err
		}
		if _, err := s.Kubectl(ctx, "-n", PoolNamespace, "patch", "sshhost", h.Name, "--subresource=status",
			"--type=merge", "-p", `{"status":{"installedProfile":""}}`); err != nil {
			return err
		}
	}
	return nil
}

// Sign has the author allow the profile's scripts, as an operator does.
func (p *Pool) Sign(ctx context.Context) error {
	manifest, err := p.Manifest()
	if err != nil {
		return err
	}
	file := filepath.Join(p.on.Dir(), p.Name+".yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		return err
	}
	if _, err := p.on.CLI(ctx, "profile", "sign", "--pin-cluster", file); err != nil {
		return err
	}
	return p.on.ApplyTrust(ctx)
}

// Manifest is the profile and the class.
func (p *Pool) Manifest() (string, error) {
	profile, err := yaml.Marshal(p.Profile)
	if err != nil {
		return "", err
	}
	class, err := yaml.Marshal(p.Class)
	return string(profile) + "---\n" + string(class), err
}

// Apply makes the objects; [Pool.Remove] removes them.
func (p *Pool) Apply(ctx context.Context) error {
	manifest, err := p.Manifest()
	if err != nil {
		return err
	}
	if err := p.on.Apply(ctx, manifest); err != nil {
		return err
	}
	if err := p.on.Client.Create(ctx, p.nodePool()); err != nil {
		return err
	}
	return p.on.Client.Create(ctx, p.deployment())
}

// Remove deletes the objects and waits until the last of them, which is the node class, is gone.
func (p *Pool) Remove(ctx context.Context) error {
	var errs []error
	for _, o := range []client.Object{p.deployment(), p.nodePool(), p.Class, p.Profile} {
		errs = append(errs, client.IgnoreNotFound(p.on.Client.Delete(ctx, o)))
	}
	return errors.Join(append(errs, p.on.Until(ctx, "the node class to go", func(ctx context.Context) error {
		err := p.on.Client.Get(ctx, client.ObjectKeyFromObject(p.Class), &v1beta1.SSHNodeClass{})
		if err == nil {
			return fmt.Errorf("SSHNodeClass %q is still there", p.Name)
		}
		return client.IgnoreNotFound(err)
	}))...)
}

func (p *Pool) nodePool() *karpv1.NodePool {
	node := &karpv1.NodePool{}
	node.Name = p.Name
	node.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{
		Group: v1beta1.GroupVersion.Group, Kind: "SSHNodeClass", Name: p.Name,
	}
	node.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{
		Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand},
	}}
	node.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("Never")
	node.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
	node.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("2s")
	return node
}

func (p *Pool) deployment() *appsv1.Deployment {
	labels := map[string]string{"app": p.Name}
	seconds := int64(1)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.Name}}
	d.Spec.Replicas = new(int32)
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = corev1.PodSpec{
		NodeSelector:                  map[string]string{karpv1.NodePoolLabelKey: p.Name},
		TerminationGracePeriodSeconds: &seconds,
		Containers:                    []corev1.Container{{Name: "idle", Image: lab.SandboxImage, ImagePullPolicy: corev1.PullNever}},
	}
	return d
}

// Scale sets how many pods the pool's Deployment wants.
func (p *Pool) Scale(ctx context.Context, replicas int) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	return p.on.Client.Patch(ctx, p.deployment(), patch)
}

// GiveUp takes the pod away and then its NodeClaim: waiting for consolidation takes half a minute, and is not what the
// caller is about.
func (p *Pool) GiveUp(ctx context.Context) error {
	if err := p.Scale(ctx, 0); err != nil {
		return err
	}
	_, err := p.on.Kubectl(ctx, "delete", "nodeclaims", "-l", karpv1.NodePoolLabelKey+"="+p.Name, "--wait=false")
	return err
}

// WaitReady waits until the node class is Ready.
func (p *Pool) WaitReady(ctx context.Context) error {
	_, err := p.waitReady(ctx, metav1.ConditionTrue, v1beta1.ReasonReady)
	return err
}

// WaitNotReady waits until the node class is not Ready for that reason, and returns the message. Others may come before
// it: what was applied reaches the controller's caches object by object, in any order.
func (p *Pool) WaitNotReady(ctx context.Context, reason string) (message string, err error) {
	return p.waitReady(ctx, metav1.ConditionFalse, reason)
}

func (p *Pool) waitReady(ctx context.Context, want metav1.ConditionStatus, reason string) (message string, err error) {
	err = p.on.Until(ctx, fmt.Sprintf("node class %q Ready=%s (%s)", p.Name, want, reason), func(ctx context.Context) error {
		class := &v1beta1.SSHNodeClass{}
		if err := p.on.Client.Get(ctx, client.ObjectKey{Name: p.Name}, class); err != nil {
			return err
		}
		ready := class.StatusConditions().Root()
		if ready == nil || ready.Status != want || ready.Reason != reason || ready.ObservedGeneration != class.Generation {
			return fmt.Errorf("it is %+v", ready)
		}
		message = ready.Message
		return nil
	})
	return message, err
}

// Running says which NodeClaim and which host the pool's one pod runs on, and is an error while it does not run.
func (p *Pool) Running(ctx context.Context) (claim, host string, err error) {
	var pods corev1.PodList
	if err := p.on.Client.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": p.Name}); err != nil {
		return "", "", err
	}
	if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
		return "", "", fmt.Errorf("%d pods, none of them alone and running", len(pods.Items))
	}
	hosts, err := p.on.SSHHosts(ctx)
	if err != nil {
		return "", "", err
	}
	for _, h := range hosts {
		if ref := h.Status.ClaimRef; ref != nil && ref.Name == pods.Items[0].Spec.NodeName && h.Status.State == v1beta1.HostInUse {
			return ref.Name, h.Name, nil
		}
	}
	return "", "", fmt.Errorf("the pod runs on %q, which no host in use backs", pods.Items[0].Spec.NodeName)
}

// UntilFast is [Stage.Until] for moments that are short: it looks as often as it can.
func (s *Stage) UntilFast(ctx context.Context, what string, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for %s: %w; last: %w", what, ctx.Err(), err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Idle is an error unless nothing is claimed and every host is Available.
func (s *Stage) Idle(ctx context.Context) error {
	claims, err := s.NodeClaims(ctx)
	if err != nil {
		return err
	}
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	if len(claims)+len(nodes) > 0 {
		return fmt.Errorf("%d NodeClaims and %d Nodes are left", len(claims), len(nodes))
	}
	hosts, err := s.SSHHosts(ctx)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		if h.Status.State != v1beta1.HostAvailable || h.Status.ClaimRef != nil || h.Status.BootstrapTokenID != "" {
			return fmt.Errorf("host %q is %s: %s", h.Name, h.Status.State, h.Status.LastProbeError)
		}
	}
	return nil
}

// Tokens names the bootstrap token Secrets of the cluster.
func (s *Stage) Tokens(ctx context.Context) (string, error) {
	out, err := s.Kubectl(ctx, "-n", "kube-system", "get", "secrets",
		"--field-selector", "type=bootstrap.kubernetes.io/token", "-o", "name")
	return strings.TrimSpace(out), err
}
