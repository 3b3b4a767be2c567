//go:build e2e

package e2e

import (
	"context"
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

const canary = "Canary+Secret/Value=7f3a9c"

// spy looks through the command lines of all processes of a host until it is told to stop. What it looks for is in a
// file, so that it does not find itself.
const spy = `while [ ! -e /root/kpssh-e2e-stop ]; do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -F -f /root/kpssh-e2e-canary && exit 0; done; exit 1`

// TestASecretIsSeenByNobody puts a canary into a join secret, has the scripts trace themselves and fail, and looks for
// it, plain, in base64 and URL-encoded, wherever somebody could read it (R31).
func TestASecretIsSeenByNobody(t *testing.T) {
	settled(t)
	p := shipped(t, "secret")
	secret := &corev1.Secret{StringData: map[string]string{"activation-code": canary}}
	secret.Namespace, secret.Name = stage.PoolNamespace, "e2e-join"
	must(t, on.Client.Create(within(t), secret))
	t.Cleanup(func() { _ = on.Client.Delete(context.Background(), secret) })
	p.class.Spec.JoinSecretRef = &v1beta1.SecretRef{Name: secret.Name}
	declare := v1beta1.Parameter{Name: "KPSSH_SECRET_ACTIVATION_CODE", Secret: true}
	p.profile.Spec.Parameters.Install = append(p.profile.Spec.Parameters.Install, declare)
	p.profile.Spec.Parameters.Join = append(p.profile.Spec.Parameters.Join, declare)
	join := &p.profile.Spec.Scripts.Join
	*join = strings.Replace(*join, "set -euo pipefail\n",
		"set -euo pipefail\nset -x\n: \"$KPSSH_SECRET_ACTIVATION_CODE $KPSSH_BOOTSTRAP_TOKEN\"\nsleep 1\necho \"$KPSSH_SECRET_ACTIVATION_CODE\"\n"+
			"test -n \"$KPSSH_SECRET_ACTIVATION_CODE\"\nexit 7\n", 1)
	p.sign(t)
	p.apply(t)
	p.ready(t)

	var wg sync.WaitGroup
	for _, h := range on.Hosts() {
		must(t, h.WriteFile(within(t), "/root/kpssh-e2e-canary", "0600", []byte(strings.Join(forms(), "\n")+"\n")))
		wg.Go(func() {
			if out, err := h.Exec(context.Background(), "sh", "-c", spy); err == nil {
				t.Errorf("on %s a command line shows it: %q", h.Name, out)
			}
		})
	}
	p.scale(t, 1)
	until(t, "the join to fail", func(ctx context.Context) error {
		out, err := on.Kubectl(ctx, "get", "events", "-A", "-o", "custom-columns=R:.reason,M:.message")
		if err == nil && !strings.Contains(out, "exit status 7") {
			err = errNotYet
		}
		return err
	})
	p.scale(t, 0)
	for _, h := range on.Hosts() {
		_, err := h.Exec(within(t), "touch", "/root/kpssh-e2e-stop")
		must(t, err)
	}
	wg.Wait()

	places := map[string]string{}
	logs, err := filepath.Glob(filepath.Join(on.LogDir(), "controller*"))
	must(t, err)
	for _, file := range logs {
		b, err := os.ReadFile(file)
		must(t, err)
		places[file] = string(b)
	}
	for _, what := range []string{"events", "sshhosts,nodeclaims,nodes,sshnodeclasses,sshjoinprofiles"} {
		out, err := on.Kubectl(within(t), "get", what, "-A", "-o", "yaml")
		must(t, err)
		places[what] = out
	}
	for _, h := range on.Hosts() {
		out, err := h.Exec(within(t), "sh", "-c", "journalctl --no-pager -o cat; grep -rsF -f /root/kpssh-e2e-canary /etc /var/lib/kpssh /var/lib/kubelet /run /tmp /var/tmp || true; rm -f /root/kpssh-e2e-*")
		must(t, err)
		places["host "+h.Name] = out
	}
	for place, text := range places {
		for _, form := range forms() {
			if at := strings.Index(text, form); at >= 0 {
				t.Errorf("%s shows it: …%s…", place, text[max(0, at-80):min(len(text), at+len(form)+20)])
			}
		}
	}
	// The script's own fault is the host's: the next test wants a pool that is idle again.
	for _, h := range on.Hosts() {
		_, err := on.Kubectl(within(t), "-n", stage.PoolNamespace, "label", "sshhost", h.Name, "e2e=looked", "--overwrite")
		must(t, err)
	}
	settled(t)
}

// forms are the spellings in which the canary could show.
func forms() []string {
	return []string{canary, base64.StdEncoding.EncodeToString([]byte(canary)), url.QueryEscape(canary)}
}
