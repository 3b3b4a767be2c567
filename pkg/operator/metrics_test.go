package operator

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/prepare"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// registered keeps the collectors that are registered with it.
type registered struct {
	*prometheus.Registry
	all []prometheus.Collector
}

func (r *registered) Register(c prometheus.Collector) error {
	r.all = append(r.all, c)
	return r.Registry.Register(c)
}

// everything is registered as the operator registers it.
func everything(t *testing.T) *registered {
	t.Helper()
	r := &registered{Registry: prometheus.NewRegistry()}
	hosts := pool.NewInventory("pool", instancetype.Shape)
	host := &v1beta1.SSHHost{}
	host.Namespace, host.Name, host.UID, host.ResourceVersion = "pool", "host", "uid", "1"
	hosts.OnAdd(host, true)
	newest := dispatch.Versions{Root: 1, Allowlist: 1, DispatchKeyListed: true}
	_, err := dispatch.NewMetrics(r)
	for _, problem := range []error{err,
		second(dispatch.NewAuditLog(dispatch.AuditOptions{Out: io.Discard, Registry: r})),
		second(membership.NewMetrics(r)),
		second(prepare.NewMetrics(r)),
		r.Register(newConnectionCollector(func() remote.PoolStats { return remote.PoolStats{} })),
		r.Register(pool.NewCollector(hosts)),
		r.Register(membership.NewTrustCollector(hosts, func() (dispatch.Versions, error) { return newest, nil })),
	} {
		if problem != nil {
			t.Fatal(problem)
		}
	}
	return r
}

func second[T any](_ T, err error) error { return err }

var describedAs = regexp.MustCompile(`^Desc\{fqName: "([a-z_]+)", help: "(.*)", unit: "", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

// rows are what docs/metrics.md has to say of the metrics of a registry, in order.
func (r *registered) rows(t *testing.T) []string {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, family := range families {
		kinds[family.GetName()] = strings.ToLower(family.GetType().String())
	}
	var rows []string
	for _, collector := range r.all {
		for _, d := range descriptions(collector) {
			parts := describedAs.FindStringSubmatch(d.String())
			if parts == nil {
				t.Fatalf("cannot read %s", d)
			}
			name, labels := parts[1], "–"
			kind := kinds[name]
			switch collector.(type) { // which have no values yet
			case *prometheus.HistogramVec:
				kind = "histogram"
			case *prometheus.GaugeVec:
				kind = "gauge"
			}
			if parts[3] != "" {
				labels = "`" + strings.ReplaceAll(parts[3], ",", "`, `") + "`"
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", name, kind, labels, parts[2]))
		}
	}
	slices.Sort(rows)
	return rows
}

func descriptions(c prometheus.Collector) []*prometheus.Desc {
	out := make(chan *prometheus.Desc)
	go func() { defer close(out); c.Describe(out) }()
	var all []*prometheus.Desc
	for d := range out {
		all = append(all, d)
	}
	return all
}

func TestEveryMetricIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `kpssh_") {
			documented = append(documented, strings.TrimSpace(line))
		}
	}
	rows := everything(t).rows(t)
	if diff := cmp.Diff(rows, documented); diff != "" {
		t.Errorf("the table of docs/metrics.md is not that of the code (+), which is:\n%s\n%s", strings.Join(rows, "\n"), diff)
	}
	for _, row := range rows {
		if strings.Contains(row, "|  |") {
			t.Errorf("no type, or no meaning: %s", row)
		}
	}
}

// Without it a metric that is registered by something new would be missing in the test above, too.
func TestEveryMetricOfTheCodeIsRegistered(t *testing.T) {
	rows := strings.Join(everything(t).rows(t), "\n")
	name := regexp.MustCompile(`"(kpssh_[a-z_]+)"`)
	found := 0
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && (entry.Name() == "test" || strings.HasPrefix(entry.Name(), ".git")) {
			if entry != nil && entry.IsDir() && err == nil {
				return filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range name.FindAllSubmatch(source, -1) {
			found++
			if !strings.Contains(rows, "`"+string(match[1])+"`") {
				t.Errorf("%s: %s is not registered by the test", path, match[1])
			}
		}
		return nil
	})
	if err != nil || found < 20 {
		t.Errorf("%d names found, %v", found, err)
	}
}

// The names of core's metrics in docs/metrics.md and, through it, on the dashboard are core's own.
func TestDocumentedMetricsOfCoreExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(karpenter_[a-z_]+)`").FindAllSubmatch(text, -1)
	if len(names) == 0 {
		t.Error("none is documented")
	}
	for _, name := range names {
		impostor := prometheus.NewGauge(prometheus.GaugeOpts{Name: string(name[1])})
		if err := crmetrics.Registry.Register(impostor); err == nil {
			crmetrics.Registry.Unregister(impostor)
			t.Errorf("core has no metric %s", name[1])
		}
	}
}
