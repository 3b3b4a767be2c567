package charts_test

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Issue 5: no write to the spec of SSHHost or SSHJoinProfile, which a stolen controller could have hosts dialled with;
// and Secrets only in the namespaces that roles are for.
func TestNoRoleWritesSpecsAndTheClusterRoleLeavesSecretsAlone(t *testing.T) {
	reads := []string{"get", "list", "watch"}
	for name, values := range typical(t) {
		seen := map[string]int{} // role of which kind → how many
		for _, template := range []string{"clusterrole.yaml", "role.yaml", "role-pool.yaml", "role-kube-system.yaml", "role-kube-public.yaml"} {
			for _, object := range objects(t, template, values) {
				kind := object.GetKind()
				if kind != "ClusterRole" && kind != "Role" {
					continue
				}
				seen[kind]++
				for _, rule := range as[rbacv1.Role](t, object).Rules {
					writes := slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains(reads, verb) })
					for _, resource := range rule.Resources {
						switch {
						case resource == "*" || kind == "ClusterRole" && resource == "secrets":
							t.Errorf("%s: %s has %v of %s", name, template, rule.Verbs, resource)
						case writes && (resource == "sshhosts" || resource == "sshjoinprofiles"):
							t.Errorf("%s: %s has %v of %s", name, template, rule.Verbs, resource)
						}
					}
				}
			}
		}
		if seen["ClusterRole"] != 1 || seen["Role"] != 4 {
			t.Errorf("%s: the roles are %v", name, seen)
		}
	}
}
