package remote_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
)

func newPool(t *testing.T, options remote.PoolOptions) *remote.Pool {
	t.Helper()
	pool := remote.NewPool(options)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func get(t *testing.T, pool *remote.Pool, target remote.Target) (*remote.Conn, func()) {
	t.Helper()
	conn, release, err := pool.Get(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	return conn, release
}

func TestPoolReusesTheConnectionOfATarget(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{Handler: echo})
	pool := newPool(t, remote.PoolOptions{})
	target := server.Target(remotetest.Key(t))
	first, release := get(t, pool, target)
	second, releaseSecond := get(t, pool, target)
	if first != second {
		t.Error("two users at once have two connections")
	}
	release()
	release() // giving back twice is harmless
	releaseSecond()
	third, release := get(t, pool, target)
	defer release()
	if third != first {
		t.Error("a later user has another connection")
	}
	if out, err := run(t.Context(), third, "echo", "x"); err != nil || out != "x" {
		t.Errorf("got %q, %v", out, err)
	}
	if stats := pool.Stats(); stats.Dials != 1 || stats.Reused != 2 || stats.Open != 1 || stats.Idle != 0 {
		t.Errorf("got %+v", stats)
	}
}

func TestPoolSharesOnlyBetweenEqualTargets(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	pool := newPool(t, remote.PoolOptions{})
	key := remotetest.Key(t)
	_, release := get(t, pool, server.Target(key))
	defer release()
	other := server.Target(key)
	other.User = "root"
	_, releaseOther := get(t, pool, other)
	defer releaseOther()
	_, releaseKey := get(t, pool, server.Target(remotetest.Key(t)))
	defer releaseKey()
	if server.Connections() != 3 {
		t.Errorf("%d connections, want 3", server.Connections())
	}
}

func TestPoolChecksTheHostKeyAtEveryReuse(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	pool := newPool(t, remote.PoolOptions{})
	target := server.Target(remotetest.Key(t))
	conn, release := get(t, pool, target)
	target.HostKey, _ = remote.Pin(ssh.FingerprintSHA256(remotetest.Key(t).PublicKey()))
	if _, _, err := pool.Get(t.Context(), target); remote.Class(err) != remote.ClassHostKeyMismatch {
		t.Errorf("got %v", err)
	}
	select {
	case <-conn.Done():
		t.Error("the first user's connection was cut")
	default:
	}
	release()
	<-conn.Done()
}

func TestPoolReplacesALostConnection(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{Handler: echo})
	pool := newPool(t, remote.PoolOptions{})
	target := server.Target(remotetest.Key(t))
	for range 3 {
		conn, release := get(t, pool, target)
		if _, err := run(t.Context(), conn, "echo", ""); err != nil {
			t.Fatal(err)
		}
		release()
		server.Cut()
		<-conn.Done()
	}
	if server.Connections() != 3 {
		t.Errorf("%d connections, want 3", server.Connections())
	}
	waitFor(t, "the pool to be empty", func() bool { return pool.Stats().Open == 0 })
}

func TestPoolDoesNotHandOutARetiredConnection(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	pool := newPool(t, remote.PoolOptions{})
	target := server.Target(remotetest.Key(t))
	first, release := get(t, pool, target)
	first.Retire()
	second, releaseSecond := get(t, pool, target)
	defer releaseSecond()
	if first == second {
		t.Fatal("handed out again")
	}
	release()
	<-first.Done()
	select {
	case <-second.Done():
		t.Error("the new connection was closed with the old one")
	default:
	}
}

func TestPoolClosesIdleConnections(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	pool := newPool(t, remote.PoolOptions{IdleTimeout: 20 * time.Millisecond})
	conn, release := get(t, pool, server.Target(remotetest.Key(t)))
	release()
	<-conn.Done()
	waitFor(t, "the slot to be free", func() bool { return pool.Stats().Open == 0 })
	server.Close()
	noGoroutineLeft(t)
}

func TestPoolHoldsItsCapAndMakesRoomForNewHosts(t *testing.T) {
	const hosts, limit = 12, 3
	pool := newPool(t, remote.PoolOptions{MaxConnections: limit})
	servers := make([]*remotetest.Server, hosts)
	for i := range servers {
		servers[i] = remotetest.New(t, remotetest.Config{Handler: echo})
	}
	key := remotetest.Key(t)
	var wg sync.WaitGroup
	var worst atomic.Int64
	for round := range 3 {
		for i, server := range servers {
			wg.Go(func() {
				conn, release, err := pool.Get(t.Context(), server.Target(key))
				if err != nil {
					t.Errorf("host %d: %v", i, err)
					return
				}
				defer release()
				if _, err := run(t.Context(), conn, "echo", fmt.Sprint(round, i)); err != nil {
					t.Errorf("host %d: %v", i, err)
				}
				if open := int64(pool.Stats().Open); open > worst.Load() {
					worst.Store(open)
				}
			})
		}
	}
	wg.Wait()
	if worst.Load() > limit {
		t.Errorf("%d connections at once, cap %d", worst.Load(), limit)
	}
}

func TestPoolCapsTheUsersOfAHost(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	pool := newPool(t, remote.PoolOptions{MaxPerHost: 2})
	target := server.Target(remotetest.Key(t))
	_, release := get(t, pool, target)
	_, releaseSecond := get(t, pool, target)
	defer releaseSecond()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := pool.Get(ctx, target); !errors.Is(err, context.DeadlineExceeded) || remote.Class(err) != remote.ClassUnreachable {
		t.Fatalf("got %v", err)
	}
	got := make(chan error)
	go func() {
		_, release, err := pool.Get(t.Context(), target)
		if err == nil {
			release()
		}
		got <- err
	}()
	release()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if server.Connections() != 1 {
		t.Errorf("%d connections, want 1", server.Connections())
	}
}

func TestOneHangingHostDoesNotHoldUpOthers(t *testing.T) {
	hanging := remotetest.New(t, remotetest.Config{})
	hanging.SetFault(remotetest.FaultSilent)
	fine := remotetest.New(t, remotetest.Config{})
	pool := newPool(t, remote.PoolOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	key := remotetest.Key(t)
	for range 8 {
		wg.Go(func() {
			if _, _, err := pool.Get(ctx, hanging.Target(key)); err == nil {
				t.Error("the hanging host answered")
			}
		})
	}
	waitFor(t, "the hanging dial", func() bool { return hanging.Connections() == 1 })
	_, release := get(t, pool, fine.Target(key))
	release()
	cancel()
	wg.Wait()
	if hanging.Connections() != 1 {
		t.Errorf("%d dials at once to one host", hanging.Connections())
	}
}

func TestPoolBacksOffAfterTwoRejections(t *testing.T) {
	// sshd bans a source that fails faster (PerSourcePenalties, OpenSSH 9.8).
	key := remotetest.Key(t)
	server := remotetest.New(t, remotetest.Config{AuthorizedKeys: []ssh.PublicKey{}})
	var now atomic.Pointer[time.Time]
	at := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	set := func(d time.Duration) { moment := at.Add(d); now.Store(&moment) }
	set(0)
	pool := newPool(t, remote.PoolOptions{Now: func() time.Time { return *now.Load() }})
	try := func(target remote.Target) *remote.AuthRejected {
		t.Helper()
		_, _, err := pool.Get(t.Context(), target)
		var rejected *remote.AuthRejected
		if !errors.As(err, &rejected) {
			t.Fatalf("got %v", err)
		}
		return rejected
	}
	for range 10 {
		_ = try(server.Target(key))
	}
	if server.Connections() != 2 {
		t.Fatalf("%d attempts at once, want 2", server.Connections())
	}
	if rejected := try(server.Target(key)); !rejected.RetryAt.Equal(at.Add(time.Minute)) {
		t.Errorf("next attempt at %v", rejected.RetryAt)
	}
	set(time.Minute)
	_ = try(server.Target(key))
	_ = try(server.Target(key))
	if server.Connections() != 3 {
		t.Fatalf("%d attempts after a minute, want 3", server.Connections())
	}
	_ = try(server.Target(remotetest.Key(t)))
	if server.Connections() != 4 {
		t.Fatal("another key was not tried")
	}
	server.SetAuthorizedKeys(key.PublicKey())
	set(3 * time.Minute)
	_, release := get(t, pool, server.Target(key))
	release()
}

func TestClosedPoolRefuses(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	pool := remote.NewPool(remote.PoolOptions{})
	target := server.Target(remotetest.Key(t))
	conn, release := get(t, pool, target)
	_ = pool.Close()
	<-conn.Done()
	release()
	if _, _, err := pool.Get(t.Context(), target); remote.Class(err) != remote.ClassUnreachable {
		t.Errorf("got %v", err)
	}
	server.Close()
	noGoroutineLeft(t)
}
