package pool

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/window"
)

// Parking says whether a free host belongs to its operator, and not to the pool, at the moment.
type Parking struct {
	// Reason is empty when the host is not parked; else why it is, with Message for people.
	Reason, Message string
	// Next is when to ask again, should nothing about the host change before; zero for never.
	Next time.Time
}

// ParkingOf says whether the host is parked: by the operator's annotation, or by a maintenance window. A window that
// cannot be read is taken to be open: a host that is not used is noticed, and one that is used while somebody works on it
// is noticed too late.
func ParkingOf(host *v1beta1.SSHHost, now time.Time) Parking {
	status, err := window.At(host.Spec.MaintenanceWindows, now)
	p := Parking{Next: status.Next}
	switch {
	case host.InMaintenance():
		p.Reason, p.Message = v1beta1.ReasonMaintenance, "parked by the maintenance annotation"
	case err != nil:
		p.Reason, p.Message = v1beta1.ReasonMaintenanceWindowInvalid, "not claimed until that is put right: "+err.Error()
	case status.Open:
		p.Reason, p.Message = v1beta1.ReasonMaintenanceWindow, status.Message
	}
	return p
}

// parked is ParkingOf now.
func (p *Pool) parked(host *v1beta1.SSHHost) Parking { return ParkingOf(host, p.clock.Now()) }

// SyncMaintenance makes the state follow what the operator says: a free host that is parked goes to Maintenance, one in
// Maintenance that is not goes to Pending, and so does one whose failures are forgotten, to be probed at once. A claimed
// host, and one that is Leaving, is left as it is.
func (p *Pool) SyncMaintenance(ctx context.Context, host *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
	if host.Status.ClaimRef != nil || host.Status.State == v1beta1.HostLeaving {
		return host.DeepCopy(), nil
	}
	return p.swap(ctx, host, func(h *v1beta1.SSHHost) error {
		forgiven := forgive(h)
		parking, inside := p.parked(h), h.Status.State == v1beta1.HostMaintenance
		switch {
		case parking.Reason != "" && !inside:
			return p.move(h, v1beta1.HostMaintenance, parking.Reason, parking.Message)
		case parking.Reason != "":
			p.setCondition(h, v1beta1.ConditionReady, metav1.ConditionFalse, parking.Reason, parking.Message)
		case inside:
			return p.move(h, v1beta1.HostPending, v1beta1.ReasonNotProbed, "maintenance ended")
		case forgiven:
			return p.move(h, v1beta1.HostPending, v1beta1.ReasonNotProbed, "failures are forgotten")
		}
		return nil
	})
}
