package membership

import (
	"context"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// A preparation is a membership that ends before join: install, then leave, under a claim of the host itself, whose id
// is the SSHHost's uid. So the host's own rules of claim and fence hold for it as for any other, every controller knows
// such a claim when it meets one, and an install that one process began is collected by the next and not run again.

// Prepare runs install of the class's profile on a host that no NodeClaim has, under a fence that was raised for it.
// The subject has no NodeClaim: install is told the host's name for a node name, no labels, and no taints but
// karpenter's own. An error is a *Failure, or the API server's.
func (p *Phases) Prepare(ctx context.Context, s Subject, fence int64) error {
	s.NodeClaim = nil
	params, secrets, err := p.Environment(ctx, s, signing.PhaseInstall, "")
	if err != nil {
		return failure(s.Host, signing.PhaseInstall, nil, err)
	}
	return p.run(ctx, s.Host, s.Profile, s.Class.Spec.Vars, dispatch.Request{
		Phase: signing.PhaseInstall, Claim: p.preparation(s.Host), Fence: fence, Parameters: params, Secrets: secrets,
	})
}

// EndPreparation leaves the host that Prepare was run on, under the same fence: whoever claimed it meanwhile has a
// higher one, and still finds it free. An error is a *Failure, or the API server's.
func (p *Phases) EndPreparation(ctx context.Context, s Subject, fence int64) error {
	host := s.Host.DeepCopy()
	host.Status.Fence = fence
	return p.Leave(ctx, host, s.Profile, s.Class.Spec.Vars, s.Host.UID)
}

// Prepares says whether what a host says it holds is a preparation of it.
func (p *Phases) Prepares(host *v1beta1.SSHHost, held signing.Claim) bool {
	return held.UID != "" && held.UID == p.preparation(host)
}

func (p *Phases) preparation(host *v1beta1.SSHHost) string { return p.opts.Cluster.Claim(host.UID) }
