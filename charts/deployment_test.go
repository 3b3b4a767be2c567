package charts_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// What Pod Security calls restricted, and nothing to write on.
func TestThePodIsRestricted(t *testing.T) {
	for name, values := range typical(t) {
		spec := into[appsv1.Deployment](t, "deployment.yaml", values).Spec.Template.Spec
		if len(spec.Containers) != 1 {
			t.Fatalf("%s: %d containers", name, len(spec.Containers))
		}
		pod, c := spec.SecurityContext, spec.Containers[0].SecurityContext
		if pod == nil || c == nil {
			t.Fatalf("%s: no security context", name)
		}
		if pod.RunAsNonRoot == nil || !*pod.RunAsNonRoot || pod.SeccompProfile == nil || pod.SeccompProfile.Type != "RuntimeDefault" {
			t.Errorf("%s: the pod's security context is %+v", name, pod)
		}
		if c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation || c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem ||
			c.Capabilities == nil || len(c.Capabilities.Drop) != 1 || c.Capabilities.Drop[0] != "ALL" || len(c.Capabilities.Add) > 0 {
			t.Errorf("%s: the container's security context is %+v", name, c)
		}
	}
}
