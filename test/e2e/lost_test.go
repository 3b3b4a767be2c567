//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// TestAllStatusIsLostWhileANodeRuns erases what the controller knows of every host, while it is down and while it runs:
// the node stays, nothing runs on its host, the claim comes back, and the node can be given back afterwards (CAPT PR#432,
// R92).
func TestAllStatusIsLostWhileANodeRuns(t *testing.T) {
	settled(t)
	forget(t)
	p := counted(t, "lost")
	p.sign(t)
	p.apply(t)
	p.ready(t)
	p.scale(t, 1)
	claim, host := p.running(t)
	before, err := sshHost(within(t), host)
	must(t, err)
	node := nodeNamed(t, claim)

	for name, erase := range map[string]func(){
		"while the controller runs": func() { eraseStatus(t) },
		"while it is down": func() {
			on.Controller().Kill9()
			eraseStatus(t)
			must(t, on.StartController(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			erase()
			until(t, "the claim to come back", func(ctx context.Context) error {
				h, err := sshHost(ctx, host)
				if err == nil && (h.Status.State != v1beta1.HostInUse || h.Status.ClaimRef == nil || *h.Status.ClaimRef != *before.Status.ClaimRef) {
					err = fmt.Errorf("the host is %q, claimed by %v", h.Status.State, h.Status.ClaimRef)
				}
				return err
			})
			after, err := sshHost(within(t), host)
			must(t, err)
			if after.Status.InstalledProfile != before.Status.InstalledProfile || after.Status.ProviderID != before.Status.ProviderID || after.Status.Fence != before.Status.Fence {
				t.Errorf("it was %+v and is %+v", before.Status, after.Status)
			}
			if now := nodeNamed(t, claim); now.UID != node.UID || !now.DeletionTimestamp.IsZero() {
				t.Error("the node is another one, or goes")
			}
			p.once(t, host, "install", "join")
		})
	}
	p.giveUp(t)
	settled(t)
	p.once(t, host, "install", "join", "leave")
	must(t, on.CheckWarm(within(t), host))
	events, err := on.Kubectl(within(t), "get", "events", "-A", "-o", "custom-columns=R:.reason,O:.involvedObject.name")
	must(t, err)
	if !strings.Contains(events, v1beta1.EventClaimRestored) {
		t.Errorf("nobody was told:\n%s", events)
	}
}

// eraseStatus takes all status of all hosts but the fence, which the API server does not let fall.
func eraseStatus(t *testing.T) {
	t.Helper()
	hosts, err := on.SSHHosts(within(t))
	must(t, err)
	for i := range hosts {
		must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			h := &v1beta1.SSHHost{}
			if err := on.Client.Get(within(t), client.ObjectKeyFromObject(&hosts[i]), h); err != nil {
				return err
			}
			h.Status = v1beta1.SSHHostStatus{Fence: h.Status.Fence}
			return on.Client.Status().Update(within(t), h)
		}))
	}
}
