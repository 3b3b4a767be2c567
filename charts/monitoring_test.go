package charts_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ruleFile is what promtool calls a rule file, and a PrometheusRule its spec.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ruleFile
}

// dashboard is what of Grafana's format is read here.
type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID          int
		Type, Title string
		GridPos     struct{ H, W, X, Y int }
		Targets     []struct{ Expr string }
		Datasource  struct{ UID string }
	}
}

func alerts(t *testing.T) ruleFile {
	t.Helper()
	text, err := os.ReadFile(app + "/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules ruleFile
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

func documented(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMonitoringIsOffUnlessAskedFor(t *testing.T) {
	for name, values := range typical(t) {
		for _, template := range []string{"prometheusrule.yaml", "dashboard.yaml"} {
			if list := objects(t, template, values); len(list) > 0 {
				t.Errorf("%s: %s has %d objects", name, template, len(list))
			}
		}
	}
}

func TestTheRuleIsTheFileOfAlerts(t *testing.T) {
	rule := into[prometheusRule](t, "prometheusrule.yaml", "prometheusRule: {enabled: true}")
	if rule.Namespace != "kpssh-controller" || rule.APIVersion != "monitoring.coreos.com/v1" || rule.Labels["app.kubernetes.io/name"] != app {
		t.Errorf("it is %+v", rule.ObjectMeta)
	}
	if diff := cmp.Diff(alerts(t), rule.Spec); diff != "" {
		t.Error(diff)
	}
	rule = into[prometheusRule](t, "prometheusrule.yaml", "prometheusRule: {enabled: true, namespace: monitoring, labels: {release: prom}}")
	if rule.Namespace != "monitoring" || rule.Labels["release"] != "prom" {
		t.Errorf("it is %+v", rule.ObjectMeta)
	}
}

// board is the dashboard as Grafana's sidecar finds it.
func board(t *testing.T, values string) (corev1.ConfigMap, dashboard) {
	t.Helper()
	object := into[corev1.ConfigMap](t, "dashboard.yaml", values)
	var d dashboard
	if err := json.Unmarshal([]byte(object.Data[app+".json"]), &d); err != nil || len(object.Data) != 1 {
		t.Fatalf("%d files, %v", len(object.Data), err)
	}
	return object, d
}

func TestTheDashboardIsWhereTheSidecarLooks(t *testing.T) {
	object, d := board(t, "dashboard: {enabled: true}")
	if object.Namespace != "kpssh-controller" || object.Labels["grafana_dashboard"] != "1" || len(object.Annotations) > 0 {
		t.Errorf("it is %+v", object.ObjectMeta)
	}
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d, %q: no title, an id that another has, or off the grid", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && (len(p.Targets) == 0 || p.Datasource.UID != "${datasource}") {
			t.Errorf("panel %q asks nothing, or one Prometheus only", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panels %q and %q lie on each other", other, p.Title)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
	object, _ = board(t, "dashboard: {enabled: true, namespace: grafana, labels: {grafana_dashboard: null, look: here}, annotations: {grafana_folder: Karpenter}}")
	if _, there := object.Labels["grafana_dashboard"]; there || object.Namespace != "grafana" || object.Labels["look"] != "here" || object.Annotations["grafana_folder"] != "Karpenter" {
		t.Errorf("it is %+v", object.ObjectMeta)
	}
}

var (
	// notNames are the parts of an expression in which words are no names of metrics.
	notNames = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]|\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	name     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*(\s*\()?`)
	suffix   = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// metrics are the names of the metrics in an expression.
func metrics(expr string) []string {
	var names []string
	for _, word := range name.FindAllString(notNames.ReplaceAllString(expr, ""), -1) {
		if strings.HasSuffix(word, "(") || slices.Contains([]string{"and", "or", "unless", "bool", "offset"}, word) {
			continue
		}
		names = append(names, word)
	}
	return names
}

// docs/metrics.md is held to what is registered by a test of pkg/operator.
func TestQueriesAreOfDocumentedMetrics(t *testing.T) {
	text, asked := documented(t), 0
	known := func(where, expr string) {
		found := metrics(expr)
		if len(found) == 0 {
			t.Errorf("%s asks for no metric: %s", where, expr)
		}
		for _, metric := range found {
			asked++
			if !strings.Contains(text, "`"+metric+"`") && !strings.Contains(text, "`"+suffix.ReplaceAllString(metric, "")+"` | histogram") {
				t.Errorf("%s: %s is not in docs/metrics.md", where, metric)
			}
		}
	}
	_, d := board(t, "dashboard: {enabled: true}")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			known("panel "+p.Title, target.Expr)
		}
	}
	for _, group := range alerts(t).Groups {
		for _, rule := range group.Rules {
			known("alert "+rule.Alert, rule.Expr)
		}
	}
	if asked < 30 {
		t.Errorf("only %d metrics are asked for", asked)
	}
}

func TestAlertsAreDocumented(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| `(Kpssh[A-Za-z]+)` \\| (\\w+) \\|").FindAllStringSubmatch(documented(t), -1)
	var inDocs, inFile []string
	for _, row := range rows {
		inDocs = append(inDocs, row[1]+" "+row[2])
	}
	for _, group := range alerts(t).Groups {
		for _, rule := range group.Rules {
			inFile = append(inFile, rule.Alert+" "+rule.Labels["severity"])
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s does not say what it is about", rule.Alert)
			}
		}
	}
	if diff := cmp.Diff(inFile, inDocs); diff != "" {
		t.Errorf("the alerts of docs/metrics.md (+) are not those of alerts.yaml: %s", diff)
	}
}
