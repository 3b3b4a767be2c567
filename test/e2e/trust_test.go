//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

func TestAnEditedProfileIsRefusedBeforeAnythingIsDialled(t *testing.T) {
	settled(t)
	p := shipped(t, "edited")
	p.sign(t)
	p.profile.Spec.Scripts.Join += "\necho one line more\n"
	p.apply(t)
	message := p.notReady(t, v1beta1.ReasonScriptNotSigned)
	if !strings.Contains(message, "join") || strings.Contains(message, "install script") {
		t.Errorf("message %q: it does not name the one script that was edited", message)
	}
	runs := runsOnHosts(t)
	p.scale(t, 1)
	until(t, "the pod to be passed over", func(ctx context.Context) error {
		out, err := on.Kubectl(ctx, "get", "events", "-n", "default", "--field-selector", "involvedObject.kind=Pod", "-o", "custom-columns=N:.involvedObject.name,M:.message")
		if err == nil && !strings.Contains(out, p.name) {
			err = errNotYet
		}
		return err
	})
	claims, err := on.NodeClaims(within(t))
	must(t, err)
	if len(claims) != 0 {
		t.Errorf("%d NodeClaims for a class that is not ready", len(claims))
	}
	if now := runsOnHosts(t); now != runs {
		t.Errorf("something ran: %s, before %s", now, runs)
	}
	p.scale(t, 0)
}

func TestAProfileThatNobodySignedIsRefusedBeforeAnythingIsDialled(t *testing.T) {
	settled(t)
	p := shipped(t, "unsigned")
	p.apply(t)
	p.notReady(t, v1beta1.ReasonScriptNotSigned)
}

// runsOnHosts is the last run that each host's shim has on record.
func runsOnHosts(t *testing.T) string {
	t.Helper()
	var all []string
	for _, h := range on.Hosts() {
		out, err := h.Exec(within(t), "sha256sum", "/var/lib/kpssh/state")
		must(t, err)
		all = append(all, h.Name+"="+out)
	}
	return strings.Join(all, " ")
}

// TestAClusterThatHostsDoNotTrustRunsNothing gives the controller a whole trust folder of somebody else's: in itself all
// of it is in order, but the hosts know another root. TestAStolenSSHKeyRunsNothing has what a host says to such orders.
func TestAClusterThatHostsDoNotTrustRunsNothing(t *testing.T) {
	settled(t)
	p := counted(t, "forged")
	forged := filepath.Join(on.Dir(), "forged-trust")
	_, err := on.CLI(within(t), "init", "--dir", forged, "--no-passphrase")
	must(t, err)
	// As many versions as the hosts have seen: a lower one they would refuse for that alone.
	hosts, err := on.SSHHosts(within(t))
	must(t, err)
	for range hosts[0].Status.Trust.RootVersion - 1 {
		_, err := on.CLI(within(t), "root", "new", "--dir", forged, "--sign-with", filepath.Join(forged, "offline", "root", "root-1.key"))
		must(t, err)
	}
	file := filepath.Join(on.Dir(), "forged.yaml")
	must(t, os.WriteFile(file, []byte(p.manifest(t)), 0o600))
	_, err = on.CLI(within(t), "profile", "sign", "--dir", forged, "--pin-cluster", file)
	must(t, err)
	t.Cleanup(func() {
		for _, name := range []string{"10-trust.yaml", "20-dispatch-key.secret.yaml"} {
			b, err := os.ReadFile(filepath.Join(on.TrustDir, "manifests", name))
			must(t, err)
			must(t, on.Apply(within(t), string(b)))
		}
	})
	for _, name := range []string{"10-trust.yaml", "20-dispatch-key.secret.yaml"} {
		b, err := os.ReadFile(filepath.Join(forged, "manifests", name))
		must(t, err)
		must(t, on.Apply(within(t), string(b)))
	}
	forget(t)
	before := runsOnHosts(t)
	p.apply(t)
	p.ready(t)
	p.scale(t, 1)
	until(t, "the refusal to be told", func(ctx context.Context) error {
		var events corev1.EventList
		if err := on.Client.List(ctx, &events); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "JoinFailed" && strings.Contains(e.Message, v1beta1.ReasonDispatchKeyUnknown) {
				return nil
			}
		}
		return fmt.Errorf("%d events, none of them JoinFailed for %s", len(events.Items), v1beta1.ReasonDispatchKeyUnknown)
	})
	p.scale(t, 0)
	settled(t) // also says that no host is Unhealthy
	if got, err := seen(within(t)); err != nil || got != "" {
		t.Errorf("scripts ran: %q (%v)", got, err)
	}
	if now := runsOnHosts(t); now != before {
		t.Errorf("the state of a shim changed: %s, before %s", now, before)
	}
}
