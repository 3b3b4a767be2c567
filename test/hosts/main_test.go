//go:build e2e

package hosts

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// The cluster and the host that all tests of this package use, one after the other. Each leaves the host clean.
var (
	cluster *lab.Lab
	host    *lab.Host
	scripts v1beta1.Scripts
)

const (
	deadline = 5 * time.Minute
	token    = "abcdef.0123456789abcdef"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*deadline)
	defer cancel()
	if err := start(ctx); err != nil {
		fmt.Printf("setting up: %v\n", err)
		code = 1
	} else {
		code = m.Run()
	}
	if cluster != nil {
		if code != 0 && cluster.KeepLogs() == nil {
			fmt.Printf("The logs of all processes are kept in %s\n", cluster.LogDir())
		}
		if err := cluster.Close(); err != nil {
			fmt.Printf("%v\n", err)
			return 1
		}
	}
	return code
}

func start(ctx context.Context) (err error) {
	manifest, err := os.ReadFile("../../examples/tls-bootstrap.yaml")
	if err != nil {
		return err
	}
	var profile v1beta1.SSHJoinProfile
	if err := yaml.Unmarshal([]byte(strings.SplitN(string(manifest), "\n---\n", 2)[0]), &profile); err != nil {
		return err
	}
	scripts = profile.Spec.Scripts
	log := func(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }
	if cluster, err = lab.Start(ctx, lab.Options{Log: log}); err != nil {
		return err
	}
	if err := admit(ctx, cluster); err != nil {
		return err
	}
	host, err = cluster.AddHost(ctx, lab.HostOptions{Name: "host-a"})
	return err
}

// admit makes the token that hosts join with. No controller approves their certificates here, so the cluster does.
func admit(ctx context.Context, l *lab.Lab) error {
	rbac, err := os.ReadFile("../../examples/bootstrap-rbac.yaml")
	if err != nil {
		return err
	}
	id, secret, _ := strings.Cut(token, ".")
	return l.Apply(ctx, string(rbac)+`
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-approves-all}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:kpssh"}]
---
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-`+id+`, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: `+id+`, token-secret: `+secret+`, usage-bootstrap-authentication: "true", auth-extra-groups: "system:bootstrappers:kpssh"}
`)
}

// phase runs a script of the profile as the shim does, and returns what it printed.
func phase(t *testing.T, l *lab.Lab, script string, vars ...string) (string, error) {
	t.Helper()
	command := append([]string{
		"env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
		"KPSSH_HOST_ADDRESS=" + host.Address, "KPSSH_NODE_ADDRESS=" + host.Address, "KPSSH_CLUSTER_ENDPOINT=" + l.Endpoint(),
		"KPSSH_CLUSTER_CA_B64=" + base64.StdEncoding.EncodeToString(l.CA()), "KPSSH_NODE_NAME=" + host.Name,
		"KPSSH_PROVIDER_ID=kpssh://kpssh-system/" + host.Name, "KPSSH_NODE_LABELS=", "KPSSH_TAINTS=", "KPSSH_BOOTSTRAP_TOKEN=" + token,
	}, vars...)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return host.ExecInput(ctx, strings.NewReader(script), append(command, "sh", "-c", "exec bash --noprofile --norc -p -s 2>&1")...)
}

func mustRun(t *testing.T, script string, vars ...string) string {
	t.Helper()
	out, err := phase(t, cluster, script, vars...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// sh runs a command on the host.
func sh(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := host.Exec(ctx, "bash", "-c", script)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(out)
}

// pod has kubelet run a pod with a mount of its own, for as long as the test goes on.
func pod(t *testing.T, l *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := l.Apply(ctx, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: default}
---
apiVersion: v1
kind: Pod
metadata: {name: idle, namespace: default}
spec:
  nodeName: `+host.Name+`
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  automountServiceAccountToken: false
  containers: [{name: idle, image: `+lab.SandboxImage+`, imagePullPolicy: Never, volumeMounts: [{name: memory, mountPath: /memory}]}]
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := l.Kubectl(ctx, "delete", "pod", "idle", "--force", "--grace-period=0"); err != nil {
			t.Error(err)
		}
	})
}

// running waits until the pod's container runs on the host.
func running(t *testing.T) {
	t.Helper()
	sh(t, `for i in {1..250}; do
	  if [ "$(ctr -n k8s.io tasks ls -q | wc -l)" -ge 2 ] && grep -q /var/lib/kubelet/pods/ /proc/self/mountinfo; then exit 0; fi; sleep 0.2
	done; ctr -n k8s.io tasks ls; journalctl -u kubelet -n 20 --no-pager; exit 1`)
}

// left says what there is on the host of a membership, by the host's own tools and not by what leave looks for.
const left = `
for unit in kubelet containerd; do
  case $(systemctl is-active $unit) in inactive | failed) ;; *) echo "$unit runs" ;; esac
  case $(systemctl is-enabled $unit 2>/dev/null) in enabled*) echo "$unit is enabled" ;; esac
done
ls -d /etc/kubernetes/kpssh /var/lib/kubelet/pki/kubelet* /var/lib/kubelet/pods/* /run/netns/cni-* 2>/dev/null
find /var/lib/cni -type f
grep -o ' /var/lib/kubelet/pods/[^ ]*\| /run/netns/cni-[^ ]*\| /run/containerd/[^ ]*/k8s.io/[^ ]*' /proc/self/mountinfo
pgrep -la 'containerd-shim|pause|kubelet'
find /sys/fs/cgroup -path '*kubepods*' -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un
ip -o link show | grep -o ' cni0:\| veth[^:]*:'
{ iptables-save; ip6tables-save; } 2>/dev/null | grep -E '^:(KUBE|CNI)-' | grep -v ADMIN
true`

func clean(t *testing.T, when string) {
	t.Helper()
	if found := sh(t, left); found != "" {
		t.Fatalf("%s, there is still:\n%s", when, found)
	}
}
