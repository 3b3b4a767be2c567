//go:build e2e

package threats

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// box is a place with a /var/lib, a /run and an /etc of its own, so that the built shim, whose places are fixed, runs as
// on a host and leaves no trace on this machine. It is a thread in a mount namespace; what is started from it inherits
// that.
type box struct {
	dir  string
	work chan func()
}

// newBox makes a box that is gone with the test.
func newBox(t testing.TB) *box {
	t.Helper()
	b := &box{dir: tempDir(t), work: make(chan func())}
	for _, name := range []string{"lib", "run/kpssh", "etc/kpssh"} {
		if err := os.MkdirAll(filepath.Join(b.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.write(t, "etc/passwd", "root:x:0:0:root:/root:/bin/bash\nkpssh:x:967:967::/var/lib/kpssh-home:/usr/libexec/kpssh/kpssh-shim\n")
	b.write(t, "etc/group", "root:x:0:\nkpssh:x:967:\n")
	ready := make(chan error)
	go thread(b.work, func() { ready <- b.isolate() })
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(b.work) })
	return b
}

// tempDir is a directory of root's alone up to the top, in memory: these tests write durably some thousand times.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kpssh-threats-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// thread does work on a thread of its own until there is no more. The thread, and with it what was done to its
// namespaces, ends with the goroutine, which never unlocks it.
func thread(work <-chan func(), first func()) {
	runtime.LockOSThread()
	first()
	for f := range work {
		f()
	}
}

func (b *box) isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts private: %w", err)
	}
	for from, to := range map[string]string{"lib": "/var/lib", "run": "/run", "etc": "/etc"} {
		if err := unix.Mount(filepath.Join(b.dir, from), to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %q: %w", to, err)
		}
	}
	return nil
}

// inside calls f where the box's files are at their places.
func (b *box) inside(f func() error) error {
	done := make(chan error, 1)
	b.work <- func() { done <- f() }
	return <-done
}

// apart calls f on another thread within the box, whose children are nobody else's: what traces processes needs that.
func (b *box) apart(f func() error) error {
	var ns *os.File
	err := b.inside(func() (err error) {
		ns, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	work := make(chan func())
	close(work)
	go thread(work, func() {
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)
		}
		if err == nil {
			err = f()
		}
		done <- err
	})
	return <-done
}

// path is where this process finds a file of the box: path("lib/kpssh") is /var/lib/kpssh within it.
func (b *box) path(name string) string { return filepath.Join(b.dir, name) }

func (b *box) write(t testing.TB, name, content string) {
	t.Helper()
	if err := os.WriteFile(b.path(name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (b *box) read(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(b.path(name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}
