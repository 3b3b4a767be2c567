package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	memoryRounds = 10
	idleConns    = 200
	floodBytes   = 256 << 20
	floodMost    = 4 << 20
	// serveVerb has this program be an SSH server, so that the memory of its end is not in ours.
	serveVerb = "serve-ssh"
)

// serveSSH is that server. It lets everybody in, floods whoever asks and ends with standard input.
func serveSSH(in io.Reader, out io.Writer) int {
	server, err := remotetest.Start(remotetest.Config{Handler: func(s *remotetest.Session) int {
		script := bufio.NewReader(s.Stdin) // of which the first line prints the mark
		line, _ := script.ReadString('\n')
		go func() { _, _ = io.Copy(io.Discard, script) }()
		fields := strings.Split(line, "'")
		fmt.Fprintln(s.Stdout, fields[len(fields)-2])
		if s.User == "flood" {
			_, _ = io.Copy(s.Stdout, io.LimitReader(lines{}, floodBytes))
		}
		return 0
	}})
	if err != nil {
		return 1
	}
	fmt.Fprintln(out, server.HostPort(), server.Fingerprint())
	_, _ = io.Copy(io.Discard, in)
	server.Close()
	return 0
}

type lines struct{}

// Read implements io.Reader.
func (lines) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
		if i%100 == 99 {
			p[i] = '\n'
		}
	}
	return len(p), nil
}

// memory measures what an idle connection holds in heap and stacks, of the pool's and of x/crypto's alone, and how much
// more there is at most while one host sends without end.
func (b *bench) memory(ctx context.Context) (_ []Result, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, serveVerb)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// The thread must live as long as the child does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stdin.Close(), cmd.Wait()) }()
	var hostPort, fingerprint string
	if _, err := fmt.Fscan(stdout, &hostPort, &fingerprint); err != nil {
		return nil, fmt.Errorf("waiting for the server: %w", err)
	}
	m, err := newMemory(hostPort, fingerprint)
	if err != nil {
		return nil, err
	}
	idle := &sides{}
	flood := &sides{}
	for i := range 1 + memoryRounds {
		pooled, err := m.pooled(ctx)
		if err != nil {
			return nil, err
		}
		bare, err := m.bare()
		if err != nil {
			return nil, err
		}
		quiet, err := m.peak(ctx, "quiet")
		if err != nil {
			return nil, err
		}
		flooded, err := m.peak(ctx, "flood")
		if err != nil {
			return nil, err
		}
		if i > 0 {
			idle.ours, idle.other = append(idle.ours, pooled), append(idle.other, bare)
			flood.ours, flood.other = append(flood.ours, max(flooded-quiet, 0)), append(flood.other, floodMost)
		}
		b.progress("rounds of four sides", i+1, 1+memoryRounds)
	}
	return []Result{
		goal{figure: "P8", what: "memory of an idle connection of the pool / of x/crypto", most: 1.25, required: true, quantile: 0.5, unit: "B"}.judge(idle),
		goal{figure: "P8 flood", what: "memory more at most while one host floods / 4 MiB", most: 1, quantile: 0.5, unit: "B"}.judge(flood),
	}, nil
}

type memory struct{ target remote.Target }

func newMemory(hostPort, fingerprint string) (*memory, error) {
	_, key, err := newKey()
	if err != nil {
		return nil, err
	}
	policy, err := remote.Pin(fingerprint)
	if err != nil {
		return nil, err
	}
	m := &memory{target: remote.Target{Keys: []ssh.Signer{key}, HostKey: policy, User: "quiet"}}
	host, port, _ := strings.Cut(hostPort, ":")
	m.target.Address = host
	_, err = fmt.Sscan(port, &m.target.Port)
	return m, err
}

// footprint is heap and stacks in use, garbage not counted.
func footprint() float64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc + s.StackInuse)
}

// live is what the collector last found in use, and stacks: unlike footprint it counts nothing that came and went since.
func live() float64 {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return float64(samples[0].Value.Uint64() + samples[1].Value.Uint64())
}

func (m *memory) pooled(ctx context.Context) (float64, error) {
	pool := remote.NewPool(remote.PoolOptions{})
	before := footprint()
	for i := range idleConns {
		target := m.target
		target.User = fmt.Sprintf("user-%d", i) // one connection is not shared by two users
		conn, release, err := pool.Get(ctx, target)
		if err != nil {
			return 0, err
		}
		defer func() { <-conn.Done() }()
		release()
	}
	used := footprint() - before
	return used / idleConns, pool.Close()
}

func (m *memory) bare() (float64, error) {
	before := footprint()
	for i := range idleConns {
		client, err := ssh.Dial("tcp", fmt.Sprintf("%s:%d", m.target.Address, m.target.Port), &ssh.ClientConfig{
			User: fmt.Sprintf("user-%d", i), Auth: []ssh.AuthMethod{ssh.PublicKeys(m.target.Keys...)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), //nolint:gosec // a server of this bench
		})
		if err != nil {
			return 0, err
		}
		defer func() {
			_ = client.Close()
			_ = client.Wait()
		}()
	}
	return (footprint() - before) / idleConns, nil
}

// peak is the most of heap and stacks in use while the user's host runs a script. Garbage is not counted: how much of it
// lies around depends on how large the heap is already, which in this small program says nothing about the controller.
func (m *memory) peak(ctx context.Context, user string) (float64, error) {
	pool := remote.NewPool(remote.PoolOptions{})
	defer func() { _ = pool.Close() }()
	target := m.target
	target.User = user
	runtime.GC()
	before := live()
	done := make(chan struct{})
	most := make(chan float64)
	go func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		var top float64
		for {
			runtime.GC()
			top = max(top, live())
			select {
			case <-ticker.C:
			case <-done:
				most <- top
				return
			}
		}
	}()
	dispatcher := dispatch.New(dispatch.Options{Pool: pool, AllowRaw: true})
	_, err := dispatcher.Run(ctx, dispatch.Host{Name: user, Mode: dispatch.Raw, Target: target}, dispatch.Request{
		Phase: signing.PhaseLeave, Script: leaveScript, Timeout: time.Minute,
	})
	close(done)
	return <-most - before, err
}
