package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// sandbox starts programs that see a /var/lib and a /run of their own, so that the built shim, whose places are fixed,
// runs as on a host and leaves no trace on this machine. It is one thread in a mount namespace; programs are started
// from it and inherit it.
type sandbox struct {
	dir      string
	requests chan func()
}

// parent must be a real file system: the price of being durable counts.
const parent = "/var/tmp"

func newSandbox() (_ *sandbox, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("making a mount namespace for the shim takes root")
	}
	dir, err := os.MkdirTemp(parent, "kpssh-bench-*")
	if err != nil {
		return nil, err
	}
	s := &sandbox{dir: dir, requests: make(chan func())}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("looking at the file system of %q: %w", dir, err)
	}
	if st.Type == unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("%s is in memory, where syncing costs nothing", parent)
	}
	for _, path := range []string{s.lib(), s.runtime()} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
	}
	ready := make(chan error)
	go s.serve(ready)
	return s, <-ready
}

// lib is what programs see as /var/lib, runtime what they see as /run.
func (s *sandbox) lib() string     { return filepath.Join(s.dir, "lib") }
func (s *sandbox) runtime() string { return filepath.Join(s.dir, "run") }

func (s *sandbox) serve(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, ends with this goroutine
	ready <- s.isolate()
	for f := range s.requests {
		f()
	}
}

func (s *sandbox) isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts private: %w", err)
	}
	for from, to := range map[string]string{s.lib(): "/var/lib", s.runtime(): "/run"} {
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %q: %w", to, err)
		}
	}
	return nil
}

// start starts a program in the sandbox.
func (s *sandbox) start(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	s.requests <- func() { started <- cmd.Start() }
	return <-started
}

// run runs a program in the sandbox to its end.
func (s *sandbox) run(cmd *exec.Cmd) error {
	if err := s.start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

func (s *sandbox) close() error {
	close(s.requests)
	return os.RemoveAll(s.dir)
}
