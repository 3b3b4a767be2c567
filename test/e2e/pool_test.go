//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// pool is a join profile, a node class, a NodePool and a Deployment of the same name.
type pool struct {
	name    string
	profile *v1beta1.SSHJoinProfile
	class   *v1beta1.SSHNodeClass
}

// shipped reads the profile and the class of examples/ under another name.
func shipped(t *testing.T, name string) *pool {
	t.Helper()
	manifest, err := on.Example(stage.Profile)
	must(t, err)
	p := &pool{name: name, profile: &v1beta1.SSHJoinProfile{}, class: &v1beta1.SSHNodeClass{}}
	docs := strings.Split(manifest, "\n---\n")
	if len(docs) != 2 {
		t.Fatalf("examples/%s has %d documents", stage.Profile, len(docs))
	}
	must(t, yaml.UnmarshalStrict([]byte(docs[0]), p.profile))
	must(t, yaml.UnmarshalStrict([]byte(docs[1]), p.class))
	p.profile.Name, p.class.Name, p.class.Spec.JoinProfileRef.Name = name, name, name
	return p
}

func (p *pool) manifest(t *testing.T) string {
	t.Helper()
	profile, err := yaml.Marshal(p.profile)
	must(t, err)
	class, err := yaml.Marshal(p.class)
	must(t, err)
	return string(profile) + "---\n" + string(class)
}

// sign has the author allow the profile's scripts, as an operator does.
func (p *pool) sign(t *testing.T) {
	t.Helper()
	file := filepath.Join(on.Dir(), p.name+".yaml")
	must(t, os.WriteFile(file, []byte(p.manifest(t)), 0o600))
	_, err := on.CLI(within(t), "profile", "sign", "--pin-cluster", file)
	must(t, err)
	must(t, on.ApplyTrust(within(t)))
}

// apply makes the objects, and removes them when the test ends.
func (p *pool) apply(t *testing.T) {
	t.Helper()
	must(t, on.Apply(within(t), p.manifest(t)))
	node := &karpv1.NodePool{}
	node.Name = p.name
	node.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{
		Group: v1beta1.GroupVersion.Group, Kind: "SSHNodeClass", Name: p.name,
	}
	node.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{
		Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand},
	}}
	node.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("Never")
	node.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
	node.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("2s")
	must(t, on.Client.Create(within(t), node))
	deployment := p.deployment()
	must(t, on.Client.Create(within(t), deployment))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		for _, o := range []client.Object{deployment, node, p.class, p.profile} {
			if err := client.IgnoreNotFound(on.Client.Delete(ctx, o)); err != nil {
				t.Error(err)
			}
		}
		if err := on.Until(ctx, "the node class to go", func(ctx context.Context) error {
			err := on.Client.Get(ctx, client.ObjectKeyFromObject(p.class), &v1beta1.SSHNodeClass{})
			if err == nil {
				return fmt.Errorf("SSHNodeClass %q is still there", p.name)
			}
			return client.IgnoreNotFound(err)
		}); err != nil {
			t.Error(err)
		}
	})
}

func (p *pool) deployment() *appsv1.Deployment {
	labels := map[string]string{"app": p.name}
	seconds := int64(1)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.name}}
	d.Spec.Replicas = new(int32)
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = corev1.PodSpec{
		NodeSelector:                  map[string]string{karpv1.NodePoolLabelKey: p.name},
		TerminationGracePeriodSeconds: &seconds,
		Containers:                    []corev1.Container{{Name: "idle", Image: lab.SandboxImage, ImagePullPolicy: corev1.PullNever}},
	}
	return d
}

func (p *pool) scale(t *testing.T, replicas int) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	must(t, on.Client.Patch(within(t), p.deployment(), patch))
}

// ready waits until the node class has its Ready condition at status, and returns its reason and message.
func (p *pool) ready(t *testing.T, want metav1.ConditionStatus) (reason, message string) {
	t.Helper()
	until(t, fmt.Sprintf("node class %q Ready=%s", p.name, want), func(ctx context.Context) error {
		class := &v1beta1.SSHNodeClass{}
		if err := on.Client.Get(ctx, client.ObjectKey{Name: p.name}, class); err != nil {
			return err
		}
		ready := class.StatusConditions().Root()
		if ready == nil || ready.Status != want || ready.ObservedGeneration != class.Generation {
			return fmt.Errorf("it is %+v", ready)
		}
		reason, message = ready.Reason, ready.Message
		return nil
	})
	return reason, message
}

// running waits until the pool's pod runs, and returns its NodeClaim's and its host's name.
func (p *pool) running(t *testing.T) (claim, host string) {
	t.Helper()
	until(t, "the pod to run", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := on.Client.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": p.name}); err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%d pods, none of them alone and running", len(pods.Items))
		}
		hosts, err := on.SSHHosts(ctx)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			if ref := h.Status.ClaimRef; ref != nil && ref.Name == pods.Items[0].Spec.NodeName && h.Status.State == v1beta1.HostInUse {
				claim, host = ref.Name, h.Name
				return nil
			}
		}
		return fmt.Errorf("the pod runs on %q, which no host in use backs", pods.Items[0].Spec.NodeName)
	})
	return claim, host
}

// machine is the lab's host of that name.
func machine(t *testing.T, name string) *lab.Host {
	t.Helper()
	for _, h := range on.Hosts() {
		if h.Name == name {
			return h
		}
	}
	t.Fatalf("there is no host %q", name)
	return nil
}
