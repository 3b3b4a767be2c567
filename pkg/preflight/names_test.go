package preflight_test

import (
	"encoding/json"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds/crdtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/preflight"
)

// The API server knows the checks by their names: one that it does not know could not be ignored, and one that is gone
// would be ignored in silence.
func TestTheAPIServerKnowsEveryCheckByName(t *testing.T) {
	want := preflight.Names()
	slices.Sort(want)
	for _, manifest := range crds.Own() {
		crd := crdtest.Decode(t, manifest)
		if crd.Spec.Names.Kind != "SSHNodeClass" {
			continue
		}
		var raw struct {
			Spec struct {
				Versions []struct {
					Schema struct {
						OpenAPIV3Schema struct {
							Properties struct {
								Spec struct {
									Properties struct {
										IgnoredPreflightChecks struct {
											Items struct{ Enum []string }
										}
									}
								}
							}
						}
					}
				}
			}
		}
		text, err := yaml.YAMLToJSON(manifest)
		if err == nil {
			err = json.Unmarshal(text, &raw)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := raw.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties.Spec.Properties.IgnoredPreflightChecks.Items.Enum
		if !slices.Equal(got, want) {
			t.Errorf("the schema lists %q, and the checks are %q: mend the marker in sshnodeclass.go and run make generate", got, want)
		}
		return
	}
	t.Fatal("no CRD of SSHNodeClass")
}
