//go:build e2e

package pool_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/test/bench/bigpool"
)

// newReal is a real API server with a number of free hosts. How long claims take there is what the bench measures, with the
// same code: Q1, Q3, Q4.
func newReal(t *testing.T, hosts int) (*bigpool.World, *bigpool.Pool) {
	t.Helper()
	world, err := bigpool.Start(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.Close(); err != nil {
			t.Error(err)
		}
	})
	p, err := world.NewPool(t.Context(), namespace, hosts)
	if err != nil {
		t.Fatal(err)
	}
	return world, p
}

// realController is a pool as the program has it.
func realController(t *testing.T, hosts *bigpool.Pool) *bigpool.Controller {
	t.Helper()
	c, err := hosts.NewController(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() })
	return c
}

func TestManyClaimsOnARealAPIServer(t *testing.T) {
	_, hosts := newReal(t, 1000)
	took, wrong, err := hosts.Crowd(t.Context(), 200, realController(t, hosts), realController(t, hosts))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range wrong {
		t.Error(line)
	}
	t.Logf("200 claims at once by two controllers took %s", took)
}

// A claim costs one write, however many hosts there are.
func TestAClaimCostsTheSameInALargePool(t *testing.T) {
	_, hosts := newReal(t, 2000)
	c := realController(t, hosts)
	const n = 60
	var claims, updates []time.Duration
	for range n {
		claim, err := c.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		update, err := hosts.Update(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		claims, updates = append(claims, claim), append(updates, update)
	}
	slices.Sort(claims)
	slices.Sort(updates)
	claim, update := claims[n/2], updates[n/2]
	t.Logf("medians: a claim among 2000 hosts %s, a status update %s", claim, update)
	// Generous: a look through all hosts at the API server takes a hundred times as long as an update.
	if claim > 5*update {
		t.Errorf("a claim among 2000 hosts takes %s, a status update %s", claim, update)
	}
}

// The API server keeps apart a host and another one that was made under its name.
func TestAWriteForADeletedHostDoesNotReachItsNamesake(t *testing.T) {
	world, hosts := newReal(t, 1)
	p := realController(t, hosts).Pool
	host, err := p.Claim(t.Context(), pool.Request{Ref: claimA})
	if err != nil {
		t.Fatal(err)
	}
	if err := world.Live.Delete(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	if err := hosts.Make(t.Context(), host.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := p.SetInUse(t.Context(), host, claimA); !errors.Is(err, pool.ErrClaimLost) {
		t.Errorf("got %v", err)
	}
	again, err := p.Claim(t.Context(), pool.Request{Ref: claimA})
	if err != nil || again.UID == host.UID {
		t.Errorf("claimed %v, %v", again, err)
	}
}
