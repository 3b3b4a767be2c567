package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
)

// anywhere forwards to where it is asked to.
func anywhere(hostPort string) (string, error) { return hostPort, nil }

// site is a private network behind a jump host: addresses there mean something to it only.
type site struct {
	mu     sync.Mutex
	routes map[string]string
}

func newSite(routes map[string]*remotetest.Server) *site {
	s := &site{routes: map[string]string{}}
	for address, server := range routes {
		s.routes[address] = server.HostPort()
	}
	return s
}

func (s *site) forward(hostPort string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to, ok := s.routes[hostPort]; ok {
		return to, nil
	}
	return "", errors.New("no route")
}

func (s *site) swap(a, b string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes[a], s.routes[b] = s.routes[b], s.routes[a]
}

// behind is a target at an address behind a jump host.
func behind(jump remote.Target, address string, server *remotetest.Server, keys ...ssh.Signer) remote.Target {
	target := server.Target(keys...)
	host, port, _ := net.SplitHostPort(address)
	target.Address, target.Via = host, &jump
	_, _ = fmt.Sscan(port, &target.Port)
	return target
}

// only lets one key in.
func only(key ssh.Signer) []ssh.PublicKey { return []ssh.PublicKey{key.PublicKey()} }

// Field report R9 (k3sup#304, rke#103, terraform-provider-rke#117, dstack#2010, dstack#2472, tkestack#2000, pulumi#856): a
// chain of jump hosts, each with its own user, key, port and pin.
func TestR9AChainOfJumpHostsEachWithItsOwnLogin(t *testing.T) {
	outer, inner, login := remotetest.Key(t), remotetest.Key(t), remotetest.Key(t)
	host := remotetest.New(t, remotetest.Config{Handler: echo, AuthorizedKeys: only(login)})
	second := remotetest.New(t, remotetest.Config{AuthorizedKeys: only(inner), Forward: newSite(map[string]*remotetest.Server{"10.0.0.7:22": host}).forward})
	first := remotetest.New(t, remotetest.Config{AuthorizedKeys: only(outer), Forward: newSite(map[string]*remotetest.Server{"gate.example:2222": second}).forward})
	gate := first.Target(outer)
	gate.User = "ops"
	next := behind(gate, "gate.example:2222", second, inner)
	next.User = "relay"
	target := behind(next, "10.0.0.7:22", host, login)

	pool := newPool(t, remote.PoolOptions{})
	for range 2 {
		conn, release := get(t, pool, target)
		if out, err := run(t.Context(), conn, "echo", "through"); err != nil || out != "through" {
			t.Errorf("got %q, %v", out, err)
		}
		if conn.HostKeyFingerprint() != host.Fingerprint() {
			t.Error("the host key is a jump host's")
		}
		release()
	}
	if first.Connections() != 1 || second.Connections() != 1 || host.Connections() != 1 {
		t.Errorf("%d, %d and %d connections, want one each", first.Connections(), second.Connections(), host.Connections())
	}
	conn, err := remote.Dial(t.Context(), target) // without a pool
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run(t.Context(), conn, "echo", "x"); err != nil || out != "x" {
		t.Errorf("got %q, %v", out, err)
	}
	_ = conn.Close()
	waitFor(t, "the jump hosts' connections to end with it", func() bool { return first.Open() == 1 && second.Open() == 1 })
}

// Field report R9: the failure names the hop.
func TestR9AFailureNamesTheHop(t *testing.T) {
	type parts struct{ first, second, host *remotetest.Server }
	for name, test := range map[string]struct {
		spoil  func(*testing.T, *parts, *remote.Target)
		hop    int // 0: the host itself
		class  remote.ErrorClass
		reason string
		says   string
	}{
		"the first jump host is down": {
			spoil: func(_ *testing.T, p *parts, _ *remote.Target) { p.first.Close() },
			hop:   1, class: remote.ClassUnreachable, reason: remote.ReasonDial, says: "jump host 1 (kpssh@"},
		"the first jump host takes no key": {
			spoil: func(_ *testing.T, p *parts, _ *remote.Target) { p.first.SetFault(remotetest.FaultRejectKeys) },
			hop:   1, class: remote.ClassAuthRejected, reason: remote.ReasonAuthRejected, says: "jump host 1 (kpssh@"},
		"the second jump host has another host key": {
			spoil: func(t *testing.T, p *parts, _ *remote.Target) { p.second.SetHostKeys(remotetest.Key(t)) },
			hop:   2, class: remote.ClassHostKeyMismatch, reason: remote.ReasonHostKeyMismatch, says: "jump host 2 (kpssh@10.0.0.1:22)"},
		"the second jump host is down": {
			spoil: func(_ *testing.T, p *parts, _ *remote.Target) { p.second.Close() },
			hop:   2, class: remote.ClassUnreachable, reason: remote.ReasonDial, says: "jump host 1 (127.0.0.1:"},
		// gopher PR#90: a key with "restrict" and no "port-forwarding" logs in and forwards nothing.
		"the first jump host refuses forwarding": {
			spoil: func(_ *testing.T, p *parts, _ *remote.Target) { p.first.SetFault(remotetest.FaultRefuseForwarding) },
			hop:   1, class: remote.ClassUnreachable, reason: remote.ReasonForwarding, says: "jump refuses forwarding"},
		"the second jump host refuses forwarding": {
			spoil: func(_ *testing.T, p *parts, _ *remote.Target) { p.second.SetFault(remotetest.FaultRefuseForwarding) },
			hop:   2, class: remote.ClassUnreachable, reason: remote.ReasonForwarding, says: "jump refuses forwarding to 10.0.0.2:22"},
		"the host is down": {
			spoil: func(_ *testing.T, p *parts, _ *remote.Target) { p.host.Close() },
			class: remote.ClassUnreachable, reason: remote.ReasonDial, says: "cannot connect there: Connection refused"},
		"the host has another host key": {
			spoil: func(t *testing.T, p *parts, _ *remote.Target) { p.host.SetHostKeys(remotetest.Key(t)) },
			class: remote.ClassHostKeyMismatch, reason: remote.ReasonHostKeyMismatch, says: "10.0.0.2:22"},
		"the host takes no key": {
			spoil: func(_ *testing.T, p *parts, _ *remote.Target) { p.host.SetFault(remotetest.FaultRejectKeys) },
			class: remote.ClassAuthRejected, reason: remote.ReasonAuthRejected, says: "10.0.0.2:22"},
		"the first jump host says nothing": {
			spoil: func(_ *testing.T, p *parts, target *remote.Target) {
				p.first.SetFault(remotetest.FaultSilent)
				target.Via.Via.HandshakeTimeout = 200 * time.Millisecond
			},
			hop: 1, class: remote.ClassUnreachable, reason: remote.ReasonTimeout, says: "jump host 1 (kpssh@"},
		"the second jump host does not answer a request to connect": {
			spoil: func(_ *testing.T, p *parts, target *remote.Target) {
				p.second.SetFault(remotetest.FaultStallForwarding)
				target.HandshakeTimeout = 200 * time.Millisecond
			},
			class: remote.ClassUnreachable, reason: remote.ReasonTimeout, says: "10.0.0.2:22"},
		"the host is silent behind its jump hosts": {
			spoil: func(_ *testing.T, p *parts, target *remote.Target) {
				p.host.SetFault(remotetest.FaultSilent)
				target.HandshakeTimeout = 200 * time.Millisecond
			},
			class: remote.ClassUnreachable, reason: remote.ReasonTimeout, says: "10.0.0.2:22"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &parts{host: remotetest.New(t, remotetest.Config{})}
			p.second = remotetest.New(t, remotetest.Config{Forward: newSite(map[string]*remotetest.Server{"10.0.0.2:22": p.host}).forward})
			p.first = remotetest.New(t, remotetest.Config{Forward: newSite(map[string]*remotetest.Server{"10.0.0.1:22": p.second}).forward})
			key := remotetest.Key(t)
			target := behind(behind(p.first.Target(key), "10.0.0.1:22", p.second, key), "10.0.0.2:22", p.host, key)
			test.spoil(t, p, &target)
			pool := remote.NewPool(remote.PoolOptions{})
			for way, dial := range map[string]func() error{
				"with a pool":    func() error { _, _, err := pool.Get(t.Context(), target); return err },
				"without a pool": func() error { _, err := remote.Dial(t.Context(), target); return err },
			} {
				err := dial()
				var jump *remote.JumpError
				hop := 0
				if errors.As(err, &jump) {
					hop = jump.Hop
				}
				if hop != test.hop || remote.Class(err) != test.class || remote.Reason(err) != test.reason || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%s: got %v: hop %d, class %s, reason %q", way, err, hop, remote.Class(err), remote.Reason(err))
				}
			}
			_ = pool.Close()
			p.first.Close()
			p.second.Close()
			p.host.Close()
			noGoroutineLeft(t)
		})
	}
}

// Field report R4 (k0sctl#717): pins belong to a host and a hop, not to the address of a tunnel.
func TestR4TwoHostsBehindOneJumpHostWithSwappedAddressesAreToldApart(t *testing.T) {
	key := remotetest.Key(t)
	a, b := remotetest.New(t, remotetest.Config{}), remotetest.New(t, remotetest.Config{})
	network := newSite(map[string]*remotetest.Server{"10.0.0.1:22": a, "10.0.0.2:22": b})
	jump := remotetest.New(t, remotetest.Config{Forward: network.forward})
	targetA, targetB := behind(jump.Target(key), "10.0.0.1:22", a, key), behind(jump.Target(key), "10.0.0.2:22", b, key)
	pool := newPool(t, remote.PoolOptions{IdleTimeout: time.Millisecond})
	connA, release := get(t, pool, targetA)
	release()
	connB, release := get(t, pool, targetB)
	release()
	<-connA.Done()
	<-connB.Done()
	network.swap("10.0.0.1:22", "10.0.0.2:22")
	for name, target := range map[string]remote.Target{"a": targetA, "b": targetB} {
		if _, _, err := pool.Get(t.Context(), target); remote.Class(err) != remote.ClassHostKeyMismatch {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if jump.Connections() > 3 {
		t.Errorf("%d connections to the jump host", jump.Connections())
	}
}

func TestOneAddressBehindTwoJumpHostsIsTwoHosts(t *testing.T) {
	key := remotetest.Key(t)
	pool := newPool(t, remote.PoolOptions{})
	for range 2 {
		host := remotetest.New(t, remotetest.Config{})
		jump := remotetest.New(t, remotetest.Config{Forward: newSite(map[string]*remotetest.Server{"192.168.0.2:22": host}).forward})
		conn, release := get(t, pool, behind(jump.Target(key), "192.168.0.2:22", host, key))
		defer release()
		if conn.HostKeyFingerprint() != host.Fingerprint() {
			t.Error("the connection leads to the other host")
		}
	}
}

func TestAWrongPinOfAJumpHostCutsNobodyElseOff(t *testing.T) {
	key := remotetest.Key(t)
	host := remotetest.New(t, remotetest.Config{})
	jump := remotetest.New(t, remotetest.Config{Forward: anywhere})
	pool := newPool(t, remote.PoolOptions{})
	good := behind(jump.Target(key), host.HostPort(), host, key)
	conn, release := get(t, pool, good)
	defer release()
	bad := good
	via := jump.Target(key)
	via.HostKey, _ = remote.Pin(ssh.FingerprintSHA256(remotetest.Key(t).PublicKey()))
	bad.Via = &via
	if _, _, err := pool.Get(t.Context(), bad); remote.Class(err) != remote.ClassHostKeyMismatch {
		t.Errorf("got %v", err)
	}
	again, releaseAgain := get(t, pool, good)
	defer releaseAgain()
	if again != conn {
		t.Error("the good host's connection was replaced")
	}
}

func TestAJumpHostIsNeverPinnedByFirstUse(t *testing.T) {
	key := remotetest.Key(t)
	jump := remotetest.New(t, remotetest.Config{Forward: anywhere})
	host := remotetest.New(t, remotetest.Config{})
	via := jump.Target(key)
	via.HostKey = remote.FirstUse(func(string) error { return nil })
	if _, err := remote.Dial(t.Context(), behind(via, host.HostPort(), host, key)); err == nil || remote.Class(err) != remote.ClassNone {
		t.Errorf("got %v", err)
	}
	if jump.Connections() != 0 {
		t.Error("it was dialled")
	}
}

func TestALostJumpHostInterruptsWhatRunsThroughItAndIsDialledAgain(t *testing.T) {
	key := remotetest.Key(t)
	host := remotetest.New(t, remotetest.Config{Handler: echo})
	jump := remotetest.New(t, remotetest.Config{Forward: anywhere})
	pool := newPool(t, remote.PoolOptions{})
	target := behind(jump.Target(key), host.HostPort(), host, key)
	conn, release := get(t, pool, target)
	stream, err := conn.Start(t.Context(), "echo")
	if err != nil {
		t.Fatal(err)
	}
	jump.Cut()
	if err := stream.Wait(); remote.Reason(err) != remote.ReasonInterrupted {
		t.Errorf("got %v", err)
	}
	release()
	conn, release = get(t, pool, target)
	defer release()
	if out, err := run(t.Context(), conn, "echo", "again"); err != nil || out != "again" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestASilentJumpHostIsGivenUpByItsOwnKeepalives(t *testing.T) {
	key := remotetest.Key(t)
	host := remotetest.New(t, remotetest.Config{Handler: echo})
	jump := remotetest.New(t, remotetest.Config{Forward: anywhere})
	via := jump.Target(key)
	via.Keepalive = 50 * time.Millisecond
	jump.SetFault(remotetest.FaultDeaf)
	target := behind(via, host.HostPort(), host, key)
	target.HandshakeTimeout = 30 * time.Second
	pool := newPool(t, remote.PoolOptions{})
	_, _, err := pool.Get(t.Context(), target)
	var named *remote.JumpError
	if !errors.As(err, &named) || remote.Reason(err) != remote.ReasonInterrupted {
		t.Errorf("got %v", err)
	}
}

func TestTheCapOfAJumpHostHoldsAndIdleConnectionsMakeRoom(t *testing.T) {
	key := remotetest.Key(t)
	jump := remotetest.New(t, remotetest.Config{Forward: anywhere})
	pool := newPool(t, remote.PoolOptions{MaxPerJump: 2})
	var targets []remote.Target
	for range 4 {
		host := remotetest.New(t, remotetest.Config{})
		targets = append(targets, behind(jump.Target(key), host.HostPort(), host, key))
	}
	_, releaseFirst := get(t, pool, targets[0])
	_, release := get(t, pool, targets[1])
	release() // idle from here on
	_, releaseThird := get(t, pool, targets[2])
	if stats := pool.Stats(); stats.Evicted != 1 {
		t.Errorf("got %+v", stats)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := pool.Get(ctx, targets[3]); remote.Reason(err) != remote.ReasonTimeout {
		t.Errorf("got %v", err)
	}
	releaseFirst()
	_, releaseFourth := get(t, pool, targets[3])
	releaseFourth()
	releaseThird()
	if jump.Connections() != 1 {
		t.Errorf("%d connections to the jump host", jump.Connections())
	}
}

func TestADeadHostDoesNotEndItsJumpHostsConnection(t *testing.T) {
	key := remotetest.Key(t)
	dead, alive := remotetest.New(t, remotetest.Config{}), remotetest.New(t, remotetest.Config{Handler: echo})
	jump := remotetest.New(t, remotetest.Config{Forward: anywhere})
	pool := newPool(t, remote.PoolOptions{})
	conn, release := get(t, pool, behind(jump.Target(key), alive.HostPort(), alive, key))
	defer release()
	dead.SetFault(remotetest.FaultSilent)
	target := behind(jump.Target(key), dead.HostPort(), dead, key)
	target.HandshakeTimeout = 50 * time.Millisecond
	for range 3 {
		if _, _, err := pool.Get(t.Context(), target); remote.Reason(err) != remote.ReasonTimeout {
			t.Errorf("got %v", err)
		}
	}
	if out, err := run(t.Context(), conn, "echo", "x"); err != nil || out != "x" {
		t.Errorf("got %q, %v", out, err)
	}
	if jump.Connections() != 1 {
		t.Errorf("%d connections to the jump host", jump.Connections())
	}
}

// Field report R15 (kubespray#10514, #10515, genestack#247, ansible#24594, sumaform#1881): a burst meets MaxStartups, above all
// on the bastion. test/transport has the same with OpenSSH.
func TestR15TwentyHostsBehindABastionWithMaxStartupsAreAllReached(t *testing.T) {
	key := remotetest.Key(t)
	// All hosts are one sshd, so that it meets the burst as well.
	host := remotetest.New(t, remotetest.Config{Handler: echo, MaxStartups: 2, LoginDelay: 20 * time.Millisecond})
	jump := remotetest.New(t, remotetest.Config{Forward: func(string) (string, error) { return host.HostPort(), nil }, MaxStartups: 2})
	pool := newPool(t, remote.PoolOptions{MaxPerAddress: 8})
	// Somebody else logs in on the bastion at the same time.
	var others sync.WaitGroup
	for range 4 {
		other := jump.Target(key)
		other.User = "other"
		others.Go(func() {
			if conn, err := remote.Dial(t.Context(), other); err == nil {
				_ = conn.Close()
			}
		})
	}
	var hosts sync.WaitGroup
	for i := range 20 {
		hosts.Go(func() {
			target := behind(jump.Target(key), "10.0.0.9:22", host, key)
			target.User = fmt.Sprintf("user-%d", i)
			conn, release, err := pool.Get(t.Context(), target)
			if err != nil {
				t.Errorf("host %d: %v", i, err)
				return
			}
			defer release()
			if out, err := run(t.Context(), conn, "echo", "x"); err != nil || out != "x" {
				t.Errorf("host %d: got %q, %v", i, out, err)
			}
		})
	}
	hosts.Wait()
	others.Wait()
	if host.Refused() == 0 || pool.Stats().Throttled == 0 {
		t.Errorf("nothing was refused (%d), nothing counted: %+v", host.Refused(), pool.Stats())
	}
}
