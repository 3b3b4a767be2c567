//go:build e2e

package transport

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// Field report R15 (kubespray#10514, #10515, genestack#247, ansible#24594, sumaform#1881): 20 hosts behind one bastion, with
// MaxStartups 2:100:2 on all sshds, while others log in on the bastion as well.
func TestR15TwentyHostsBehindABastionWithMaxStartupsAreAllReached(t *testing.T) {
	const count = 20
	key := newKey(t, "-t", "ed25519")
	authorized := map[string][]string{"ops": {key.public(t)}, "kpssh": {key.public(t)}}
	strict := []string{"MaxStartups 2:100:2"}
	bastion := start(t, spec{namespace: gate, address: gateAddress, port: 2601, authorized: authorized, options: strict})
	// One sshd at many addresses, so that it meets the burst as well.
	d := start(t, spec{namespace: relay, address: "0.0.0.0", port: 2602, authorized: authorized, options: strict})
	for i := range count {
		do(t, "ip", "-n", relay, "address", "add", fmt.Sprintf("10.77.1.%d/24", 101+i), "dev", "outer")
	}
	via := bastion.target(t, "ops", key)

	// Who does not mind the limit is refused: without this the rest would show nothing.
	var refused atomic.Int64
	var naive sync.WaitGroup
	for range count {
		naive.Go(func() {
			conn, err := remote.Dial(t.Context(), via)
			switch {
			case err == nil:
				_ = conn.Close()
			case remote.Reason(err) == remote.ReasonThrottled && strings.Contains(err.Error(), "MaxStartups"):
				refused.Add(1)
			}
		})
	}
	naive.Wait()
	if refused.Load() == 0 {
		t.Fatal("the bastion refuses nobody")
	}

	pool := newPool(t, remote.PoolOptions{})
	var others, all sync.WaitGroup
	for range 3 {
		others.Go(func() {
			for range 5 {
				if conn, err := remote.Dial(t.Context(), via); err == nil {
					_ = conn.Close()
				}
			}
		})
	}
	for i := range count {
		all.Go(func() {
			target := d.behind(t, via, "kpssh", key)
			target.Address = fmt.Sprintf("10.77.1.%d", 101+i)
			conn, release, err := pool.Get(t.Context(), target)
			if err != nil {
				t.Errorf("host %d: %v", i, err)
				return
			}
			defer release()
			if out, err := ask(t.Context(), conn, "echo probed"); err != nil || out != "probed\n" {
				t.Errorf("host %d: got %q, %v", i, out, err)
			}
		})
	}
	all.Wait()
	others.Wait()
	if stats := pool.Stats(); stats.Throttled == 0 {
		t.Errorf("nothing counted as throttled: %+v", stats)
	}
}

// Field report R15: OpenSSH's PerSourcePenalties, at their defaults, keep out who fails too often. A pool never does, and
// when somebody else at its address did it says so and until when.
func TestR15PerSourcePenaltiesAreNeverEarnedAndAreNamed(t *testing.T) {
	good, bad := newKey(t, "-t", "ed25519"), newKey(t, "-t", "ed25519")
	authorized := map[string][]string{"kpssh": {good.public(t)}}

	t.Run("a pool with keys that are not taken", func(t *testing.T) {
		d := start(t, spec{suite: newSuite, namespace: gate, address: gateAddress, port: 2611, authorized: authorized})
		pool := newPool(t, remote.PoolOptions{})
		for i := range 12 { // as many hosts as have the wrong user
			target := d.target(t, fmt.Sprintf("nobody-%d", i), bad)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			_, _, err := pool.Get(ctx, target)
			cancel()
			if remote.Class(err) != remote.ClassAuthRejected && remote.Reason(err) != remote.ReasonThrottled {
				t.Errorf("got %v", err)
			}
		}
		if d.log.has("penalty") && d.log.has("dropping") || d.log.has("Not allowed at this time") || pool.Stats().Throttled > 0 {
			t.Errorf("the sshd keeps us out: %+v", pool.Stats())
		}
		logIn(t, d.target(t, "kpssh", good)) // past the pool: it is the sshd that is asked
	})
	t.Run("somebody else at our address", func(t *testing.T) {
		d := start(t, spec{suite: newSuite, namespace: gate, address: gateAddress, port: 2612, authorized: authorized})
		banned := false
		for range 10 {
			_, err := remote.Dial(t.Context(), d.target(t, "kpssh", bad))
			if banned = remote.Reason(err) == remote.ReasonThrottled; banned {
				break
			}
			if remote.Class(err) != remote.ClassAuthRejected {
				t.Fatalf("got %v", err)
			}
		}
		if !banned {
			t.Fatal("sshd keeps nobody out")
		}
		pool := newPool(t, remote.PoolOptions{})
		target := d.target(t, "kpssh", good)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, _, err := pool.Get(ctx, target)
		if remote.Reason(err) != remote.ReasonThrottled || !strings.Contains(err.Error(), "PerSourcePenalties") || !strings.Contains(err.Error(), "next attempt at ") {
			t.Errorf("got %v", err)
		}
		// With the time that a login may take, the end of the ban is waited for; one that is longer is named until it ends.
		conn, release, err := pool.Get(t.Context(), target)
		for err != nil && remote.Reason(err) == remote.ReasonThrottled && t.Context().Err() == nil {
			<-time.After(100 * time.Millisecond)
			conn, release, err = pool.Get(t.Context(), target)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if out, err := ask(t.Context(), conn, "echo in"); err != nil || out != "in\n" {
			t.Errorf("got %q, %v", out, err)
		}
	})
}
