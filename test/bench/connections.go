package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/shim"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// connectionPairs is how often each side of P4 and P5 runs; over a long way, where a round takes 3 s and its time hardly
// varies, farPairs.
const (
	connectionPairs = 100
	farPairs        = 25
)

// joinScript and leaveScript do nothing, so that what is around them is measured.
var joinScript, leaveScript = noOp(scriptSize), []byte("true\n")

// connections measures the same order to the same shim behind an sshd: on a connection that is open, on a new one, and
// by a client that has OpenSSH's ssh make the connection.
func (b *bench) connections(ctx context.Context) (_ []Result, err error) {
	c, err := newConnections(ctx, b)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	results := make([]Result, 0, 4)
	for _, way := range []struct {
		suffix, what string
		delay        time.Duration
		pairs        int
		p4, p5       goal
	}{
		{pairs: connectionPairs, p4: goal{most: 0.12, required: true}, p5: goal{most: 0.65, required: true}},
		// An open connection takes 3 round trips of the 10 that a new one takes, and ssh takes as many as we do.
		{
			suffix: " far", what: ", a round trip takes 50 ms", delay: farAway, pairs: farPairs,
			p4: goal{most: 0.33, asked: 0.12}, p5: goal{most: 0.95, asked: 0.65},
		},
	} {
		if err := c.over(way.delay); err != nil {
			return nil, err
		}
		p4, p5, err := c.threeConnections(ctx, b, way.pairs)
		if err != nil {
			return nil, err
		}
		way.p4.figure, way.p4.what = "P4"+way.suffix, "order on an open connection / on a new one"+way.what
		way.p5.figure, way.p5.what = "P5"+way.suffix, "dial and order / the same through an ssh process"+way.what
		way.p4.quantile, way.p4.unit = 0.5, "s"
		way.p5.quantile, way.p5.unit = 0.5, "s"
		results = append(results, way.p4.judge(p4), way.p5.judge(p5))
	}
	return results, nil
}

// over has all connections from now on go a way that takes delay.
func (c *connections) over(delay time.Duration) error {
	err := c.leaveWay()
	if err != nil {
		return err
	}
	c.kept = remote.NewPool(remote.PoolOptions{})
	c.way, err = newForward(delay, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", c.hostPort())
	})
	if err != nil {
		return err
	}
	c.reach.Target.Address, c.reach.Target.Port = c.way.address()
	known := fmt.Sprintf("[127.0.0.1]:%d %s", c.reach.Target.Port, ssh.MarshalAuthorizedKey(c.hostKey))
	return os.WriteFile(c.login+".known", []byte(known), 0o600)
}

func (c *connections) threeConnections(ctx context.Context, b *bench, pairs int) (p4, p5 *sides, err error) {
	p4, p5 = &sides{}, &sides{}
	for i := range warmUp + pairs {
		steps := []func(context.Context) (time.Duration, error){c.reused, c.fresh, c.openSSH}
		var took [3]time.Duration
		for j := range steps {
			if i%2 == 1 {
				j = len(steps) - 1 - j
			}
			if took[j], err = steps[j](ctx); err != nil {
				return nil, nil, err
			}
		}
		if i >= warmUp {
			p4.add(took[0], took[1])
			p5.add(took[1], took[2])
		}
		b.progress("rounds of three connections", i+1, warmUp+pairs)
	}
	return p4, p5, nil
}

// connections is an enrolled host behind an sshd whose key for us has the shim as its command.
type connections struct {
	*sshd
	side  *shimSide // its world and its client by hand
	way   *forward
	reach dispatch.Host
	kept  *remote.Pool
	login string // the private key, for ssh
	// tolerated is all: root logs in here, and the entrance of packaging is not used.
	tolerated dispatch.Tolerance
}

func newConnections(ctx context.Context, b *bench) (_ *connections, err error) {
	private, key, err := newKey()
	if err != nil {
		return nil, err
	}
	c := &connections{side: &shimSide{script: joinScript}}
	if c.tolerated, err = dispatch.ParseTolerance("all"); err != nil {
		return nil, err
	}
	if c.side.world, err = newWorld(joinScript, leaveScript); err != nil {
		return nil, err
	}
	roots, list, err := c.side.world.Documents()
	if err != nil {
		return nil, err
	}
	if c.side.list, err = signing.PayloadDigest(list); err != nil {
		return nil, err
	}
	const program = "/usr/libexec/kpssh/kpssh-shim"
	enrol := func(upper string) error {
		binary, err := os.ReadFile(b.shim())
		if err != nil {
			return fmt.Errorf("finding the built shim: %w: run \"make build\"", err)
		}
		state := filepath.Join(upper, "var/lib/kpssh")
		for _, dir := range []string{filepath.Dir(state), filepath.Join(upper, filepath.Dir(program)), filepath.Join(upper, "run/kpssh")} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(upper, program), binary, 0o755); err != nil {
			return err
		}
		if err := shim.MakeIdentity(state, roots[1], false); err != nil {
			return err
		}
		host, err := shim.Open(shim.Config{State: state})
		if err != nil {
			return err
		}
		defer host.Close()
		c.side.hostID, c.side.receipts = host.ID(), host.ReceiptKey()
		return nil
	}
	if c.sshd, err = newSSHD(ctx, b, key.PublicKey(), `restrict,command="exec `+program+` root-stage --socket"`, enrol); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.side.log, err = os.Create(filepath.Join(c.box.dir, "ssh.log")); err != nil {
		return nil, err
	}
	c.login = filepath.Join(c.box.dir, "login")
	if err := os.WriteFile(c.login, private, 0o600); err != nil {
		return nil, err
	}
	c.reach = dispatch.Host{Name: "bench", Mode: dispatch.Verified, HostID: c.side.hostID, ReceiptKey: c.side.receipts}
	c.reach.Target, err = c.target(key)
	return c, err
}

func (c *connections) close() error { return errors.Join(c.leaveWay(), c.sshd.close()) }

// leaveWay ends the connections that are kept, and then the way that they go.
func (c *connections) leaveWay() error {
	if c.way == nil {
		return nil
	}
	err := c.kept.Close()
	c.way.close()
	c.way = nil
	return err
}

func (c *connections) dispatcher(pool *remote.Pool) *dispatch.Dispatcher {
	return dispatch.New(dispatch.Options{Trust: c.side.world, Signer: c.side.world.Signer(), Pool: pool, Tolerated: c.tolerated})
}

// through orders over the connections of a pool, and frees the host again uncounted.
func (c *connections) through(ctx context.Context, pool *remote.Pool) (time.Duration, error) {
	c.side.fence++
	request := joinRequest(c.side.fence)
	dispatcher := c.dispatcher(pool)
	took, err := timed(func() error {
		_, err := dispatcher.Run(ctx, c.reach, request)
		return err
	})
	if err != nil {
		return 0, err
	}
	return took, c.leave(ctx, request.Claim)
}

// joinRequest is an order for a new claim, with parameters as a join has them.
func joinRequest(fence int64) dispatch.Request {
	return dispatch.Request{
		Phase: signing.PhaseJoin, Profile: benchProfile, Version: "1", Script: joinScript, Claim: fmt.Sprintf("claim-%d", fence), Fence: fence,
		Parameters: map[string]string{"KPSSH_CLUSTER_ENDPOINT": "https://192.0.2.1:6443", "KPSSH_NODE_NAME": "pool-x7k2p"},
		Secrets:    map[string]string{"KPSSH_BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef"}, Timeout: time.Minute,
	}
}

func (c *connections) leave(ctx context.Context, claim string) error {
	_, err := c.dispatcher(c.kept).Run(ctx, c.reach, dispatch.Request{
		Phase: signing.PhaseLeave, Profile: benchProfile, Version: "1", Script: leaveScript, Claim: claim, Fence: c.side.fence,
		Parameters: map[string]string{}, Secrets: map[string]string{}, Timeout: time.Minute,
	})
	return err
}

func (c *connections) reused(ctx context.Context) (time.Duration, error) {
	// A connection that was lost is not what is measured.
	_, release, err := c.kept.Get(ctx, c.reach.Target)
	if err != nil {
		return 0, err
	}
	release()
	return c.through(ctx, c.kept)
}

func (c *connections) fresh(ctx context.Context) (time.Duration, error) {
	pool := remote.NewPool(remote.PoolOptions{})
	defer func() { _ = pool.Close() }()
	return c.through(ctx, pool)
}

// openSSH starts ssh, speaks the protocol over its standard input and output, and waits for its end.
func (c *connections) openSSH(ctx context.Context) (time.Duration, error) {
	c.side.fence++
	took, err := timed(func() error { return c.throughSSH(ctx) })
	if err != nil {
		return 0, err
	}
	return took, c.leave(ctx, "claim")
}

func (c *connections) throughSSH(ctx context.Context) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	cmd := exec.CommandContext(ctx, "ssh", "-F", "none", "-T", "-i", c.login, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
		"-o", "UserKnownHostsFile="+c.login+".known", "-p", fmt.Sprint(c.reach.Target.Port), "root@127.0.0.1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, c.side.log
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = ours.Close()
		return fmt.Errorf("starting ssh: %w", err)
	}
	receipt, err := c.side.talk(ours, c.side.fence)
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return err
	}
	if receipt.Outcome != signing.OutcomeOK {
		return fmt.Errorf("the run ended as %s (%s)", receipt.Outcome, receipt.Reason)
	}
	return nil
}
