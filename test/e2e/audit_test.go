//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// audited verifies, as an auditor does, what the controller has logged together with what the hosts keep, and demands
// that each round is in both, each phase once.
func audited(t *testing.T, rounds ...stage.Round) {
	t.Helper()
	dir := t.TempDir()
	keep := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	hosts, err := on.Kubectl(within(t), "-n", stage.PoolNamespace, "get", "sshhosts", "-o", "yaml")
	must(t, err)
	args := []string{"audit", "verify", "--mixed", "-o", "json", "--hosts", keep("hosts.yaml", hosts), on.Controller().LogPath}
	for _, h := range on.Hosts() {
		kept, err := h.Exec(within(t), "/usr/libexec/kpssh/kpssh-shim", "receipts", "--export")
		must(t, err)
		args = append(args, keep(h.Name+".jsonl", kept))
	}
	out, err := on.CLI(within(t), args...)
	must(t, err)
	var report struct {
		Verdict string
		Gaps    []any
		Runs    []struct {
			Host, NodeClaim, Profile, Phase, Outcome, Verdict string
			Sources                                           []string
		}
	}
	must(t, json.Unmarshal([]byte(out), &report))
	if report.Verdict != "ok" || len(report.Gaps) > 0 {
		t.Errorf("verdict %s, gaps %v", report.Verdict, report.Gaps)
	}
	for _, round := range rounds {
		phases := map[string]int{}
		installed := false
		for _, r := range report.Runs {
			ok := r.Outcome == "ok" && r.Verdict == "ok"
			installed = installed || ok && r.Host == round.Host && r.Phase == "install"
			if r.NodeClaim != round.NodeClaim {
				continue
			}
			phases[r.Phase]++
			if !ok || r.Host != round.Host || strings.Join(r.Sources, "+") != "controller+host" {
				t.Errorf("the trail has %+v", r)
			}
		}
		if !installed || phases["install"] > 1 || phases["join"] != 1 || phases["leave"] != 1 {
			t.Errorf("NodeClaim %s on %s: the trail has %v", round.NodeClaim, round.Host, phases)
		}
		events, err := on.Kubectl(within(t), "get", "events", "-A", "--field-selector", "reason=RunEnded,involvedObject.name="+round.Host,
			"-o", "custom-columns=M:.message", "--no-headers")
		must(t, err)
		// From the eleventh within ten minutes on, client-go keeps one event for all of a host (EventCorrelator), as docs/audit.md
		// says: the tests before this one may have used them up. The trail above has each.
		if strings.Contains(events, "(combined from similar events)") {
			continue
		}
		for _, phase := range []string{"join", "leave"} {
			if n := strings.Count(events, phase+" of tls-bootstrap@1 for NodeClaim "+round.NodeClaim+": ok; order "); n != 1 {
				t.Errorf("%d events tell of the %s for NodeClaim %s: %s", n, phase, round.NodeClaim, events)
			}
		}
	}
}
