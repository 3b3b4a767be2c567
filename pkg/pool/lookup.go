package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// HeldBy returns the hosts that ref holds, as the API server has them: one as a rule, none when the claim is gone, and
// more only when a host is held in excess (see Extra). providerID, which may be empty, helps to find a host that the
// inventory does not know as claimed yet.
func (p *Pool) HeldBy(ctx context.Context, ref Ref, providerID string) ([]*v1beta1.SSHHost, error) {
	if !p.inventory.Synced() {
		return nil, fmt.Errorf("finding the hosts of NodeClaim %q: %w", ref.Name, ErrCold)
	}
	names := p.candidates(ref, providerID)
	if len(names) == 0 {
		// Saying "none" ends a NodeClaim for good, so that an index which may be old is not enough.
		if err := p.Refresh(ctx); err != nil {
			return nil, err
		}
		names = p.candidates(ref, providerID)
	}
	var out []*v1beta1.SSHHost
	for name := range names {
		host, err := p.Live(ctx, name)
		switch {
		case errors.Is(err, ErrHostNotFound):
		case err != nil:
			return nil, err
		case Held(host, ref):
			out = append(out, host)
		}
	}
	return out, nil
}

func (p *Pool) candidates(ref Ref, providerID string) map[string]bool {
	names := map[string]bool{}
	for _, host := range p.inventory.byClaim(ref.UID) {
		names[host.Name] = true
	}
	if host := p.inventory.byProviderID(providerID); host != nil {
		names[host.Name] = true
	}
	if name, ok := p.staticName(providerID); ok {
		names[name] = true
	}
	return names
}

func (p *Pool) staticName(providerID string) (string, bool) {
	name, ok := strings.CutPrefix(providerID, apis.ProviderIDPrefix+p.namespace+"/")
	return name, ok && name != "" && !strings.Contains(name, "/")
}

// ClaimedByProviderID returns a claimed host by its static or adopted id. It answers ErrHostNotFound only when the
// API server says so too.
func (p *Pool) ClaimedByProviderID(ctx context.Context, id string) (*v1beta1.SSHHost, error) {
	if !p.inventory.Synced() {
		return nil, fmt.Errorf("finding the host with provider id %q: %w", id, ErrCold)
	}
	if host := p.inventory.byProviderID(id); host != nil && host.Status.ClaimRef != nil {
		return host.DeepCopy(), nil
	}
	if name, ok := p.staticName(id); ok {
		host, err := p.Live(ctx, name)
		if err != nil {
			return nil, err
		}
		if host.Status.ClaimRef != nil {
			return host, nil
		}
		return nil, fmt.Errorf("host %q is not claimed: %w", name, ErrHostNotFound)
	}
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	if host := p.inventory.byProviderID(id); host != nil && host.Status.ClaimRef != nil {
		return host.DeepCopy(), nil
	}
	return nil, fmt.Errorf("finding the host with provider id %q: %w", id, ErrHostNotFound)
}

// Revision grows whenever a host became free or ceased to be, and with all else that Inventory.Revision does.
func (p *Pool) Revision() int64 { return p.inventory.Revision() }
