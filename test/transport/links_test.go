//go:build e2e

package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// silentNameServer takes questions and answers none.
func silentNameServer(t *testing.T) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "10.77.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
}

func TestALinkLocalAddressWithItsZoneAndAnotherPort(t *testing.T) {
	key := newKey(t, "-t", "ed25519")
	zoned := linkLocal + "%" + outerLink
	d := start(t, spec{namespace: gate, address: "::", port: 2501, authorized: map[string][]string{"kpssh": {key.public(t)}}})
	for _, address := range []string{zoned, "[" + zoned + "]"} {
		target := d.target(t, "kpssh", key)
		target.Address = address
		if user, from := logIn(t, target); user != "kpssh" || !strings.HasPrefix(from, "fe80::") {
			t.Errorf("%s: logged in as %q from %q", address, user, from)
		}
	}
	target := d.target(t, "kpssh", key)
	target.Address, target.Port = zoned, 2599
	if _, err := remote.Dial(t.Context(), target); remote.Reason(err) != remote.ReasonDial || !strings.Contains(err.Error(), "["+zoned+"]:2599") {
		t.Errorf("on another port: got %v", err)
	}
	target.Address = linkLocal + "%none"
	if _, err := remote.Dial(t.Context(), target); remote.Reason(err) != remote.ReasonDial {
		t.Errorf("with a zone that is none: got %v", err)
	}
}

// waiting is a command that goes on until the connection is gone, and said that it began.
func waiting(t *testing.T, conn *remote.Conn) *remote.Stream {
	t.Helper()
	stream, err := conn.Start(t.Context(), "echo begun; exec sleep 3600")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	if _, err := io.ReadFull(stream, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	return stream
}

// Field report R13 (golang/go#21941, kubernetes#66609 and others): a link that drops everything, as a firewall does that
// forgot the connection, is noticed by three keepalives. What ran is interrupted and not failed, and the host is reached
// again when the link is back.
func TestR13ACutLinkIsNoticedByKeepalives(t *testing.T) {
	key := newKey(t, "-t", "ed25519")
	authorized := map[string][]string{"ops": {key.public(t)}, "kpssh": {key.public(t)}}
	jump := start(t, spec{namespace: gate, address: gateAddress, port: 2511, authorized: authorized})
	d := start(t, spec{namespace: relay, address: relayAddress, port: 2512, authorized: authorized})
	const interval = 300 * time.Millisecond
	quick := func(target remote.Target) remote.Target {
		target.Keepalive, target.HandshakeTimeout = interval, 20*time.Second
		return target
	}
	for name, test := range map[string]struct {
		target remote.Target
		cut    []string // ip's arguments before "link set"
		link   string
		hop    int // that is lost: 0 is the host itself
	}{
		"before the host":                      {quick(jump.target(t, "kpssh", key)), nil, outerLink, 0},
		"before the host behind its jump host": {quick(d.behind(t, quick(jump.target(t, "ops", key)), "kpssh", key)), []string{"-n", gate}, "inner", 0},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t, remote.PoolOptions{})
			conn, release, err := pool.Get(t.Context(), test.target)
			if err != nil {
				t.Fatal(err)
			}
			stream := waiting(t, conn)
			link := func(state string) {
				do(t, append(append([]string{"ip"}, test.cut...), "link", "set", test.link, state)...)
			}
			link("down")
			defer link("up")
			began := time.Now()
			_, err = stream.Read(make([]byte, 1))
			took := time.Since(began)
			if remote.Reason(err) != remote.ReasonInterrupted || !strings.Contains(err.Error(), "keepalive") {
				t.Errorf("got %v", err)
			}
			if err := stream.Wait(); remote.Reason(err) != remote.ReasonInterrupted {
				t.Errorf("got %v", err)
			}
			// Two unanswered at least; the rest is for a machine that has other work.
			if took < interval || took > 20*interval {
				t.Errorf("noticed after %v with keepalives each %v", took, interval)
			}
			<-conn.Done()
			release()
			link("up")
			conn, release, err = pool.Get(t.Context(), test.target)
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			if out, err := ask(t.Context(), conn, "echo again"); err != nil || out != "again\n" {
				t.Errorf("got %q, %v", out, err)
			}
		})
	}
}

// A short cut is none: TCP makes good for it.
func TestALinkThatIsBackBeforeThreeKeepalivesInterruptsNothing(t *testing.T) {
	key := newKey(t, "-t", "ed25519")
	d := start(t, spec{namespace: gate, address: gateAddress, port: 2521, authorized: map[string][]string{"kpssh": {key.public(t)}}})
	target := d.target(t, "kpssh", key)
	target.Keepalive = 2 * time.Second
	conn, err := remote.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	do(t, "ip", "link", "set", outerLink, "down")
	do(t, "ip", "link", "set", outerLink, "up")
	if out, err := ask(t.Context(), conn, "echo still"); err != nil || out != "still\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

// children are the processes that an sshd made for its connections.
func (d *daemon) children(t *testing.T) []int {
	t.Helper()
	var pids []int
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		for _, field := range strings.Fields(read(t, path)) {
			var pid int
			if _, err := fmt.Sscan(field, &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Field report R12 (golang/go#15113, #21941, #26643, #19338, #5875; kubernetes#23835, #66609; teleport#1153): a host of which
// nothing runs any more but its kernel, which goes on to accept connections.
func TestR12AHostThatIsHalfDeadHoldsNothingUp(t *testing.T) {
	key := newKey(t, "-t", "ed25519")
	d := start(t, spec{namespace: gate, address: gateAddress, port: 2531, authorized: map[string][]string{"kpssh": {key.public(t)}}})
	target := d.target(t, "kpssh", key)
	target.Keepalive = 300 * time.Millisecond
	conn, err := remote.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stopped := append(d.children(t), d.cmd.Process.Pid)
	if len(stopped) != 2 {
		t.Fatalf("sshd has the processes %v, want one for the connection", stopped)
	}
	// The one that speaks for the user is a child of that.
	for _, pid := range strings.Fields(read(t, fmt.Sprintf("/proc/%d/task/%d/children", stopped[0], stopped[0]))) {
		var n int
		_, _ = fmt.Sscan(pid, &n)
		stopped = append(stopped, n)
	}
	for _, pid := range stopped {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}
	if _, err := conn.Start(t.Context(), "true"); remote.Reason(err) != remote.ReasonInterrupted {
		t.Errorf("on the open connection: got %v", err)
	}
	target.HandshakeTimeout = 500 * time.Millisecond
	began := time.Now()
	if _, err := remote.Dial(t.Context(), target); remote.Reason(err) != remote.ReasonTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("on a new connection: got %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a new connection took %v", took)
	}
	// Others are reached meanwhile.
	other := start(t, spec{namespace: gate, address: gateAddress, port: 2532, authorized: map[string][]string{"kpssh": {key.public(t)}}})
	logIn(t, other.target(t, "kpssh", key))
}
