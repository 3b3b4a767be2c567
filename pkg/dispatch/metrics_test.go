package dispatch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
)

// Prometheus sees no increase from nothing to one, so that an alert would miss the first event of each kind.
func TestCountersBeginAtZero(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	if _, err := dispatch.NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	outcomes := []string{"ok", "reused"}
	for _, class := range constants(t, "errors.go", "Class") {
		outcomes = append(outcomes, strings.ToLower(class))
	}
	reasons := append(constants(t, "errors.go", "Reason"), constants(t, "../../signing/documents.go", "Reason")...)
	reasons = slices.DeleteFunc(append(reasons, "other"), func(reason string) bool {
		// They are of errors that are no refusals.
		return slices.Contains([]string{dispatch.ReasonExit, dispatch.ReasonSignal, dispatch.ReasonDeadline, dispatch.ReasonNoReceipt, dispatch.ReasonInterrupted}, reason)
	})
	want := map[string]bool{}
	for _, reason := range reasons {
		want["kpssh_refusals_total "+reason] = true
	}
	for _, phase := range []string{"install", "join", "leave", "uninstall"} {
		for _, outcome := range outcomes {
			want["kpssh_orders_total "+outcome+" "+phase] = true
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			if metric.GetCounter().GetValue() != 0 || !want[name] {
				t.Errorf("%s is %v", name, metric.GetCounter())
			}
			delete(want, name)
		}
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}

// constants are the values of a file's string constants of that type, or whose name begins with it.
func constants(t *testing.T, file, kind string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		typed, _ := spec.Type.(*ast.Ident)
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING || !strings.HasPrefix(spec.Names[0].Name, kind) && (typed == nil || typed.Name != kind) {
			return true
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, value)
		return true
	})
	if len(values) < 10 {
		t.Fatalf("%s has only %d constants %s", file, len(values), kind)
	}
	return values
}
