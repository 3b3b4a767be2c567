package crds_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds/crdtest"
)

// objectCase is an object, as the changes that make it of a valid one, and a part of the refusal; ""
// is for one that is admitted.
type objectCase struct {
	change map[string]any
	want   string
}

// parse reads a YAML object and changes it: "a/b" to a value, nil removes.
func parse(t *testing.T, manifest string, changes map[string]any) map[string]any {
	t.Helper()
	object := crdtest.Object(t, []byte(manifest))
	paths := slices.SortedFunc(maps.Keys(changes), func(a, b string) int {
		if removes, other := changes[a] == nil, changes[b] == nil; removes != other { // removals last
			if removes {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
	for _, path := range paths {
		value := changes[path]
		at, steps := object, strings.Split(path, "/")
		for _, step := range steps[:len(steps)-1] {
			next, ok := at[step].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[step] = next
			}
			at = next
		}
		last := steps[len(steps)-1]
		if value == nil {
			delete(at, last)
		} else {
			at[last] = value
		}
	}
	raw, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return crdtest.Object(t, raw)
}

// verdict holds the outcome against want: nothing, or a part of the field path and message.
func verdict(t *testing.T, errs field.ErrorList, want string) {
	t.Helper()
	switch got := errs.ToAggregate(); {
	case want == "" && got != nil:
		t.Errorf("refused: %v", got)
	case want != "" && got == nil:
		t.Errorf("accepted, want a refusal with %q", want)
	case want != "" && !strings.Contains(got.Error(), want):
		t.Errorf("refused with %v, want %q", got, want)
	}
}
