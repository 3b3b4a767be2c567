package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	burstOrders = 100
	burstPairs  = 10
	wideHosts   = 64
	widePairs   = 5
	wideScript  = time.Second
)

// fleet is hosts in this process that speak the shim's protocol.
type fleet struct {
	world *dispatchtest.World
	hosts []*dispatchtest.Host
	fence int64
}

func newFleet(n int) (_ *fleet, err error) {
	f := &fleet{}
	stop := &stopper{}
	defer stop.recover(&err)
	if f.world, err = newWorld(joinScript, leaveScript); err != nil {
		return nil, err
	}
	for i := range n {
		f.hosts = append(f.hosts, f.world.NewHost(fmt.Sprintf("host-%d", i)))
	}
	return f, nil
}

func (f *fleet) close() {
	for _, host := range f.hosts {
		host.Server.Close()
	}
}

// free gives all hosts back and cuts their connections.
func (f *fleet) free() {
	for _, host := range f.hosts {
		host.SetClaim(signing.Claim{Fence: f.fence})
		host.Server.Cut()
	}
	f.fence++
}

// each does something with each host at once, at most so many at a time, and tells how often that failed.
func (f *fleet) each(most int, do func(*dispatchtest.Host) error) (took time.Duration, failed int64, first error) {
	room := make(chan struct{}, most)
	var all sync.WaitGroup
	var failures atomic.Int64
	var once sync.Once
	began := time.Now()
	for _, host := range f.hosts {
		all.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			if err := do(host); err != nil {
				failures.Add(1)
				once.Do(func() { first = err })
			}
		})
	}
	all.Wait()
	return time.Since(began), failures.Load(), first
}

// pooled orders over the connections of one new pool.
func (f *fleet) pooled(ctx context.Context, most int, via *remote.Target) (time.Duration, int64, error) {
	pool := remote.NewPool(remote.PoolOptions{})
	defer func() { _ = pool.Close() }()
	dispatcher := dispatch.New(dispatch.Options{Trust: f.world, Signer: f.world.Signer(), Pool: pool})
	return f.each(most, func(host *dispatchtest.Host) error {
		reach := host.Dispatch()
		reach.Target.Via = via
		_, err := dispatcher.Run(ctx, reach, joinRequest(f.fence))
		return err
	})
}

// naive orders over a connection that is made for it, to the jump host too, as a script around ssh -J does.
func (f *fleet) naive(ctx context.Context, via *remote.Target) (time.Duration, int64, error) {
	_, list, err := f.world.Documents()
	if err != nil {
		return 0, 0, err
	}
	digest, err := signing.PayloadDigest(list)
	if err != nil {
		return 0, 0, err
	}
	return f.each(len(f.hosts), func(host *dispatchtest.Host) error {
		reach := host.Dispatch()
		reach.Target.Via = via
		conn, err := remote.Dial(ctx, reach.Target)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		stream, err := conn.Start(ctx, "kpssh")
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		side := &shimSide{world: f.world, list: digest, hostID: reach.HostID, receipts: reach.ReceiptKey, script: joinScript}
		_, err = side.converse(stream, f.fence)
		return err
	})
}

// burst measures 100 orders at once to hosts behind one bastion, an sshd as it is without a configuration, with a pool
// and with a connection to the bastion for each. The bastion drops some of the latter, which makes them quick.
func (b *bench) burst(ctx context.Context) (_ []Result, err error) {
	f, err := newFleet(burstOrders)
	if err != nil {
		return nil, err
	}
	defer f.close()
	keys := f.hosts[0].Dispatch().Target.Keys
	bastion, err := newSSHD(ctx, b, keys[0].PublicKey(), "restrict,port-forwarding", func(string) error { return nil })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bastion.close()) }()
	via, err := bastion.target(keys...)
	if err != nil {
		return nil, err
	}
	var took, lost sides
	var dropped int64
	for i := range burstPairs {
		steps := []func() (time.Duration, int64, error){
			func() (time.Duration, int64, error) { return f.pooled(ctx, burstOrders, &via) },
			func() (time.Duration, int64, error) { return f.naive(ctx, &via) },
		}
		var times [2]time.Duration
		var failed [2]int64
		for j := range steps {
			if i%2 == 1 {
				j = 1 - j
			}
			f.free()
			var first error
			if times[j], failed[j], first = steps[j](); j == 0 && first != nil {
				b.say("  one of ours failed: %v", first)
			}
		}
		took.add(times[0], times[1])
		lost.ours, lost.other = append(lost.ours, 1+float64(failed[0])), append(lost.other, 1)
		dropped += failed[1]
		b.say("  burst %d of %d: %.2f s and %d lost with a pool, %.2f s and %d lost without", i+1, burstPairs, times[0].Seconds(), failed[0], times[1].Seconds(), failed[1])
	}
	return []Result{
		goal{figure: "P6", what: fmt.Sprintf("100 orders through one default sshd / the same without a pool, which loses %d %%", dropped*100/(burstOrders*burstPairs)),
			most: 1.5, required: true, quantile: 0.5, unit: "s"}.judge(&took),
		goal{figure: "P6 lost", what: "1 and what was lost of them / 1", most: 1, required: true, quantile: 1, unit: "orders"}.judge(&lost),
	}, nil
}

// wide measures the same script of a second on 64 hosts at once, and with as many at a time as other tools have.
func (b *bench) wide(ctx context.Context) ([]Result, error) {
	f, err := newFleet(wideHosts)
	if err != nil {
		return nil, err
	}
	defer f.close()
	for _, host := range f.hosts {
		host.Behave(func(b *dispatchtest.Behaviour) {
			b.Run = func(dispatchtest.Order) dispatchtest.Exit {
				time.Sleep(wideScript) // the script
				return dispatchtest.Exit{}
			}
		})
	}
	var ansible, pssh sides
	for i := range widePairs {
		var took [3]time.Duration
		for j, most := range []int{wideHosts, 5, 32} {
			f.free()
			var failed int64
			took[j], failed, err = f.pooled(ctx, most, nil)
			if failed > 0 {
				return nil, fmt.Errorf("%d of %d orders, %d at a time: %w", failed, wideHosts, most, err)
			}
		}
		ansible.add(took[0], took[1])
		pssh.add(took[0], took[2])
		b.progress("rounds of three widths", i+1, widePairs)
	}
	return []Result{
		goal{figure: "P7", what: "64 hosts, 1 s script / 5 at a time (Ansible)", most: 0.12, required: true, quantile: 0.5, unit: "s"}.judge(&ansible),
		goal{figure: "P7 pssh", what: "the same / 32 at a time (pssh)", most: 0.65, required: true, quantile: 0.5, unit: "s"}.judge(&pssh),
	}, nil
}
