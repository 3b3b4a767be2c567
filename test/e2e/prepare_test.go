//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// TestAHostIsPreparedAheadOfDemand (issue 4, preparation ahead of demand): of two free hosts one is to be prepared. It
// has install run on it unclaimed, the next claim goes there and is the join alone, and then the other one is prepared.
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
	if got, want := witnessed(t, first), "install-began\ninstall-ended\n"; got != want {
		t.Fatalf("%s, which is free, wrote %q, want %q", first, got, want)
	}
	p.scale(t, 1)
	_, host := p.running(t)
	if host != first {
		t.Errorf("the claim went to %s, and %s was prepared", host, first)
	}
	if got, want := witnessed(t, host), "install-began\ninstall-ended\njoin-began\njoin-ended\n"; got != want {
		t.Errorf("%s wrote %q, want %q", host, got, want)
	}
	// No free host is prepared any more.
	second := prepared(t, p, host)
	if got, want := witnessed(t, second), "install-began\ninstall-ended\n"; got != want {
		t.Errorf("%s, which is free, wrote %q, want %q", second, got, want)
	}
	p.giveUp(t)
	settled(t)
}

// prepared waits until a free host, another than but, has what the pool's profile installs, and returns its name.
func prepared(t *testing.T, p *pool, but string) (name string) {
	t.Helper()
	marker := p.profile.Name + "@" + p.profile.Spec.Version
	until(t, "a free host to be prepared", func(ctx context.Context) error {
		hosts, err := on.SSHHosts(ctx)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			if s := h.Status; h.Name != but && s.State == v1beta1.HostAvailable && s.ClaimRef == nil && s.InstalledProfile == marker {
				name = h.Name
				return nil
			}
		}
		return fmt.Errorf("%d hosts, none of them free and with %s", len(hosts), marker)
	})
	return name
}

// witnessed is what the counted scripts wrote on the host of that name.
func witnessed(t *testing.T, host string) string {
	t.Helper()
	wrote, err := on.Witnessed(within(t), machine(t, host))
	must(t, err)
	return wrote
}
