package probe_test

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/probe"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// claiming has a NodeClaim claim the host between its reading and the recording of its probe.
type claiming struct {
	probe.Hosts
	env *controllertest.Env
}

func (c claiming) Live(ctx context.Context, name string) (*v1beta1.SSHHost, error) {
	host, err := c.Hosts.Live(ctx, name)
	if err != nil {
		return nil, err
	}
	_, err = c.env.NewPool().Claim(ctx, pool.Request{Ref: pool.Ref{Name: "pool-1", UID: "uid-pool-1"}})
	return host, err
}

// liar says that leave ended well and does not run it.
type liar struct{ probe.Phases }

func (liar) Leave(context.Context, *v1beta1.SSHHost, *v1beta1.SSHJoinProfile, map[string]string, types.UID) error {
	return nil
}
