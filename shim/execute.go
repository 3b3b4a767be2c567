package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

const (
	// termGrace is how long a script that is past its deadline may clean up.
	termGrace = 10 * time.Second
	// drainGrace is how long what a script left behind may still print, once the script ended.
	drainGrace = 2 * time.Second
	// killPatience bounds waiting for killed processes to be gone.
	killPatience = 5 * time.Second
	// reapInterval is how long orphans that have ended stay around.
	reapInterval = 5 * time.Second
)

// execution is how a script ended.
type execution struct {
	outcome  signing.Outcome
	exitCode int
	signal   string
	took     time.Duration
}

// executor runs scripts.
type executor struct {
	shell     string        // bash
	home      string        // HOME of scripts
	subreaper bool          // orphans of scripts fall to this process
	termGrace time.Duration // 0 is termGrace
}

// environment is all that a script sees: nothing is inherited.
func (e *executor) environment(variables ...map[string]string) []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + e.home,
		"LANG=C.UTF-8",
	}
	for _, m := range variables {
		for name, value := range m {
			env = append(env, name+"="+value)
		}
	}
	slices.Sort(env)
	return env
}

// run runs a sealed script to its end or its deadline and feeds sink with what it prints. On
// return nothing of it is left, whatever it put into the background.
func (e *executor) run(script *os.File, env []string, deadline time.Duration, sink func([]byte)) execution {
	// The kernel sends the death signal below when the thread that started the script ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := time.Now()
	out, err := e.start(script, env)
	if err != nil {
		sink(fmt.Appendf(nil, "kpssh-shim: %v\n", err))
		return execution{outcome: signing.OutcomeFailed, exitCode: 126, took: time.Since(begin)}
	}
	defer out.pipe.Close()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		drain(out.pipe, sink)
	}()
	exited := make(chan struct{})
	var timedOut bool
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		timedOut = e.enforce(out.tree, deadline, exited)
	}()
	status, err := out.wait()
	close(exited)
	<-waited
	select {
	case <-drained:
	case <-time.After(drainGrace):
	}
	out.tree.kill(killPatience)
	select {
	case <-drained:
	case <-time.After(drainGrace):
		// Somebody outside the run holds the pipe. Closing it ends the drain.
		_ = out.pipe.Close()
		<-drained
	}
	if err != nil {
		return execution{outcome: signing.OutcomeFailed, exitCode: 126, took: time.Since(begin)}
	}
	return verdict(status, timedOut, time.Since(begin))
}

type started struct {
	pipe *os.File
	tree tree
}

// wait waits on this thread for the script's own process.
func (s *started) wait() (status unix.WaitStatus, err error) {
	for {
		if _, err = unix.Wait4(s.tree.first, &status, 0, nil); err != unix.EINTR {
			return status, err
		}
	}
}

// start forks without package os, which with its first process forks another one to see whether the kernel has pidfds.
func (e *executor) start(script *os.File, env []string) (*started, error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("making pipe: %w", err)
	}
	defer func() { _ = unix.Close(pipe[1]) }()
	// What is read here has deadlines and no thread of its own.
	_ = unix.SetNonblock(pipe[0], true)
	read := os.NewFile(uintptr(pipe[0]), "output")
	null, err := os.Open(os.DevNull)
	if err != nil {
		_ = read.Close()
		return nil, fmt.Errorf("starting script: %w", err)
	}
	defer null.Close()
	// In the child the script is descriptor 3. -p keeps bash from reading BASH_ENV and functions
	// from the environment, should a parameter ever be allowed to look like one.
	pid, err := syscall.ForkExec(e.shell, []string{"bash", "--noprofile", "--norc", "-p", "/proc/self/fd/3"}, &syscall.ProcAttr{
		Env: env, Dir: "/", Files: []uintptr{null.Fd(), uintptr(pipe[1]), uintptr(pipe[1]), script.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		_ = read.Close()
		return nil, fmt.Errorf("starting script: %w", err)
	}
	return &started{pipe: read, tree: tree{first: pid, subreaper: e.subreaper}}, nil
}

// enforce ends the run at its deadline, by a monotonic clock: TERM to the group, then KILL to
// everything. It reports whether the deadline passed before the script ended.
func (e *executor) enforce(t tree, deadline time.Duration, exited <-chan struct{}) bool {
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	orphans := time.NewTicker(reapInterval)
	defer orphans.Stop()
	for due := false; !due; {
		select {
		case <-exited:
			return false
		case <-orphans.C:
			if t.subreaper {
				t.reap()
			}
		case <-timer.C:
			due = true
		}
	}
	_ = unix.Kill(-t.first, unix.SIGTERM)
	grace := e.termGrace
	if grace == 0 {
		grace = termGrace
	}
	timer.Reset(grace)
	select {
	case <-exited:
	case <-timer.C:
		t.kill(killPatience)
	}
	return true
}

// drain reads until the last writer is gone: a script must never wait for a reader.
func drain(r io.Reader, sink func([]byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			sink(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func verdict(status unix.WaitStatus, timedOut bool, took time.Duration) execution {
	x := execution{outcome: signing.OutcomeOK, exitCode: status.ExitStatus(), took: took}
	if status.Signaled() {
		x.signal, x.exitCode = unix.SignalName(status.Signal()), 128+int(status.Signal())
		if x.signal == "" {
			x.signal = fmt.Sprintf("SIG%d", int(status.Signal()))
		}
	}
	switch {
	case timedOut:
		x.outcome = signing.OutcomeTimeout
	case x.exitCode != 0:
		x.outcome = signing.OutcomeFailed
	}
	return x
}

var errNoShell = errors.New("no bash at /bin/bash or /usr/bin/bash")

// findShell looks where bash is on every distribution, never along a PATH.
func findShell() (string, error) {
	for _, path := range []string{"/bin/bash", "/usr/bin/bash"} {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", errNoShell
}
