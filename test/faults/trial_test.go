//go:build faults

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// trial is one join and leave with a fault in it.
type trial struct {
	*observer
	t    *testing.T
	pool *stage.Pool
	// cutShort says that the fault may end a script before its time, which is then run again.
	cutShort bool
}

// try begins a trial on an idle pool that is cold.
func try(t *testing.T, p *stage.Pool) *trial {
	t.Helper()
	must(t, on.Until(within(t), "an idle pool", on.Idle))
	must(t, on.Forget(within(t)))
	tr := &trial{observer: observe(t), t: t, pool: p}
	tr.since = time.Now()
	return tr
}

func (tr *trial) up() { tr.t.Helper(); must(tr.t, tr.pool.Scale(within(tr.t), 1)) }

func (tr *trial) down() { tr.t.Helper(); must(tr.t, tr.pool.GiveUp(within(tr.t))) }

// running waits until the pod runs, and returns its host.
func (tr *trial) running() (host string) {
	tr.t.Helper()
	must(tr.t, on.Until(within(tr.t), "the pod to run", func(ctx context.Context) (err error) {
		_, host, err = tr.pool.Running(ctx)
		return err
	}))
	return host
}

// idle waits until everything is given back.
func (tr *trial) idle() {
	tr.t.Helper()
	must(tr.t, on.Until(within(tr.t), "the pool to be as it was", on.Idle))
}

// check holds the trial's end against what must be true after every fault: the pool is idle again by itself, no host was
// claimed twice, none was Available with something of a membership on it, no bootstrap token is left, and no phase
// ran twice for one claim.
func (tr *trial) check() {
	t := tr.t
	t.Helper()
	tr.idle()
	tr.stop()
	if len(tr.claims) == 0 {
		t.Error("no host was claimed: there was nothing to break")
	}
	if left, err := on.Tokens(within(t)); err != nil || left != "" {
		t.Errorf("token Secrets are left: %s (%v)", left, err)
	}
	for _, h := range on.Hosts() {
		if found, err := dirt(within(t), h); err != nil || found != "" {
			t.Errorf("%s is Available with %s (%v)", h.Name, found, err)
		}
		wrote, err := on.Witnessed(within(t), h)
		must(t, err)
		tr.ran(h.Name, runsOf(t, h.Name), wrote, tr.cutShort)
	}
	for _, broken := range tr.broken {
		t.Error(broken)
	}
}

// runsOf verifies what a host keeps, as an auditor does, and returns its runs, the oldest first.
func runsOf(t *testing.T, host string) []run {
	t.Helper()
	dir := t.TempDir()
	keep := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	hosts, err := on.Kubectl(within(t), "-n", stage.PoolNamespace, "get", "sshhosts", "-o", "yaml")
	must(t, err)
	kept, err := machine(t, host).Exec(within(t), "/usr/libexec/kpssh/kpssh-shim", "receipts", "--export")
	must(t, err)
	if kept == "" {
		return nil
	}
	out, err := on.CLI(within(t), "audit", "verify", "--rotated", "-o", "json",
		"--hosts", keep("hosts.yaml", hosts), keep(host+".jsonl", kept))
	must(t, err)
	var report struct{ Runs []run }
	must(t, json.Unmarshal([]byte(out), &report))
	return report.Runs
}

// rounds runs trials of a fault, each by itself, and adds them to the table.
type rounds struct {
	t         *testing.T
	began     time.Time
	n, failed int
}

func newRounds(t *testing.T) *rounds {
	r := &rounds{t: t, began: time.Now()}
	t.Cleanup(func() {
		results = append(results, fmt.Sprintf("  %-50s %3d rounds %6.0f s, %d with violations", t.Name(), r.n, time.Since(r.began).Seconds(), r.failed))
	})
	return r
}

func (r *rounds) run(name string, trial func(t *testing.T)) {
	ran := false
	well := r.t.Run(name, func(t *testing.T) { ran = true; trial(t) })
	if ran { // -run may leave it out
		r.n++
	}
	if !well {
		r.failed++
	}
}
