package dispatch_test

import (
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func benchWorld(b *testing.B) *dispatchtest.World {
	w := dispatchtest.NewWorld(b)
	w.Allow(dispatchtest.Script(profileName, "1", signing.PhaseJoin, scripts[signing.PhaseJoin], parameters()...))
	return w
}

// benchOrders gives one order after the other, each with a higher fence, as for claims that come and go.
func benchOrders(b *testing.B, before func(*dispatchtest.Host)) {
	w := benchWorld(b)
	h := w.NewHost("bench")
	d := w.Dispatcher()
	fence := int64(0)
	for b.Loop() {
		fence++
		h.SetClaim(signing.Claim{Fence: fence - 1})
		before(h)
		r := request(signing.PhaseJoin, fmt.Sprintf("claim-%d", fence), fence)
		if _, err := d.Run(b.Context(), h.Dispatch(), r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOrderOnAnOpenConnection(b *testing.B) { benchOrders(b, func(*dispatchtest.Host) {}) }

func BenchmarkOrderOnANewConnection(b *testing.B) {
	benchOrders(b, func(h *dispatchtest.Host) { h.Server.Cut() })
}

func BenchmarkProbe(b *testing.B) {
	w := benchWorld(b)
	h := w.NewHost("bench")
	d := w.Dispatcher()
	for b.Loop() {
		if _, err := d.Probe(b.Context(), h.Dispatch()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIdleConnections tells what an idle connection of the pool holds in heap and stacks, beside
// a bare client of x/crypto; the server's end is in both.
func BenchmarkIdleConnections(b *testing.B) {
	const n = 200
	key, err := remotetest.GenerateKey()
	if err != nil {
		b.Fatal(err)
	}
	measure := func(open func(remote.Target, *remotetest.Server)) float64 {
		before := footprint()
		for range n {
			server := remotetest.New(b, remotetest.Config{})
			open(server.Target(key), server)
		}
		return float64(footprint()-before) / n
	}
	for b.Loop() {
		pool := remote.NewPool(remote.PoolOptions{})
		pooled := measure(func(t remote.Target, _ *remotetest.Server) {
			_, release, err := pool.Get(b.Context(), t)
			if err != nil {
				b.Fatal(err)
			}
			release()
		})
		bare := measure(func(t remote.Target, _ *remotetest.Server) {
			client, err := ssh.Dial("tcp", fmt.Sprintf("%s:%d", t.Address, t.Port), &ssh.ClientConfig{
				User: t.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(t.Keys...)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
			})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = client.Close() })
		})
		b.ReportMetric(pooled, "B/pooled")
		b.ReportMetric(bare, "B/bare")
		b.ReportMetric(pooled/bare, "ratio")
		_ = pool.Close()
	}
}

func footprint() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
