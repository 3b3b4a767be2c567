//go:build e2e

package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// rules are the chart's alerts.
type rules struct {
	Groups []struct{ Rules []struct{ Alert string } }
}

func alerts(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "alerts.yaml"))
	must(t, err)
	var all rules
	must(t, yaml.Unmarshal(text, &all))
	var names []string
	for _, group := range all.Groups {
		for _, rule := range group.Rules {
			names = append(names, rule.Alert)
		}
	}
	return names
}

// trials is the part of promtool's format that says which alerts are expected when.
type trials struct {
	Tests []struct {
		Cases []struct {
			Alert string `json:"alertname"`
			Want  []any  `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	}
}

func TestAlertsFireWhenTheyAreMeantTo(t *testing.T) {
	promtool := program(t, "promtool")
	const file = "testdata/alerts.test.yaml"
	for _, args := range [][]string{{"check", "rules", filepath.Join(chart, "alerts.yaml")}, {"test", "rules", file}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	text, err := os.ReadFile(file)
	must(t, err)
	var all trials
	must(t, yaml.Unmarshal(text, &all))
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, test := range all.Tests {
		for _, c := range test.Cases {
			if len(c.Want) > 0 {
				fires[c.Alert] = true
			} else {
				rests[c.Alert] = true
			}
		}
	}
	for _, alert := range alerts(t) {
		if !fires[alert] || !rests[alert] {
			t.Errorf("%s has no case in which it fires, or none in which it does not", alert)
		}
	}
}
