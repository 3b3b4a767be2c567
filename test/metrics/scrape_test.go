//go:build e2e

package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// TestARealPrometheus causes the fault of each alert on real hosts, and then asks what the dashboard asks. The alerts
// are the chart's but for how long each waits.
func TestARealPrometheus(t *testing.T) {
	on := up(t)
	text, err := os.ReadFile(filepath.Join(chart, "alerts.yaml"))
	must(t, err)
	p := startPrometheus(t, on, regexp.MustCompile(`(?m)^( +for: ).*$`).ReplaceAllString(string(text), "${1}0s"))

	p.fires("KpsshControllerDown")
	must(t, on.StartController(t.Context()))
	must(t, on.WaitAvailable(within(t)))
	p.quiet()

	pool := watched(t, on)
	run(t, on, pool)
	must(t, pool.GiveUp(within(t)))
	until(t, on, "the host to be released", on.Idle)
	host := run(t, on, pool)
	p.quiet() // nothing of a round that goes well is worth an alert, some of which last for an hour
	refuseOrders(t, on, p, pool)
	startKubelet(t, on, p, host)
	failJoins(t, on, p)
	loseHost(t, on, p, pool)

	askDashboard(t, p)
	compareDocumented(t, p)
}

// up is a stage whose controller is not started yet. It is one that forgives soon.
func up(t *testing.T) *stage.Stage {
	t.Helper()
	repo, err := filepath.Abs("../..")
	must(t, err)
	on, err := stage.Up(t.Context(), stage.Options{
		Repo: repo, Hosts: 2, NoController: true, Log: func(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) },
		ControllerArgs: []string{
			"--metrics-port", metricsPort, "--disable-leader-election", "--probe-interval", "5s", "--probe-timeout", "5s",
			"--failure-backoff", "1s", "--failure-backoff-max", "2s", "--quarantine-after", "2",
		},
	})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			if err := on.KeepLogs(); err == nil {
				t.Logf("the logs of all processes are kept in %s", on.LogDir())
			}
		}
		if err := on.Close(); err != nil {
			t.Error(err)
		}
	})
	return on
}

// watched is a pool that has hosts prepared.
func watched(t *testing.T, on *stage.Stage) *stage.Pool {
	t.Helper()
	pool, err := on.NewPool("watched")
	must(t, err)
	all := intstr.FromString(v1beta1.PrepareAll)
	pool.Class.Spec.Prepare = &all
	must(t, pool.Sign(within(t)))
	must(t, pool.Apply(within(t)))
	must(t, pool.WaitReady(within(t)))
	return pool
}

// run has a pod run on a host of the pool.
func run(t *testing.T, on *stage.Stage, pool *stage.Pool) (host string) {
	t.Helper()
	must(t, pool.Scale(within(t), 1))
	until(t, on, "the pod to run", func(ctx context.Context) (err error) {
		_, host, err = pool.Running(ctx)
		return err
	})
	return host
}

// refuseOrders gives the controller a key that no root lists, and has it release a host: the host refuses.
func refuseOrders(t *testing.T, on *stage.Stage, p *prometheus, pool *stage.Pool) {
	t.Helper()
	const secret = "20-dispatch-key.secret.yaml"
	other := filepath.Join(on.Dir(), "other-trust")
	_, err := on.CLI(within(t), "init", "--dir", other, "--no-passphrase")
	must(t, err)
	apply := func(dir string) {
		b, err := os.ReadFile(filepath.Join(dir, "manifests", secret))
		must(t, err)
		must(t, on.Apply(within(t), string(b)))
	}
	apply(other)
	p.fires("KpsshTrustInvalid")
	must(t, pool.Scale(within(t), 0)) // and consolidation takes the node
	p.fires("KpsshOrdersRefused")
	apply(on.TrustDir)
	p.quiet("KpsshTrustInvalid")
	until(t, on, "the host to be released", on.Idle)
}

// startKubelet starts the kubelet of a free host, as somebody does who thinks that it should be a node.
func startKubelet(t *testing.T, on *stage.Stage, p *prometheus, host string) {
	t.Helper()
	_, err := machine(t, on, host).Exec(within(t), "sh", "-c",
		"mkdir -p /etc/kubernetes/kpssh && touch /etc/kubernetes/kpssh/kubelet.env && systemctl start --no-block kubelet")
	must(t, err)
	p.fires("KpsshZombieAction")
	until(t, on, "the kubelet to be stopped", on.Idle)
}

// failJoins asks for nodes of a profile whose join fails, until enough of them have.
func failJoins(t *testing.T, on *stage.Stage, p *prometheus) {
	t.Helper()
	pool, err := on.NewPool("failing")
	must(t, err)
	pool.Profile.Spec.Scripts.Join = "#!/bin/bash\nset -euo pipefail\nexit 1\n"
	must(t, pool.Sign(within(t)))
	must(t, pool.Apply(within(t)))
	must(t, pool.WaitReady(within(t)))
	must(t, pool.Scale(within(t), 1))
	p.fires("KpsshJoinsFailing", "KpsshHostsQuarantined")
	must(t, pool.GiveUp(within(t)))
	must(t, pool.Remove(within(t)))
	until(t, on, "hosts to be forgiven", on.Idle)
}

// loseHost cuts a host off while an allowlist is signed that holds for three days, which the other host takes.
func loseHost(t *testing.T, on *stage.Stage, p *prometheus, pool *stage.Pool) {
	t.Helper()
	h := on.Hosts()[1]
	must(t, h.CutNetwork(within(t)))
	p.fires("KpsshHostsUnhealthy")
	_, err := on.CLI(within(t), "profile", "sign", "--pin-cluster", "--valid-days", "3", filepath.Join(on.Dir(), pool.Name+".yaml"))
	must(t, err)
	must(t, on.ApplyTrust(within(t)))
	p.fires("KpsshTrustExpiryNear", "KpsshTrustExpiryImminent", "KpsshHostsBehind")
	must(t, h.RestoreNetwork(within(t)))
	p.quiet("KpsshHostsBehind", "KpsshHostsUnhealthy")
}

func machine(t *testing.T, on *stage.Stage, name string) *lab.Host {
	t.Helper()
	for _, h := range on.Hosts() {
		if h.Name == name {
			return h
		}
	}
	t.Fatalf("there is no host %q", name)
	return nil
}

// askDashboard asks each question of the dashboard, as Grafana fills it in.
func askDashboard(t *testing.T, p *prometheus) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "dashboard.json"))
	must(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(text, &dashboard))
	asked := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			asked++
			n, err := p.series(strings.ReplaceAll(target.Expr, "$__rate_interval", "1m"))
			if err == nil && n == 0 {
				err = errors.New("there is no data")
			}
			if err != nil {
				t.Errorf("panel %q, %s: %v", panel.Title, target.Expr, err)
			}
		}
	}
	if asked < 20 {
		t.Errorf("only %d questions", asked)
	}
}

// compareDocumented holds what was scraped to docs/metrics.md, both ways.
func compareDocumented(t *testing.T, p *prometheus) {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	must(t, err)
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(kpssh_[a-z_]+)` \\| (\\w+) ").FindAllStringSubmatch(string(text), -1) {
		if row[2] != "histogram" {
			documented[row[1]] = true
			continue
		}
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			documented[row[1]+suffix] = true
		}
	}
	scraped := p.names()
	for name := range documented {
		if !scraped[name] {
			t.Errorf("%s is documented and was not scraped", name)
		}
	}
	for name := range scraped {
		if strings.HasPrefix(name, "kpssh_") && !documented[name] {
			t.Errorf("%s was scraped and is not documented", name)
		}
	}
}
