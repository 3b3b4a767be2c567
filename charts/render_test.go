package charts_test

import (
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	app  = "karpenter-provider-ssh"
	crds = "karpenter-provider-ssh-crds"
)

func load(t *testing.T, name string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// files renders a chart with values (YAML), after its schema has seen them: file name → text.
func files(t *testing.T, name, values string) (map[string]string, error) {
	t.Helper()
	given := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	c := load(t, name)
	release := common.ReleaseOptions{Name: "kpssh", Namespace: "kpssh-controller", IsInstall: true, Revision: 1}
	all, err := util.ToRenderValues(c, given, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Engine{Strict: true}.RenderWithContext(t.Context(), c, all)
	if err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for file, text := range rendered {
		byName[path.Base(file)] = text
	}
	return byName, nil
}

// objects are those of one template of the app chart.
func objects(t *testing.T, template, values string) []unstructured.Unstructured {
	t.Helper()
	all, err := files(t, app, values)
	if err != nil {
		t.Fatal(err)
	}
	text, ok := all[template]
	if !ok {
		t.Fatalf("no template %s", template)
	}
	return parse(t, template, text)
}

func parse(t *testing.T, name, text string) []unstructured.Unstructured {
	t.Helper()
	var list []unstructured.Unstructured
	for document := range strings.SplitSeq(text, "\n---\n") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, document)
		}
		if len(object) > 0 {
			list = append(list, unstructured.Unstructured{Object: object})
		}
	}
	return list
}

// into converts the only object of a template.
func into[T any](t *testing.T, template, values string) T {
	t.Helper()
	list := objects(t, template, values)
	if len(list) != 1 {
		t.Fatalf("%s has %d objects, want one", template, len(list))
	}
	return as[T](t, list[0])
}

// as refuses fields that the kind does not have.
func as[T any](t *testing.T, object unstructured.Unstructured) T {
	t.Helper()
	var typed T
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &typed); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
	return typed
}

// typical are the files of ci/, by name.
func typical(t *testing.T) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(path.Join(app, "ci"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"defaults": ""}
	for _, entry := range entries {
		text, err := os.ReadFile(path.Join(app, "ci", entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[entry.Name()] = string(text)
	}
	if len(all) != 6 {
		t.Fatalf("%d sets of values, want the defaults and five", len(all))
	}
	return all
}

func TestTypicalValuesRender(t *testing.T) {
	for name, values := range typical(t) {
		all, err := files(t, app, values)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		seen := map[string]bool{}
		for _, template := range load(t, app).Templates {
			base := path.Base(template.Name)
			if !strings.HasSuffix(base, ".yaml") {
				continue
			}
			for _, object := range parse(t, base, all[base]) {
				id := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
				if object.GetName() == "" || object.GetAPIVersion() == "" || seen[id] {
					t.Errorf("%s, %s: %q has no name, no version, or is there twice", name, base, id)
				}
				seen[id] = true
			}
		}
		if len(seen) < 12 {
			t.Errorf("%s: only %d objects: %v", name, len(seen), slices.Sorted(maps.Keys(seen)))
		}
	}
}
