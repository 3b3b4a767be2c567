// Package netns works with named network namespaces, as "ip netns" keeps them, without leaving this process's own.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Path is where the namespace called name is mounted.
func Path(name string) string { return filepath.Join("/run/netns", name) }

// Enter is the start of a command line that runs a program inside. Unlike "ip netns exec" it leaves /sys as it is:
// that one mounts it anew and so hides the control groups.
func Enter(name string) []string { return []string{"nsenter", "--net=" + Path(name), "--"} }

// Dial connects from inside the namespace called name. addr must hold an IP literal: resolving a name would happen on
// threads that are outside.
func Dial(ctx context.Context, name, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("dialling: %w", err)
	}
	if net.ParseIP(host) == nil {
		return nil, fmt.Errorf("dialling %q in namespace %q: not an IP literal", addr, name)
	}
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result, 1)
	// A goroutine of its own, so that a thread that cannot come back home dies with it and is never used again.
	go func() {
		var r result
		if err := inside(name, func() { r.conn, r.err = (&net.Dialer{}).DialContext(ctx, network, addr) }); err != nil {
			r.err = errors.Join(r.err, err)
			if r.conn != nil {
				r.conn, r.err = nil, errors.Join(r.err, r.conn.Close())
			}
		}
		results <- r
	}()
	r := <-results
	return r.conn, r.err
}

// inside runs fn on a thread that is in the namespace. Sockets stay in the namespace in which they were made.
func inside(name string, fn func()) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("opening own network namespace: %w", err)
	}
	defer func() { _ = home.Close() }()
	target, err := os.Open(Path(name))
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("opening network namespace: %w", err)
	}
	defer func() { _ = target.Close() }()
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering network namespace %q: %w", name, err)
	}
	fn()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("leaving network namespace %q: %w", name, err) // still locked: the thread ends with its goroutine
	}
	runtime.UnlockOSThread()
	return nil
}

// Processes are the ids of the processes that are in the namespace called name. A namespace that is gone has none.
func Processes(name string) ([]int, error) {
	var want unix.Stat_t
	if err := unix.Stat(Path(name), &want); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		return nil, fmt.Errorf("looking at network namespace %q: %w", name, err)
	}
	var self unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &self); err != nil {
		return nil, fmt.Errorf("looking at own network namespace: %w", err)
	}
	if self.Dev == want.Dev && self.Ino == want.Ino {
		return nil, fmt.Errorf("looking at network namespace %q: it is our own", name)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var have unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &have) != nil {
			continue // ended meanwhile
		}
		if have.Dev == want.Dev && have.Ino == want.Ino {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Delete removes the namespace called name; one that is gone is no error.
func Delete(name string) error {
	path := Path(name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmounting network namespace %q: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("removing network namespace %q: %w", name, err)
	}
	return nil
}
