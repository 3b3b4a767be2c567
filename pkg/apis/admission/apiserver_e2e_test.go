//go:build e2e

package admission_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/admission"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const (
	namespace = "kpssh-system"
	patience  = time.Minute
)

type cluster struct {
	t      *testing.T
	server *lab.APIServer
	client.Client
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	server, err := lab.StartAPIServer(t.Context(), lab.APIServerOptions{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, manifest := range slices.Concat(crds.Own(), admission.Policies()) {
		if err := server.Apply(t.Context(), string(manifest)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := server.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{t: t, server: server}
	if c.Client, err = client.New(server.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	c.namespace(namespace)
	return c
}

func (c *cluster) namespace(name string) *corev1.Namespace {
	c.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Create(c.t.Context(), ns); err != nil {
		c.t.Fatal(err)
	}
	return ns
}

func (c *cluster) host(ns, name string, annotations map[string]string, status v1beta1.SSHHostStatus) *v1beta1.SSHHost {
	c.t.Helper()
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: annotations},
		Spec: v1beta1.SSHHostSpec{
			Address: "10.0.0.1", SSHKeySecretRef: v1beta1.SecretRef{Name: "ssh"}, ExecMode: v1beta1.ExecModeRaw,
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("2Gi")},
		},
	}
	if err := c.Create(c.t.Context(), host); err != nil {
		c.t.Fatal(err)
	}
	host.Status = status
	if err := c.Status().Update(c.t.Context(), host); err != nil {
		c.t.Fatal(err)
	}
	return host
}

// inForce waits until the API server has taken the policy up, which it does some time after it was created.
func (c *cluster) inForce() {
	c.t.Helper()
	canary := c.host(namespace, "canary", nil, v1beta1.SSHHostStatus{State: v1beta1.HostLeaving})
	c.eventually("the policy to be in force", func() bool {
		err := c.Delete(c.t.Context(), canary, client.DryRunAll)
		if err != nil && !strings.Contains(err.Error(), "is being made to leave") {
			c.t.Fatal(err)
		}
		return err != nil
	})
}

func (c *cluster) eventually(what string, holds func() bool) {
	c.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !holds(); {
		select {
		case <-c.t.Context().Done():
			c.t.Fatal(c.t.Context().Err())
		case <-tick.C:
		}
		if time.Since(began) > patience {
			c.t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// docs/limits.md had it: a claimed SSHHost that was deleted left its host joined, with nobody to leave it.
func TestAnAPIServerKeepsAnSSHHostWhoseHostIsAMember(t *testing.T) {
	c := newCluster(t)
	c.inForce()
	claim := &v1beta1.ClaimRef{Name: "pool-x7k2p", UID: "1"}
	abandoned := map[string]string{apis.AnnotationAbandon: ""}
	for name, tt := range map[string]struct {
		annotations map[string]string
		status      v1beta1.SSHHostStatus
		// want are pieces of the refusal; none: it is deleted.
		want []string
	}{
		"never-probed": {},
		"available":    {status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable}},
		"parked": {
			annotations: map[string]string{apis.AnnotationMaintenance: ""}, status: v1beta1.SSHHostStatus{State: v1beta1.HostMaintenance},
		},
		"foreign": {status: v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy}},
		"claimed": {
			status: v1beta1.SSHHostStatus{State: v1beta1.HostClaimed, ClaimRef: claim},
			want:   []string{"SSHHost claimed is held by NodeClaim pool-x7k2p", "'kpssh host drain --wait claimed'", "annotate sshhost claimed " + apis.AnnotationAbandon + "="},
		},
		"in-use": {
			status: v1beta1.SSHHostStatus{State: v1beta1.HostInUse, ClaimRef: claim}, want: []string{"held by NodeClaim pool-x7k2p"},
		},
		// Parking alone frees nothing.
		"parked-in-use": {
			annotations: map[string]string{apis.AnnotationMaintenance: ""},
			status:      v1beta1.SSHHostStatus{State: v1beta1.HostInUse, ClaimRef: claim}, want: []string{"held by NodeClaim pool-x7k2p"},
		},
		"in-debt": {
			status: v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy, Cleanup: &v1beta1.HostCleanup{}},
			want:   []string{"SSHHost in-debt is owed a leave", "'kpssh host undrain in-debt'"},
		},
		"parked-in-debt": {
			status: v1beta1.SSHHostStatus{State: v1beta1.HostMaintenance, Cleanup: &v1beta1.HostCleanup{ClaimRef: claim}}, want: []string{"is owed a leave"},
		},
		"leaving": {status: v1beta1.SSHHostStatus{State: v1beta1.HostLeaving}, want: []string{"SSHHost leaving is being made to leave"}},
		"not-clean": {
			status: v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy, Failures: failed(v1beta1.ReasonNotClean), Conditions: clean(metav1.ConditionFalse)},
			want:   []string{"SSHHost not-clean was not left clean", "'kpssh host reset not-clean'"},
		},
		"not-left": {
			status: v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy, Failures: failed(v1beta1.ReasonZombieFailed)}, want: []string{"was not left clean"},
		},
		"clean-again": {
			status: v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy, Failures: failed(v1beta1.ReasonNotClean), Conditions: clean(metav1.ConditionTrue)},
		},
		"never-joined": {status: v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy, Failures: failed(v1beta1.ReasonJoinFailed)}},
		"dead-in-use": {
			annotations: abandoned, status: v1beta1.SSHHostStatus{State: v1beta1.HostInUse, ClaimRef: claim},
		},
		"dead-in-debt": {
			annotations: abandoned, status: v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy, Cleanup: &v1beta1.HostCleanup{ClaimRef: claim}},
		},
		"dead-leaving": {annotations: abandoned, status: v1beta1.SSHHostStatus{State: v1beta1.HostLeaving}},
	} {
		t.Run(name, func(t *testing.T) {
			host := c.host(namespace, name, tt.annotations, tt.status)
			err := c.Delete(t.Context(), host)
			if len(tt.want) == 0 {
				if err != nil {
					t.Errorf("not deleted: %v", err)
				}
				return
			}
			if !apierrors.IsForbidden(err) {
				t.Fatalf("deleted, or another error: %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("refused with %q, want %q in it", err, want)
				}
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(host), host); err != nil {
				t.Errorf("refused, and yet: %v", err)
			}
		})
	}
	// All at once: a delete of a collection is no way around it.
	if err := c.DeleteAllOf(t.Context(), &v1beta1.SSHHost{}, client.InNamespace(namespace)); !apierrors.IsForbidden(err) {
		t.Errorf("a delete of all of them: %v", err)
	}
}

func failed(reason string) *v1beta1.HostFailures {
	return &v1beta1.HostFailures{Count: 1, Reason: reason}
}

func clean(value metav1.ConditionStatus) []status.Condition {
	return []status.Condition{{Type: v1beta1.ConditionClean, Status: value, Reason: "Probed", LastTransitionTime: metav1.Now()}}
}

// What the namespace controller does for a namespace that is being deleted is not refused: it could be served no better,
// as the SSH keys go with it.
func TestANamespaceCanBeDeletedWithItsHosts(t *testing.T) {
	c := newCluster(t)
	c.inForce()
	doomed := c.namespace("doomed")
	status := v1beta1.SSHHostStatus{State: v1beta1.HostInUse, ClaimRef: &v1beta1.ClaimRef{Name: "pool-x7k2p", UID: "1"}}
	host := c.host(doomed.Name, "in-use", nil, status)
	all := func() error { return c.DeleteAllOf(t.Context(), &v1beta1.SSHHost{}, client.InNamespace(doomed.Name)) }
	if err := all(); !apierrors.IsForbidden(err) {
		t.Fatalf("before the namespace was deleted: %v", err)
	}
	if err := c.Delete(t.Context(), doomed); err != nil {
		t.Fatal(err)
	}
	// The API server learns of that by a watch, and the namespace controller tries again as this does.
	c.eventually("the host of a deleted namespace to go", func() bool {
		if err := all(); err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(host), host))
	})
}

// docs/limits.md says that the policy has no say when the kind itself goes: were that another way, a cluster could not be
// rid of it either.
func TestTheKindCanBeDeletedWithItsHosts(t *testing.T) {
	c := newCluster(t)
	c.inForce()
	if _, err := c.server.Kubectl(t.Context(), "delete", "crd", "sshhosts."+apis.Group, "--timeout=60s"); err != nil {
		t.Error(err)
	}
}
