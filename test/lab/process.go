package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/netns"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/state"
)

// stopGrace is how long a process may take to end by itself once it is asked to.
const stopGrace = 15 * time.Second

// spawner starts processes from one thread that lives as long as it does. The kernel kills them when that thread
// ends, which is at the latest when this process dies, however it dies.
type spawner struct{ requests chan func() }

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for f := range s.requests {
			f()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	// A group of its own keeps a terminal's Ctrl-C from ending the control plane under those who still need it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	s.requests <- func() { started <- cmd.Start() }
	return <-started
}

func (s *spawner) close() { close(s.requests) }

// ProcessSpec says what to run.
type ProcessSpec struct {
	// Name names the log file; one name may be started again, the log goes on.
	Name string
	// Argv is the program and its arguments.
	Argv []string
	// Env is added to this process's environment.
	Env []string
	// Dir is the working directory.
	Dir string
	// Stdin is what a command run to its end reads. Long-running processes read nothing.
	Stdin io.Reader
}

// Process is one that a lab started and will end.
type Process struct {
	// PID is its id, also inside the lab: only the network is apart.
	PID int
	// LogPath has its standard output and error.
	LogPath string

	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end and returns how it ended: nil, an [exec.ExitError], or ctx's error.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Kill9 kills the process as a power cut would and waits until it is gone.
func (p *Process) Kill9() {
	_ = p.cmd.Process.Kill() // an error means that it is gone
	<-p.done
}

// Stop asks the process to end, waits for 15 s or as long as ctx allows, and then kills it.
func (p *Process) Stop(ctx context.Context) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-time.After(stopGrace):
	}
	p.Kill9()
}

// exitCode is that of a process that has ended, -1 if a signal ended it.
func (p *Process) exitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// site runs processes for one lab.
type site struct {
	id, dir string
	netns   string // empty: our own
	log     cachedir.Logf
	entry   *state.Entry
	spawner *spawner

	mu        sync.Mutex
	processes []*Process
}

func (s *site) argv(spec ProcessSpec) []string {
	if s.netns == "" {
		return spec.Argv
	}
	return append(netns.Enter(s.netns), spec.Argv...)
}

// start starts a process, records it and logs it to a file.
func (s *site) start(spec ProcessSpec) (*Process, error) {
	return s.startArgv(spec, s.argv(spec))
}

func (s *site) startArgv(spec ProcessSpec, argv []string) (*Process, error) {
	logPath := filepath.Join(s.dir, "logs", spec.Name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append(os.Environ(), spec.Env...), spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	if err := s.spawner.start(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	p := &Process{PID: cmd.Process.Pid, LogPath: logPath, name: spec.Name, cmd: cmd, done: make(chan struct{})}
	recorded := s.entry.AddProcess(p.PID)
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	if recorded != nil {
		p.Kill9()
		return nil, recorded
	}
	return p, nil
}

// run runs a command to its end and returns what it wrote to standard output.
func (s *site) run(ctx context.Context, spec ProcessSpec) ([]byte, error) {
	argv := s.argv(spec)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdin = append(os.Environ(), spec.Env...), spec.Dir, spec.Stdin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = stopGrace // someone it started may still hold the pipe
	if err := s.spawner.start(cmd); err != nil {
		return nil, fmt.Errorf("running %s: %w", strings.Join(spec.Argv, " "), err)
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop()
	if err := cmd.Wait(); err != nil {
		err = errors.Join(ctx.Err(), err)
		return stdout.Bytes(), fmt.Errorf("running %s: %w: %s", strings.Join(spec.Argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// killAll ends every process, the youngest first.
func (s *site) killAll() {
	s.mu.Lock()
	processes := s.processes
	s.processes = nil
	s.mu.Unlock()
	for i := len(processes) - 1; i >= 0; i-- {
		processes[i].Kill9()
	}
}

// until calls check every 100 ms until it returns nil, and gives up with check's last error when ctx ends or when
// one of the processes that it depends on does.
func until(ctx context.Context, what string, check func(context.Context) error, needs ...*Process) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		for _, p := range needs {
			select {
			case <-p.done:
				return fmt.Errorf("waiting for %s: %s ended (%w), see the end of its log: %s", what, p.name, p.err, tailFile(p.LogPath))
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// tailFile is the end of a log, for an error message.
func tailFile(path string) string {
	const most = 2000
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(content[max(0, len(content)-most):]))
}
