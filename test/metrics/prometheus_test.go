//go:build e2e

package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

const chart = "../../charts/karpenter-provider-ssh"

// program is one of Prometheus' own, of the distribution's package.
func program(t *testing.T, name string) string {
	t.Helper()
	cache, err := cachedir.Default()
	must(t, err)
	log := func(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }
	dir, err := cachedir.Fill(t.Context(), cache, "prometheus/"+runtime.GOARCH, log, func(ctx context.Context, dir string) (err error) {
		done := cachedir.Step(log, nil, "unpacking the distribution's Prometheus")
		defer func() { done(err) }()
		return cachedir.UnpackDebian(ctx, dir, "prometheus", "prometheus", "promtool")
	})
	must(t, err)
	return filepath.Join(dir, name)
}

// prometheus is one that runs in a lab.
type prometheus struct {
	t  *testing.T
	on *stage.Stage
}

const (
	// metricsPort is the controller's.
	metricsPort = "8080"
	address     = "127.0.0.1:9090"
)

// startPrometheus starts one that scrapes the controller each second and has the alerts of a file of rules.
func startPrometheus(t *testing.T, on *stage.Stage, rules string) *prometheus {
	t.Helper()
	dir := filepath.Join(on.Dir(), "prometheus")
	must(t, os.MkdirAll(dir, 0o755))
	config := filepath.Join(dir, "prometheus.yml")
	must(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), []byte(rules), 0o600))
	must(t, os.WriteFile(config, []byte(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: karpenter-provider-ssh
    static_configs: [{targets: ["127.0.0.1:`+metricsPort+`"]}]
`), 0o600))
	_, err := on.StartProcess(lab.ProcessSpec{Name: "prometheus", Argv: []string{
		program(t, "prometheus"), "--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address,
	}})
	must(t, err)
	p := &prometheus{t: t, on: on}
	until(t, on, "Prometheus to be ready", func(ctx context.Context) error {
		_, err := p.get(ctx, "/api/v1/alerts", nil)
		return err
	})
	return p
}

// answer is what Prometheus' API says.
type answer struct {
	Status, Error string
	Data          json.RawMessage
}

func (p *prometheus) get(ctx context.Context, path string, query url.Values) (json.RawMessage, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: p.on.DialContext, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return nil, err
	}
	if a.Status != "success" {
		return nil, fmt.Errorf("asking %s %s: %s", path, query, a.Error)
	}
	return a.Data, nil
}

// series is how many series an expression has now.
func (p *prometheus) series(expr string) (int, error) {
	data, err := p.get(p.t.Context(), "/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return 0, err
	}
	var result struct {
		Result []json.RawMessage
	}
	err = json.Unmarshal(data, &result)
	return len(result.Result), err
}

// names are those of all metrics that were scraped.
func (p *prometheus) names() map[string]bool {
	p.t.Helper()
	data, err := p.get(p.t.Context(), "/api/v1/label/__name__/values", nil)
	must(p.t, err)
	var list []string
	must(p.t, json.Unmarshal(data, &list))
	names := map[string]bool{}
	for _, name := range list {
		names[name] = true
	}
	return names
}

// firing are the alerts that fire, each with what it says.
func (p *prometheus) firing(ctx context.Context) (map[string]string, error) {
	data, err := p.get(ctx, "/api/v1/alerts", nil)
	if err != nil {
		return nil, err
	}
	var list struct {
		Alerts []struct {
			Labels, Annotations map[string]string
			State               string
		}
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	firing := map[string]string{}
	for _, alert := range list.Alerts {
		if name := alert.Labels["alertname"]; alert.State == "firing" {
			firing[name] = strings.TrimSpace(firing[name] + " " + alert.Annotations["summary"])
		}
	}
	return firing, nil
}

// fires waits for alerts.
func (p *prometheus) fires(alerts ...string) {
	p.t.Helper()
	until(p.t, p.on, strings.Join(alerts, ", ")+" to fire", func(ctx context.Context) error {
		firing, err := p.firing(ctx)
		if err != nil {
			return err
		}
		for _, alert := range alerts {
			if _, ok := firing[alert]; !ok {
				return fmt.Errorf("%s does not; %v do", alert, firing)
			}
		}
		return nil
	})
	firing, err := p.firing(p.t.Context())
	must(p.t, err)
	for _, alert := range alerts {
		p.t.Logf("%s: %s", alert, firing[alert])
	}
}

// quiet waits until those alerts do not fire, or none at all when none is named.
func (p *prometheus) quiet(alerts ...string) {
	p.t.Helper()
	until(p.t, p.on, "alerts to end", func(ctx context.Context) error {
		firing, err := p.firing(ctx)
		if err != nil {
			return err
		}
		for name, says := range firing {
			for _, alert := range alerts {
				if alert == name {
					return fmt.Errorf("%s fires: %s", name, says)
				}
			}
			if len(alerts) == 0 {
				return fmt.Errorf("%s fires: %s", name, says)
			}
		}
		return nil
	})
}

// deadline bounds one wait for something that takes seconds on an idle machine.
const deadline = 4 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, on *stage.Stage, what string, check func(context.Context) error) {
	t.Helper()
	must(t, on.Until(within(t), what, check))
}
