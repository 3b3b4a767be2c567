package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	probePairs = 100
	// probesAtATime are counted together: the kernel's count is exact to some microseconds.
	probesAtATime = 10
	// hostVerb has this program be a host, so that the processor time of its end is not in ours.
	hostVerb = "be-a-host"
)

// served is what somebody needs who probes that host.
type served struct {
	Address     string
	Port        int
	Fingerprint string
	HostID      string
	ReceiptKey  string
	Roots       map[int64][]byte
	Allowlist   []byte
}

// beAHost says on out how to reach a host, and ends with in.
func beAHost(in io.Reader, out io.Writer) int {
	host, answer, err := newServed()
	if err != nil || json.NewEncoder(out).Encode(answer) != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, in)
	host.Server.Close()
	return 0
}

func newServed() (host *dispatchtest.Host, answer served, err error) {
	stop := &stopper{}
	defer stop.recover(&err)
	world := dispatchtest.NewWorld(stop)
	host = world.NewHost("probed")
	host.Server.SetHandler(func(s *remotetest.Session) int {
		if s.User == bareUser {
			return 0
		}
		return host.Serve(s)
	})
	reach := host.Dispatch()
	answer = served{
		Address: reach.Target.Address, Port: reach.Target.Port, Fingerprint: host.Server.Fingerprint(), HostID: reach.HostID, ReceiptKey: reach.ReceiptKey.String(),
	}
	answer.Roots, answer.Allowlist, err = world.Documents()
	return host, answer, err
}

// bareUser runs commands on that host that do nothing.
const bareUser = "bare"

// probes measures the processor time of a probe on a connection that is open, and in turns with it that of x/crypto's client alone
// that connects, logs in and has a command run.
func (b *bench) probes(ctx context.Context) (_ []Result, err error) {
	host, end, err := startHost(ctx)
	if err != nil {
		return nil, fmt.Errorf("starting a host: %w", err)
	}
	defer func() { err = errors.Join(err, end()) }()
	key, err := remotetest.GenerateKey()
	if err != nil {
		return nil, err
	}
	probe, hangUp, err := host.prober(ctx, key)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, hangUp()) }()
	bare := func(context.Context) error { return host.exec(key) }
	s, err := b.inTurns(ctx, "times ten probes", probePairs, processorTime(probe), processorTime(bare))
	if err != nil {
		return nil, err
	}
	client, err := host.dial(key)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	again := func(context.Context) error { return command(client) }
	floor, err := b.inTurns(ctx, "times ten commands", probePairs, processorTime(again), processorTime(bare))
	if err != nil {
		return nil, err
	}
	return []Result{
		goal{figure: "Q5", what: "processor time of a probe on an open connection / of x/crypto's handshake and exec", most: 0.15, quantile: 0.5, unit: "s"}.judge(s),
		goal{figure: "Q5 floor", what: "processor time of x/crypto's exec of nothing on an open connection / the same", most: 0.15, quantile: 0.5, unit: "s"}.judge(floor),
	}, nil
}

// startHost starts the host in another process; end ends it.
func startHost(ctx context.Context) (_ *served, end func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, program, hostVerb)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	// With the bench its standard input ends, and with that the host.
	end = func() error { return errors.Join(in.Close(), cmd.Wait()) }
	answer := &served{}
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(answer); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return answer, end, nil
}

// prober probes over one connection that stays open.
func (h *served) prober(ctx context.Context, key ssh.Signer) (probe func(context.Context) error, hangUp func() error, err error) {
	pin, err := remote.Pin(h.Fingerprint)
	if err != nil {
		return nil, nil, err
	}
	receipts, err := signing.ParseKey(h.ReceiptKey)
	if err != nil {
		return nil, nil, err
	}
	connections := remote.NewPool(remote.PoolOptions{})
	dispatcher := dispatch.New(dispatch.Options{Trust: documents{roots: h.Roots, list: h.Allowlist}, Pool: connections})
	reach := dispatch.Host{Name: "probed", Mode: dispatch.Verified, HostID: h.HostID, ReceiptKey: receipts, Target: remote.Target{
		Address: h.Address, Port: h.Port, User: "kpssh", Keys: []ssh.Signer{key}, HostKey: pin,
	}}
	probe = func(ctx context.Context) error {
		dials := connections.Stats().Dials
		got, err := dispatcher.Probe(ctx, reach)
		switch {
		case err != nil:
			return err
		case got.Hello == nil || got.Behind != nil:
			return fmt.Errorf("the probe found %+v", got)
		case dials > 0 && connections.Stats().Dials != dials:
			return errors.New("the connection was not kept")
		}
		return nil
	}
	return probe, connections.Close, probe(ctx) // which brings the documents
}

// dial connects and logs in with x/crypto alone.
func (h *served) dial(key ssh.Signer) (*ssh.Client, error) {
	return ssh.Dial("tcp", fmt.Sprintf("%s:%d", h.Address, h.Port), &ssh.ClientConfig{
		User: bareUser, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), //nolint:gosec // a host of this bench
	})
}

// command has a command run that does nothing.
func command(client *ssh.Client) error {
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	return session.Run("true")
}

// exec connects, has a command run and hangs up.
func (h *served) exec(key ssh.Signer) error {
	client, err := h.dial(key)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return command(client)
}

// processorTime does something several times and tells the processor time that this process used for it.
func processorTime(do func(context.Context) error) step {
	return func(ctx context.Context) (time.Duration, error) {
		runtime.GC() // what the other side left is not ours to collect
		before, err := used()
		if err != nil {
			return 0, err
		}
		for range probesAtATime {
			if err := do(ctx); err != nil {
				return 0, err
			}
		}
		after, err := used()
		return after - before, err
	}
}

func used() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("reading the processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
