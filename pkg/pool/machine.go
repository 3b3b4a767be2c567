package pool

import (
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Machine is what a probe found out about the machine itself; zero values leave what is known as it is.
type Machine struct {
	Identity *v1beta1.HostIdentity
	PageSize int64
	// Checked says that Preflight is what the checks found, which may be nothing.
	Checked   bool
	Preflight []v1beta1.PreflightFinding
}

// observeMachine writes it down.
func observeMachine(h *v1beta1.SSHHost, m Machine) {
	if m.Identity != nil {
		h.Status.Identity = m.Identity.DeepCopy()
	}
	if m.PageSize > 0 {
		h.Status.ObservedPageSize = m.PageSize
	}
	if m.Checked {
		h.Status.Preflight = slices.Clone(m.Preflight)
	}
}

// sameChecks says whether two hosts fail the same checks, which is what decides which class may claim them.
func sameChecks(a, b *v1beta1.SSHHost) bool {
	return slices.EqualFunc(a.Status.Preflight, b.Status.Preflight, func(x, y v1beta1.PreflightFinding) bool { return x.Check == y.Check })
}
