package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	taxPairs  = 100
	bytePairs = 10
	// rawUser may become root without a password, which is all that Raw mode asks for.
	rawUser = "bench"
	// warmBytes is what an order may cost on the wire where the host has list and script.
	warmBytes = 4 << 10
)

// addRawUser makes the user, with the key that also logs in as kpssh.
const addRawUser = `set -eu
useradd --create-home --shell /bin/bash --password '*' "$1"
install -d -m 0700 -o "$1" -g "$1" "/home/$1/.ssh"
printf '%s\n' "$2" >"/home/$1/.ssh/authorized_keys"
chown "$1:$1" "/home/$1/.ssh/authorized_keys"
printf '%s ALL=(root) NOPASSWD: ALL\n' "$1" >"/etc/sudoers.d/$1"`

// securityTax measures the same join, with the same parameters and a script that does nothing, through the shim and
// through sudo, each over a new connection; and what is sent for an order.
func (b *bench) securityTax(ctx context.Context, h *hand) ([]Result, error) {
	t, err := newTax(ctx, h)
	if err != nil {
		return nil, err
	}
	near, err := t.inBothModes(ctx, b, h.way, taxPairs)
	if err != nil {
		return nil, err
	}
	far, err := t.inBothModes(ctx, b, h.far, farPairs)
	if err != nil {
		return nil, err
	}
	warm, cold, err := t.sent(ctx)
	if err != nil {
		return nil, err
	}
	return []Result{
		goal{figure: "P10", what: "join in Verified mode / in Raw mode, new connections", most: 1.30, quantile: 0.5, unit: "s"}.judge(near),
		goal{figure: "P10 far", what: "the same, a round trip takes 50 ms", most: 1.20, quantile: 0.5, unit: "s"}.judge(far),
		goal{figure: "P10 warm", what: "bytes sent for an order / 4 KiB", most: 1, quantile: 0.5, unit: "B"}.judge(warm),
		goal{figure: "P10 cold", what: "bytes sent for an order with its script / the script, 16 KiB", most: 1.15, asked: 1.05, required: true, quantile: 0.5, unit: "B"}.judge(cold),
	}, nil
}

// inBothModes joins in turns over a way.
func (t *tax) inBothModes(ctx context.Context, b *bench, way *forward, pairs int) (_ *sides, err error) {
	seconds := &sides{}
	for i := range warmUp + pairs {
		hosts := []dispatch.Host{t.reach, t.rawReach}
		var took [2]time.Duration
		for j := range hosts {
			if i%2 == 1 {
				j = 1 - j
			}
			hosts[j].Target.Address, hosts[j].Target.Port = way.address()
			if took[j], err = t.join(ctx, hosts[j]); err != nil {
				return nil, err
			}
		}
		if i >= warmUp {
			seconds.add(took[0], took[1])
		}
		b.progress("joins in both modes", i+1, warmUp+pairs)
	}
	return seconds, nil
}

type tax struct {
	*hand
	rawReach dispatch.Host
	subject  membership.Subject
}

func newTax(ctx context.Context, h *hand) (*tax, error) {
	t := &tax{hand: h, rawReach: h.reach}
	t.rawReach.Mode, t.rawReach.Target.User = dispatch.Raw, rawUser
	key := authorizedKey(h.reach.Target.Keys[0])
	if _, err := h.machine.Exec(ctx, "bash", "-c", addRawUser, "bash", rawUser, key); err != nil {
		return nil, fmt.Errorf("making a user for Raw mode: %w", err)
	}
	nodeClaim := &karpv1.NodeClaim{}
	nodeClaim.Name, nodeClaim.Labels = "pool-x7k2p", map[string]string{karpv1.NodePoolLabelKey: "pool"}
	var err error
	t.subject, err = h.subject(ctx, nodeClaim)
	return t, err
}

// request is a phase of the bench's profile for a new claim.
func (t *tax) request(ctx context.Context, phase signing.Phase, script string) (dispatch.Request, error) {
	t.host.Status.Fence++
	t.subject.NodeClaim.UID = uuid.NewUUID()
	params, secrets, err := t.phases(t.kept).Environment(ctx, t.subject, phase, "abcdef.0123456789abcdef")
	return dispatch.Request{
		Phase: phase, Profile: benchProfile, Version: "1", Script: []byte(script), Claim: string(t.subject.NodeClaim.UID),
		Fence: t.host.Status.Fence, Parameters: params, Secrets: secrets, Timeout: time.Minute,
	}, err
}

// join joins over a new connection; a host that remembers its claim is freed again uncounted.
func (t *tax) join(ctx context.Context, host dispatch.Host) (time.Duration, error) {
	request, err := t.request(ctx, signing.PhaseJoin, scripts().Join)
	if err != nil {
		return 0, err
	}
	took, err := t.alone(ctx, host, request)
	if err != nil || host.Mode == dispatch.Raw {
		return took, err
	}
	return took, t.leave(ctx, t.subject.NodeClaim.UID)
}

// alone runs a request over a connection that nothing else uses.
func (t *tax) alone(ctx context.Context, host dispatch.Host, request dispatch.Request) (time.Duration, error) {
	pool := remote.NewPool(remote.PoolOptions{})
	defer func() { _ = pool.Close() }()
	dispatcher := t.dispatcher(pool)
	return timed(func() error {
		_, err := dispatcher.Run(ctx, host, request)
		return err
	})
}

func (t *tax) leave(ctx context.Context, claim types.UID) error {
	params, secrets := map[string]string{}, map[string]string{}
	for _, name := range []string{"KPSSH_HOST_ADDRESS", "KPSSH_NODE_ADDRESS"} {
		params[name] = t.host.Spec.Address
	}
	_, err := t.dispatcher(t.kept).Run(ctx, t.reach, dispatch.Request{
		Phase: signing.PhaseLeave, Profile: benchProfile, Version: "1", Script: []byte(scripts().Leave), Claim: string(claim),
		Fence: t.host.Status.Fence, Parameters: params, Secrets: secrets, Timeout: time.Minute,
	})
	return err
}

// sent counts what goes to the host over TCP for an order on an open connection, once where the host has the script
// and once where it does not.
func (t *tax) sent(ctx context.Context) (warm, cold *sides, err error) {
	warm, cold = &sides{}, &sides{}
	for range bytePairs {
		n, err := t.count(ctx, signing.PhaseJoin, scripts().Join)
		if err != nil {
			return nil, nil, err
		}
		warm.ours, warm.other = append(warm.ours, n), append(warm.other, warmBytes)
		if _, err := t.machine.Exec(ctx, "sh", "-c", "rm -f /var/lib/kpssh/scripts/*"); err != nil {
			return nil, nil, err
		}
		// The leave between brings its own script back.
		if n, err = t.count(ctx, signing.PhaseInstall, scripts().Install); err != nil {
			return nil, nil, err
		}
		cold.ours, cold.other = append(cold.ours, n), append(cold.other, float64(len(scripts().Install)))
	}
	return warm, cold, nil
}

func (t *tax) count(ctx context.Context, phase signing.Phase, script string) (float64, error) {
	request, err := t.request(ctx, phase, script)
	if err != nil {
		return 0, err
	}
	dispatcher := t.dispatcher(t.kept)
	if _, err := dispatcher.Probe(ctx, t.reach); err != nil { // the connection is open now
		return 0, err
	}
	before := t.way.sent.Load()
	_, err = dispatcher.Run(ctx, t.reach, request)
	n := t.way.sent.Load() - before
	if err = errors.Join(err, t.leave(ctx, t.subject.NodeClaim.UID)); err != nil {
		return 0, err
	}
	return float64(n), nil
}
