package v1beta1

import "slices"

// Keeping are those of the findings that keep a host from the class: neither advisory nor ignored by it.
func Keeping(findings []PreflightFinding, class *SSHNodeClass) []PreflightFinding {
	return slices.DeleteFunc(slices.Clone(findings), func(f PreflightFinding) bool {
		return f.Advisory || class != nil && slices.Contains(class.Spec.IgnoredPreflightChecks, f.Check)
	})
}

// PassesFor says whether the host's last probe found nothing that keeps it from the class.
func (h *SSHHost) PassesFor(class *SSHNodeClass) bool {
	return len(h.Status.Preflight) == 0 || len(Keeping(h.Status.Preflight, class)) == 0
}
