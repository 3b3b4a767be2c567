package admission_test

import (
	"bytes"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/admission"
)

// What no run of the policy shows: that it is bound, that it is the whole manifest, and that it speaks of the names of
// package apis. What it refuses is tried on a real API server.
func TestEachPolicyIsBoundAndDenies(t *testing.T) {
	for _, manifest := range admission.Policies() {
		documents := bytes.Split(manifest, []byte("\n---\n"))
		if len(documents) != 2 {
			t.Fatalf("%d documents, want a policy and its binding", len(documents))
		}
		var policy admissionv1.ValidatingAdmissionPolicy
		var binding admissionv1.ValidatingAdmissionPolicyBinding
		for i, into := range []any{&policy, &binding} {
			if err := yaml.UnmarshalStrict(documents[i], into); err != nil {
				t.Fatal(err)
			}
		}
		if binding.Spec.PolicyName != policy.Name || len(binding.Spec.ValidationActions) != 1 || binding.Spec.ValidationActions[0] != admissionv1.Deny {
			t.Errorf("binding %+v of policy %q", binding.Spec, policy.Name)
		}
		if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Fail {
			t.Error("a policy that cannot be evaluated lets everything through")
		}
		if group := policy.Spec.MatchConstraints.ResourceRules[0].APIGroups; len(group) != 1 || group[0] != apis.Group {
			t.Errorf("it is about %q", group)
		}
		if !strings.Contains(policy.Spec.MatchConditions[0].Expression, "'"+apis.AnnotationAbandon+"'") {
			t.Errorf("it does not know %s", apis.AnnotationAbandon)
		}
	}
}
