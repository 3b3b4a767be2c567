//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// witness is the file on a host to which the counted scripts write.
const witness = stage.Witness

// counted is the shipped profile whose scripts also say when they begin and when they have got to their end, and that
// take long enough for a kill to hit them.
func counted(t *testing.T, name string) *pool {
	t.Helper()
	p := shipped(t, name)
	must(t, p.Count())
	return p
}

// seen is what the counted scripts of all hosts wrote.
func seen(ctx context.Context) (string, error) {
	var all strings.Builder
	for _, h := range on.Hosts() {
		out, err := on.Witnessed(ctx, h)
		if err != nil {
			return "", err
		}
		all.WriteString(out)
	}
	return all.String(), nil
}

var errNotYet = errors.New("not yet")

// moment is a point between two steps, as anybody outside the controller can see it.
type moment func(ctx context.Context) error

func hostIs(check func(*v1beta1.SSHHost) bool) moment {
	return func(ctx context.Context) error {
		hosts, err := on.SSHHosts(ctx)
		if err != nil {
			return err
		}
		for i := range hosts {
			if hosts[i].Status.ClaimRef != nil && check(&hosts[i]) {
				return nil
			}
		}
		return errNotYet
	}
}

func wrote(line string) moment {
	return func(ctx context.Context) error {
		out, err := seen(ctx)
		if err == nil && !strings.Contains(out, line) {
			err = errNotYet
		}
		return err
	}
}

func nodeExists(ctx context.Context) error {
	nodes, err := on.Nodes(ctx)
	if err == nil && len(nodes) == 0 {
		err = errNotYet
	}
	return err
}

func killController(t *testing.T) {
	t.Helper()
	on.Controller().Kill9()
	must(t, on.StartController(t.Context()))
}

// forget makes the pool cold again: nothing is marked as installed, and nothing was witnessed.
func forget(t *testing.T) {
	t.Helper()
	must(t, on.Forget(within(t)))
}

// TestTheControllerDiesBetweenAnyTwoSteps kills it at each point of a join and of a leave and starts it again: the end
// is one joined node, or one released host, and every phase has begun once and ended once.
func TestTheControllerDiesBetweenAnyTwoSteps(t *testing.T) {
	p := counted(t, "counted")
	p.sign(t)
	p.apply(t)
	p.ready(t)
	type kill struct {
		name string
		at   moment
	}
	up := []kill{
		{"the host is claimed", hostIs(func(*v1beta1.SSHHost) bool { return true })},
		{"install runs", wrote("install-began")},
		{"install has ended", wrote("install-ended")},
		{"the install is on record", hostIs(func(h *v1beta1.SSHHost) bool { return h.Status.InstalledProfile != "" })},
		{"the token is on record", hostIs(func(h *v1beta1.SSHHost) bool { return h.Status.BootstrapTokenID != "" })},
		{"join runs", wrote("join-began")},
		{"the node exists", nodeExists},
		{"join has ended", wrote("join-ended")},
		{"the host is in use", hostIs(func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostInUse })},
	}
	down := []kill{
		{"leave is asked for", hostIs(func(h *v1beta1.SSHHost) bool {
			return h.StatusConditions().Get(v1beta1.ConditionLeaveRequested).IsTrue()
		})},
		{"leave runs", wrote("leave-began")},
		{"leave has ended", wrote("leave-ended")},
	}
	for _, k := range up {
		t.Run(k.name, func(t *testing.T) { p.round(t, k.at, nil) })
	}
	for _, k := range down {
		t.Run(k.name, func(t *testing.T) { p.round(t, nil, k.at) })
	}
}

// round joins and leaves once and kills the controller at a moment on the way.
func (p *pool) round(t *testing.T, up, down moment) {
	settled(t)
	forget(t)
	p.scale(t, 1)
	if up != nil {
		must(t, on.UntilFast(within(t), "the moment to kill at", up))
		killController(t)
	}
	_, host := p.running(t)
	nodes, err := on.Nodes(within(t))
	must(t, err)
	if len(nodes) != 1 {
		t.Errorf("%d nodes", len(nodes))
	}
	p.once(t, host, "install", "join")
	p.giveUp(t)
	if down != nil {
		must(t, on.UntilFast(within(t), "the moment to kill at", down))
		killController(t)
	}
	settled(t)
	p.once(t, host, "install", "join", "leave")
	must(t, on.CheckWarm(within(t), host))
	if left := tokens(t); left != "" {
		t.Errorf("token Secrets are left: %s", left)
	}
}

// once checks that the phases have begun once and ended once, in their order, on this host and nowhere else.
func (p *pool) once(t *testing.T, host string, phases ...string) {
	t.Helper()
	var want strings.Builder
	for _, phase := range phases {
		fmt.Fprintf(&want, "%s-began\n%s-ended\n", phase, phase)
	}
	got, err := seen(within(t))
	must(t, err)
	if got != want.String() {
		t.Errorf("the scripts on all hosts wrote\n%s\nnot, on %s alone,\n%s", got, host, want.String())
	}
}

// TestAForceDeletedNodeClaimIsCleanedUp is the zombie guard's main case: the claim is gone with its finalizers, and
// the host is still joined.
func TestAForceDeletedNodeClaimIsCleanedUp(t *testing.T) {
	settled(t)
	p := shipped(t, "forced")
	p.sign(t)
	p.apply(t)
	p.ready(t)
	p.scale(t, 1)
	claim, host := p.running(t)
	// Nothing may want a new one in its place.
	p.scale(t, 0)
	_, err := on.Kubectl(within(t), "patch", "nodeclaim", claim, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	must(t, err)
	_, err = on.Kubectl(within(t), "delete", "nodeclaim", claim, "--ignore-not-found", "--wait=false")
	must(t, err)
	_, err = on.Kubectl(within(t), "patch", "nodeclaim", claim, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	if err != nil && !strings.Contains(err.Error(), "not found") {
		t.Fatal(err)
	}
	settled(t)
	must(t, on.CheckWarm(within(t), host))
	events, err := on.Kubectl(within(t), "get", "events", "-A", "-o", "custom-columns=R:.reason,O:.involvedObject.name")
	must(t, err)
	t.Logf("events:\n%s", events)
}
