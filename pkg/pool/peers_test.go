package pool_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func machineID(id string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) { h.Status.Identity = &v1beta1.HostIdentity{MachineID: id} }
}

func TestNeitherOfTwoClonesIsClaimed(t *testing.T) {
	for name, tt := range map[string]struct {
		a, b func(*v1beta1.SSHHost)
		free bool
	}{
		"by their machine id":               {machineID("x"), machineID("x"), false},
		"two machines":                      {machineID("x"), machineID("y"), true},
		"two that have none":                {machineID(""), machineID(""), true},
		"one of which is in use under both": {machineID("x"), func(h *v1beta1.SSHHost) { machineID("x")(h); h.Status.State = v1beta1.HostUnhealthy }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newHost("a", tt.a), newHost("b", tt.b))
			_, err := w.pool.Claim(context.Background(), pool.Request{Ref: pool.Ref{Name: "nc", UID: "uid-nc"}})
			if tt.free != (err == nil) || err != nil && !errors.Is(err, pool.ErrNoHost) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestPeersAreForgottenWithTheirHost(t *testing.T) {
	w := newWorld(t, newHost("a", machineID("x")), newHost("b", machineID("X")))
	a := w.stored("a")
	if peers := w.pool.Peers(a, pool.PeerMachineID); !slices.Equal(peers, []string{"b"}) {
		t.Errorf("peers %q", peers)
	}
	if peers := w.pool.Peers(a, pool.PeerHostname); len(peers) != 0 {
		t.Errorf("peers %q by an empty hostname", peers)
	}
	w.inventory.OnDelete(w.stored("b"))
	if peers := w.pool.Peers(a, pool.PeerMachineID); len(peers) != 0 {
		t.Errorf("peers %q of a host that is gone", peers)
	}
	if _, err := w.pool.Claim(context.Background(), pool.Request{Ref: pool.Ref{Name: "nc", UID: "uid-nc"}}); err != nil {
		t.Error(err)
	}
}
