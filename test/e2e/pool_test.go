//go:build e2e

package e2e

import (
	"context"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// pool is a [stage.Pool] whose errors fail the test.
type pool struct {
	*stage.Pool
	name    string
	profile *v1beta1.SSHJoinProfile
	class   *v1beta1.SSHNodeClass
}

// shipped reads the profile and the class of examples/ under another name.
func shipped(t *testing.T, name string) *pool {
	t.Helper()
	p, err := on.NewPool(name)
	must(t, err)
	return &pool{Pool: p, name: name, profile: p.Profile, class: p.Class}
}

func (p *pool) manifest(t *testing.T) string {
	t.Helper()
	manifest, err := p.Manifest()
	must(t, err)
	return manifest
}

// sign has the author allow the profile's scripts, as an operator does.
func (p *pool) sign(t *testing.T) {
	t.Helper()
	must(t, p.Sign(within(t)))
}

// apply makes the objects, and removes them when the test ends.
func (p *pool) apply(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := p.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	must(t, p.Apply(within(t)))
}

func (p *pool) scale(t *testing.T, replicas int) {
	t.Helper()
	must(t, p.Scale(within(t), replicas))
}

// giveUp takes the pod and its NodeClaim away.
func (p *pool) giveUp(t *testing.T) {
	t.Helper()
	must(t, p.GiveUp(within(t)))
}

// ready waits until the pool's class is Ready.
func (p *pool) ready(t *testing.T) {
	t.Helper()
	must(t, p.WaitReady(within(t)))
}

// notReady waits until the pool's class is not Ready for that reason, and returns the message.
func (p *pool) notReady(t *testing.T, reason string) (message string) {
	t.Helper()
	message, err := p.WaitNotReady(within(t), reason)
	must(t, err)
	return message
}

// running waits until the pool's pod runs, and returns its NodeClaim's and its host's name.
func (p *pool) running(t *testing.T) (claim, host string) {
	t.Helper()
	until(t, "the pod to run", func(ctx context.Context) (err error) {
		claim, host, err = p.Running(ctx)
		return err
	})
	return claim, host
}

// machine is the lab's host of that name.
func machine(t *testing.T, name string) *lab.Host {
	t.Helper()
	for _, h := range on.Hosts() {
		if h.Name == name {
			return h
		}
	}
	t.Fatalf("there is no host %q", name)
	return nil
}
