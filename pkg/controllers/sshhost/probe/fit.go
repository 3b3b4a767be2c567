package probe

import (
	"context"
	"fmt"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/pkg/preflight"
)

// identify returns what the machine says that it is, and what it said before when that was another one: then the earlier
// identity stays, until the spec is edited or the host is reset. An empty machine id, as of a container, matches any.
func identify(host *v1beta1.SSHHost, probe *dispatch.Probe) (now *v1beta1.HostIdentity, before string) {
	now = &v1beta1.HostIdentity{
		MachineID: probe.Facts.MachineID, BootID: probe.Facts.BootID, Hostname: probe.Facts.Hostname,
		Generation: host.Generation, Reset: pool.Reset(host),
	}
	old := host.Status.Identity
	switch {
	case old == nil || old.MachineID == "" || old.MachineID == now.MachineID:
	case now.MachineID == "":
		now.MachineID = old.MachineID
	case old.Generation == now.Generation && old.Reset == now.Reset:
		return old, old.MachineID
	}
	return now, ""
}

// asSeen is the host with the identity that a probe found, which is what its peers are looked for by.
func asSeen(host *v1beta1.SSHHost, probe *dispatch.Probe) (seen *v1beta1.SSHHost, before string) {
	seen = host.DeepCopy()
	seen.Status.Identity, before = identify(host, probe)
	return seen, before
}

// anotherMachine says why the machine is not the one that the host stands for: it became another one, or it is a copy of
// another host's; empty when it is. Nothing may run on either.
func (c *Controller) anotherMachine(host *v1beta1.SSHHost, probe *dispatch.Probe) string {
	seen, before := asSeen(host, probe)
	if before != "" {
		return fmt.Sprintf("the machine id was %s and is %s: it is another machine, or was installed anew; if that is right, run \"kpssh host reset %s\" "+
			"or edit the spec", before, probe.Facts.MachineID, host.Name)
	}
	if clones := c.Hosts.Peers(seen, pool.PeerMachineID, pool.PeerHostID); len(clones) > 0 {
		return fmt.Sprintf("the machine has the machine id or the shim's id of %s: delete one of the two if they are one machine; a copied disk needs "+
			"ids of its own: \"rm -f /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup; "+
			"/usr/libexec/kpssh/kpssh-shim uninstall --purge\" there, a reboot, and \"kpssh host enroll\"", strings.Join(clones, ", "))
	}
	return ""
}

// machine is what a probe found out about the machine, with the checks of preflight.
func (c *Controller) machine(host *v1beta1.SSHHost, probe *dispatch.Probe, drift string) pool.Machine {
	seen, _ := asSeen(host, probe)
	in := preflight.Input{
		Host: host, Facts: probe.Facts, Now: c.Clock.Now(), Capacity: drift,
		SameHostname: c.Hosts.Peers(seen, pool.PeerHostname), SameAddress: c.Hosts.Peers(seen, pool.PeerAddress, pool.PeerDial),
	}
	if c.ClusterVersion != nil {
		in.ClusterVersion = c.ClusterVersion()
	}
	return pool.Machine{Identity: seen.Status.Identity, PageSize: int64(probe.Facts.PageSize), Checked: true, Preflight: preflight.Check(in)}
}

// unfit is why a host that answers and has nothing left on it is not offered; nil when it is.
func (c *Controller) unfit(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, findings []v1beta1.PreflightFinding) (*membership.Failure, error) {
	if unfit := membership.Unfit(host, probe); unfit != nil {
		return unfit, nil
	}
	keeping := v1beta1.Keeping(findings, nil)
	if len(keeping) == 0 {
		return nil, nil
	}
	list := &v1beta1.SSHNodeClassList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing node classes: %w", err)
	}
	for i := range list.Items {
		class := &list.Items[i]
		if class.Selects(host) && len(v1beta1.Keeping(findings, class)) == 0 {
			return nil, nil
		}
	}
	return &membership.Failure{Kind: membership.HostFault, Reason: v1beta1.ReasonPreflightFailed, Host: host.Name, Detail: describeChecks(keeping)}, nil
}

// preflightCondition is False while a check fails that can keep a host out, whether or not a class ignores it.
func preflightCondition(findings []v1beta1.PreflightFinding) status.Condition {
	keeping := v1beta1.Keeping(findings, nil)
	switch len(keeping) {
	case 0:
		return status.Condition{Type: v1beta1.ConditionPreflight, Status: metav1.ConditionTrue, Reason: "Passed"}
	case 1:
		return status.Condition{Type: v1beta1.ConditionPreflight, Status: metav1.ConditionFalse, Reason: keeping[0].Check, Message: keeping[0].Message}
	default:
		return status.Condition{Type: v1beta1.ConditionPreflight, Status: metav1.ConditionFalse, Reason: "ChecksFailed", Message: describeChecks(keeping)}
	}
}

func describeChecks(findings []v1beta1.PreflightFinding) string {
	texts := make([]string, len(findings))
	for i, f := range findings {
		texts[i] = f.Check + ": " + f.Message
	}
	return strings.Join(texts, "; ")
}
