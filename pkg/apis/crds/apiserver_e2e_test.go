//go:build e2e

package crds_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds/crdtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// A real API server takes the CRDs, those of karpenter among them, and gives the verdicts that the
// unit tests' admission gives: the tables there can be believed.
func TestARealAPIServerGivesTheSameVerdicts(t *testing.T) {
	server, err := lab.StartAPIServer(t.Context(), lab.APIServerOptions{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := dynamic.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, manifest := range slices.Concat(crds.Own(), crds.Karpenter()) {
		object := &unstructured.Unstructured{Object: crdtest.Object(t, manifest)}
		if _, err := definitions.Create(t.Context(), object, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil {
			t.Fatalf("%s: %v", object.GetName(), err)
		}
	}
	namespaces := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	pool := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "kpssh-system"}}}
	if _, err := namespaces.Create(t.Context(), pool, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for resource, tt := range map[string]struct {
		valid string
		cases map[string]objectCase
	}{
		"sshhosts":        {validHost, hostCases()},
		"sshnodeclasses":  {validClass, classCases()},
		"sshjoinprofiles": {validProfile, profileCases()},
	} {
		var objects dynamic.ResourceInterface = client.Resource(v1beta1.GroupVersion.WithResource(resource))
		if resource == "sshhosts" {
			objects = client.Resource(v1beta1.GroupVersion.WithResource(resource)).Namespace("kpssh-system")
		}
		established(t, objects)
		for name, c := range tt.cases {
			t.Run(resource+"/"+name, func(t *testing.T) {
				object := &unstructured.Unstructured{Object: parse(t, tt.valid, c.change)}
				if _, found, _ := unstructured.NestedMap(object.Object, "status"); found {
					return // what a create says of status is dropped, not refused
				}
				_, err := objects.Create(t.Context(), object, metav1.CreateOptions{
					FieldValidation: "Strict", DryRun: []string{metav1.DryRunAll},
				})
				switch {
				case c.want == "" && err != nil:
					t.Errorf("refused: %v", err)
				case c.want != "" && err == nil:
					t.Errorf("admitted, want a refusal with %q", c.want)
				case c.want != "" && !strings.Contains(err.Error(), c.want):
					t.Errorf("refused with %v, want %q", err, c.want)
				}
			})
		}
	}
}

// established waits until the kind is served.
func established(t *testing.T, objects dynamic.ResourceInterface) {
	t.Helper()
	for {
		_, err := objects.List(t.Context(), metav1.ListOptions{})
		if err == nil {
			return
		}
		if !meta.IsNoMatchError(err) && !strings.Contains(err.Error(), "could not find the requested resource") {
			t.Fatal(err)
		}
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
}
