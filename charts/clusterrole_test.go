package charts_test

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Issue 5: no write to the spec of SSHHost or SSHJoinProfile, which a stolen controller could have hosts dialled with;
// and Secrets only in the namespaces that roles are for.
func TestTheClusterRoleLeavesSpecsAndSecretsAlone(t *testing.T) {
	reads := []string{"get", "list", "watch"}
	for name, values := range typical(t) {
		for _, object := range objects(t, "clusterrole.yaml", values) {
			if object.GetKind() != "ClusterRole" {
				continue
			}
			for _, rule := range as[rbacv1.ClusterRole](t, object).Rules {
				writes := slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains(reads, verb) })
				for _, resource := range rule.Resources {
					switch {
					case resource == "secrets" || resource == "*":
						t.Errorf("%s: %v of %s everywhere", name, rule.Verbs, resource)
					case writes && (resource == "sshhosts" || resource == "sshjoinprofiles"):
						t.Errorf("%s: %v of %s", name, rule.Verbs, resource)
					}
				}
			}
		}
	}
}
