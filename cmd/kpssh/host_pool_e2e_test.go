//go:build e2e

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/admission"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const aNodeClaim = `
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: claim-a}
spec:
  nodeClassRef: {group: karpenter.dklesev.github.io, kind: SSHNodeClass, name: default}
  requirements: []
`

// The verbs on a real API server, with the policy that keeps SSHHosts: what drain says is done can be deleted, and before
// that it cannot. Of the controller the test plays the one write that a release is.
func TestHostVerbsOnARealAPIServer(t *testing.T) {
	server, err := lab.StartAPIServer(t.Context(), lab.APIServerOptions{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, manifest := range slices.Concat(crds.Own(), crds.Karpenter(), admission.Policies()) {
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
	c, err := client.New(server.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Apply(t.Context(), aNodeClaim); err != nil {
		t.Fatal(err)
	}
	claim, err := server.Kubectl(t.Context(), "get", "nodeclaim", "claim-a", "-o", "jsonpath={.metadata}")
	if err != nil {
		t.Fatal(err)
	}
	var meta metav1.ObjectMeta
	if err := json.Unmarshal([]byte(claim), &meta); err != nil {
		t.Fatal(err)
	}
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: apis.DefaultPoolNamespace, Name: "host-a"},
		Spec: v1beta1.SSHHostSpec{
			Address: "10.0.0.1", SSHKeySecretRef: v1beta1.SecretRef{Name: "ssh"}, ExecMode: v1beta1.ExecModeRaw,
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("2Gi")},
		},
	}
	for _, object := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: apis.DefaultPoolNamespace}}, host} {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	host.Status = v1beta1.SSHHostStatus{State: v1beta1.HostInUse, ClaimRef: &v1beta1.ClaimRef{Name: meta.Name, UID: meta.UID}}
	if err := c.Status().Update(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	until(t, "the API server to keep a host that is in use", func() bool {
		err := c.Delete(t.Context(), host.DeepCopy(), client.DryRunAll)
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "kpssh host drain --wait host-a")
	})

	t.Chdir(t.TempDir()) // without a trust folder
	kpssh := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		env := &cli.Env{Prog: "kpssh", Stdout: &out, Stderr: &errs, Getenv: os.Getenv, Now: time.Now}
		args = append([]string{"host"}, append(args, "--kubeconfig", server.Kubeconfig())...)
		if code := cli.Execute(t.Context(), env, commands(), args); code != want {
			t.Fatalf("kpssh %q: exit code %d, want %d: %s", args, code, want, &errs)
		}
		return out.String() + errs.String()
	}
	read := func() *v1beta1.SSHHost {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(host), host); err != nil {
			t.Fatal(err)
		}
		return host
	}
	if got := kpssh(0, "list"); !strings.Contains(got, "InUse  claim-a") {
		t.Errorf("list: %s", got)
	}
	kpssh(0, "reset", "host-a")
	if read().Annotations[apis.AnnotationReset] == "" {
		t.Error("reset annotated nothing")
	}
	if got := kpssh(1, "drain", "--wait", "--timeout", "1ms", "host-a"); !strings.Contains(got, "NodeClaim claim-a holds the host") {
		t.Errorf("drain of a host that nobody leaves: %s", got)
	}
	if _, err := server.Kubectl(t.Context(), "get", "nodeclaim", "claim-a"); err == nil {
		t.Error("drain left the NodeClaim")
	}
	if !read().InMaintenance() {
		t.Error("drain did not park the host")
	}
	if err := c.Delete(t.Context(), host.DeepCopy()); !apierrors.IsForbidden(err) {
		t.Fatalf("a host that is not left yet is deleted: %v", err)
	}
	host.Status.State, host.Status.ClaimRef = v1beta1.HostMaintenance, nil
	if err := c.Status().Update(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	kpssh(0, "drain", "--wait", "host-a")
	kpssh(0, "undrain", "host-a")
	if read().InMaintenance() {
		t.Error("undrain left the annotation")
	}
	if err := c.Delete(t.Context(), host); err != nil {
		t.Errorf("a host that is out of use is not deleted: %v", err)
	}
	if got := kpssh(1, "drain", "host-a"); !strings.Contains(got, `there is no SSHHost "host-a"`) {
		t.Errorf("drain of no host: %s", got)
	}
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !holds(); {
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-tick.C:
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}
