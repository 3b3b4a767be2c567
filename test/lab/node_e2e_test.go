//go:build e2e

package lab_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/audit"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/images"
)

const inclusterImage = "registry.test/incluster:1"

// inclusterArchive has the image of testdata/incluster.
func inclusterArchive(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program, archive := filepath.Join(dir, "incluster"), filepath.Join(dir, "image.tar")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/incluster")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	image, err := images.Archive(inclusterImage, runtime.GOARCH, "incluster", content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(archive, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return archive
}

const restricted = `apiVersion: v1
kind: Namespace
metadata:
  name: guarded
  labels: {pod-security.kubernetes.io/enforce: restricted}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: guarded, name: inside}
---
apiVersion: v1
kind: Pod
metadata: {namespace: guarded, name: inside}
spec:
  serviceAccountName: inside
  restartPolicy: Never
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: inside
    image: registry.test/incluster:1
    imagePullPolicy: Never
    args: ["SSHD"]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
`

const unrestricted = `apiVersion: v1
kind: Pod
metadata: {namespace: guarded, name: privileged}
spec:
  containers: [{name: x, image: "registry.test/incluster:1", securityContext: {privileged: true}}]
`

func TestAPodOnTheControlPlanesNodeReachesTheAPIServerAndTheHosts(t *testing.T) {
	l := start(t, lab.Options{AuditLog: true})
	h := addHost(t, l)
	began := time.Now()
	node, err := l.StartNode(t.Context(), lab.NodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the node took %s", time.Since(began))
	if hosts := l.Hosts(); len(hosts) != 1 || hosts[0] != h {
		t.Errorf("the lab's pool hosts are %v", hosts)
	}
	if _, err := l.StartNode(t.Context(), lab.NodeOptions{Name: "second"}); err == nil {
		t.Error("a second node was started")
	}
	if err := node.LoadImage(t.Context(), inclusterArchive(t)); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := l.Kubectl(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := kubectl("get", "nodes", "-l", "node-role.kubernetes.io/control-plane", "-o", "name"); got != "node/control-plane\n" {
		t.Errorf("the control plane's nodes are %q", got)
	}
	const me = "system:serviceaccount:guarded:inside"
	succeeds := func() {
		t.Helper()
		if err := l.Apply(t.Context(), strings.Replace(restricted, "SSHD", h.Address+":22", 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Kubectl(t.Context(), "-n", "guarded", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/inside", "--timeout=90s"); err != nil {
			t.Fatalf("%v: %s", err, kubectl("-n", "guarded", "describe", "pod", "inside"))
		}
		said := kubectl("-n", "guarded", "logs", "inside")
		for _, want := range []string{"https://10.96.0.1:443 " + me + "\n", "SSH-2.0-OpenSSH"} {
			if !strings.Contains(said, want) {
				t.Errorf("the pod says %q, which lacks %q", said, want)
			}
		}
	}
	succeeds()
	if err := l.Apply(t.Context(), unrestricted); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("a privileged pod: %v", err)
	}
	events, err := l.Audit()
	if err != nil {
		t.Fatal(err)
	}
	var got []audit.Event
	for _, e := range events {
		if e.User == me {
			e.Time, e.Path = time.Time{}, ""
			got = append(got, e)
		}
	}
	want := []audit.Event{
		{User: me, Verb: "create", Group: "authentication.k8s.io", Resource: "selfsubjectreviews", Decision: audit.Allow, Code: http.StatusCreated},
		{User: me, Verb: "list", Resource: "secrets", Namespace: "kube-system", Decision: audit.Forbid, Code: http.StatusForbidden},
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log says of it\n%+v, want\n%+v", got, want)
	}

	kubectl("-n", "guarded", "delete", "pod", "inside")
	if err := node.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	succeeds()
}
