//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	pools "github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// TestAHostIsPreparedAheadOfDemand (issue 4, preparation ahead of demand): of two free hosts one is to be prepared. It
// has install run on it unclaimed, and leave, which leaves what install made; the next claim goes there and is the join
// alone, and then the other one is prepared.
func TestAHostIsPreparedAheadOfDemand(t *testing.T) {
	settled(t)
	p := counted(t, "prepared")
	one := intstr.FromInt32(1)
	p.class.Spec.Prepare = &one
	p.sign(t)
	forget(t)
	p.apply(t)
	p.ready(t)
	first := prepared(t, p, "")
	p.scale(t, 1)
	_, host := p.running(t)
	if host != first {
		t.Errorf("the claim went to %s, and %s was prepared", host, first)
	}
	wrote, err := on.Witnessed(within(t), machine(t, host))
	must(t, err)
	if want := ahead + "join-began\njoin-ended\n"; wrote != want {
		t.Errorf("%s wrote %q, want %q", host, wrote, want)
	}
	prepared(t, p, host) // no free host was any more
	p.giveUp(t)
	settled(t)
}

// ahead is what the counted scripts of a preparation write.
const ahead = "install-began\ninstall-ended\nleave-began\nleave-ended\n"

// prepared waits until a free host, another than but, has been prepared for the pool, and returns its name.
func prepared(t *testing.T, p *pool, but string) (name string) {
	t.Helper()
	marker := p.profile.Marker()
	until(t, "a free host to be prepared", func(ctx context.Context) error {
		hosts, err := on.SSHHosts(ctx)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			s := h.Status
			if h.Name == but || s.State != v1beta1.HostAvailable || s.ClaimRef != nil || s.InstalledProfile != marker {
				continue
			}
			if pools.Preparing(&h) != "" { // it is Available until leave has run, and again after the probe
				continue
			}
			if wrote, err := on.Witnessed(ctx, machine(t, h.Name)); err != nil || wrote != ahead {
				return fmt.Errorf("%s wrote %q (%v), want %q", h.Name, wrote, err, ahead)
			}
			name = h.Name
			return nil
		}
		return fmt.Errorf("%d hosts, none of them free and with %s", len(hosts), marker)
	})
	return name
}
