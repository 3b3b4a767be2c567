//go:build faults

package faults

import (
	"context"
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// moment is a part of a membership in which a fault comes: how a trial gets there, and which host is in it.
type moment struct {
	name string
	// during is what the host's scripts have written last when the moment has come; without it the pod runs.
	during string
}

var (
	installing = moment{"while install runs", "install-began"}
	joining    = moment{"while join runs", "join-began"}
	inUse      = moment{"while it is in use", ""}
	leaving    = moment{"while leave runs", "leave-began"}
)

var errNotYet = errors.New("not yet")

// reach brings a trial to a moment and returns the host that is in it.
func (tr *trial) reach(m moment) (host string) {
	tr.t.Helper()
	tr.up()
	if m == inUse || m == leaving {
		host = tr.running()
		if m == inUse {
			return host
		}
		tr.down()
	}
	must(tr.t, on.UntilFast(within(tr.t), m.name, func(ctx context.Context) error {
		hosts, err := on.SSHHosts(ctx)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			if h.Status.ClaimRef == nil {
				continue
			}
			host = h.Name
			wrote, err := on.Witnessed(ctx, machine(tr.t, h.Name))
			if err == nil && strings.HasSuffix(wrote, m.during+"\n") {
				return nil
			}
		}
		return errNotYet
	}))
	return host
}

// finish sees a trial through to its end after the fault is over: the pod runs, wherever, and the pool is idle again.
func (tr *trial) finish(m moment) {
	tr.t.Helper()
	if m != leaving {
		tr.running()
		tr.down()
	}
	tr.check()
}

// each runs one trial in each of the moments.
func each(t *testing.T, name string, moments []moment, trial func(t *testing.T, tr *trial, m moment)) {
	t.Helper()
	p := counted(t, name)
	all := newRounds(t)
	for _, m := range moments {
		all.run(m.name, func(t *testing.T) {
			tr := try(t, p)
			tr.cutShort = true
			trial(t, tr, m)
		})
	}
}

// hostNamed is a host as it stands in the API, nil while that is not known.
func hostNamed(ctx context.Context, name string) *v1beta1.SSHHost {
	host := &v1beta1.SSHHost{}
	if on.Client.Get(ctx, client.ObjectKey{Namespace: stage.PoolNamespace, Name: name}, host) != nil {
		return nil
	}
	return host
}
