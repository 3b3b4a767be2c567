package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// controller is a running controller, the built program.
type controller struct {
	cmd   *exec.Cmd
	log   string
	ready string // where it says that it is
	debug string // where its metrics and profiles are
	ended chan error
}

// start starts a controller, which becomes the leader when there is none, and waits until its caches are filled.
func (c *cluster) start(ctx context.Context, args ...string) (*controller, error) {
	program := filepath.Join(c.repo, "bin", "karpenter-provider-ssh")
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("finding the built controller: %w: run \"make build\"", err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	metrics := 0
	if c.profiles != "" {
		if metrics, err = freePort(); err != nil {
			return nil, err
		}
	}
	n := &controller{
		log:   filepath.Join(c.dir, fmt.Sprintf("controller-%d.log", len(c.controllers))),
		ready: fmt.Sprintf("http://127.0.0.1:%d/readyz", port), ended: make(chan error, 1),
		debug: fmt.Sprintf("http://127.0.0.1:%d/", metrics),
	}
	log, err := os.Create(n.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	n.cmd = exec.Command(program, append([]string{"--metrics-port", strconv.Itoa(metrics), "--enable-profiling=true", "--health-probe-port", strconv.Itoa(port), "--audit-log", "off"}, args...)...)
	n.cmd.Env = append(os.Environ(), "KUBECONFIG="+c.server.Kubeconfig(), "POOL_NAMESPACE="+clusterNamespace, "SYSTEM_NAMESPACE="+clusterNamespace)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the controller ends with the thread that started it
		defer runtime.UnlockOSThread()
		err := n.cmd.Start()
		started <- err
		if err == nil {
			n.ended <- n.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting the controller: %w", err)
	}
	c.controllers = append(c.controllers, n)
	return n, c.until(ctx, "the controller is ready", time.Minute, n.isReady)
}

func (n *controller) isReady(ctx context.Context) (string, error) {
	select {
	case err := <-n.ended:
		n.ended <- err
		log, _ := os.ReadFile(n.log)
		return "", fmt.Errorf("the controller ended: %v: %s", err, bytes.TrimSpace(log[max(0, len(log)-2000):]))
	default:
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.ready, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	switch {
	case err != nil:
		return err.Error(), nil // it does not listen yet
	case resp.StatusCode != http.StatusOK:
		return resp.Status, resp.Body.Close()
	}
	return "", resp.Body.Close()
}

// kill ends it as a power cut does, and says so when it was not running any more.
func (n *controller) kill() error {
	if n.cmd.ProcessState != nil {
		return nil
	}
	if err := n.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := <-n.ended
	n.ended <- err
	if state, ok := n.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !state.Signaled() {
		return fmt.Errorf("the controller had ended: %w", err)
	}
	return nil
}

// tick is the unit of processor times under /proc, on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// usage is the processor time that the controller has used and the memory that it holds, pages of its program counted.
func (n *controller) usage() (cpu time.Duration, resident int64, err error) {
	proc := fmt.Sprintf("/proc/%d/", n.cmd.Process.Pid)
	stat, err := os.ReadFile(proc + "stat")
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may hold spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, 0, fmt.Errorf("reading %q: %d fields", proc+"stat", len(fields))
	}
	for _, field := range fields[11:13] { // user and system time
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("reading %q: %w", proc+"stat", err)
		}
		cpu += time.Duration(ticks) * tick
	}
	statm, err := os.ReadFile(proc + "statm")
	if err != nil {
		return 0, 0, err
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(statm), &size, &pages); err != nil {
		return 0, 0, err
	}
	return cpu, pages * int64(os.Getpagesize()), nil
}

// profile writes what the controller did in the next while, what it holds then, and its metrics into the folder of profiles.
func (c *cluster) profile(ctx context.Context, n *controller, figure string, during time.Duration) error {
	for _, part := range []struct{ path, file string }{
		{fmt.Sprintf("debug/pprof/profile?seconds=%d", int(during.Seconds())), "cpu.pprof"}, {"debug/pprof/heap", "heap.pprof"}, {"metrics", "metrics"},
	} {
		if err := fetch(ctx, n.debug+part.path, filepath.Join(c.profiles, figure+"."+part.file)); err != nil {
			return fmt.Errorf("taking a profile of the controller: %w", err)
		}
	}
	return nil
}

func fetch(ctx context.Context, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}
