package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func socketpair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b"), nil
}

// marking is a script that leaves a line in a file, so that a test can count its runs.
func marking(t testing.TB, then string) (script, marker string) {
	marker = filepath.Join(t.TempDir(), "runs")
	return "echo run >> " + marker + "\n" + then, marker
}

func runs(t testing.TB, marker string) int {
	data, err := os.ReadFile(marker)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(data), "run\n")
}

func TestOrderRunsAllowedScript(t *testing.T) {
	script, marker := marking(t, `echo "node $KPSSH_NODE_NAME, token ${#KPSSH_BOOTSTRAP_TOKEN}"; exit 3`)
	w := newWorld(t, "join: "+script)
	r, out := w.order(signing.PhaseJoin, script, "uid-1", 7, func(p *plan) {
		p.Params["KPSSH_NODE_NAME"] = "node-a"
		p.Secrets["KPSSH_BOOTSTRAP_TOKEN"] = "abcdef.0123456789abcdef"
	})
	if r.Outcome != signing.OutcomeFailed || r.ExitCode != 3 || r.Claim != "uid-1" || r.Fence != 7 || r.Phase != signing.PhaseJoin {
		t.Errorf("receipt %+v", r)
	}
	if want := "node node-a, token 23\n"; out != want {
		t.Errorf("output %q, want %q", out, want)
	}
	if runs(t, marker) != 1 {
		t.Errorf("%d runs", runs(t, marker))
	}
	again, kept := w.collect(r.Order)
	if again.Outcome != r.Outcome || again.Order != r.Order || kept != out {
		t.Errorf("collected %+v, %q", again, kept)
	}
	c := w.connect()
	if c.hello.Claim != (signing.Claim{UID: "uid-1", Fence: 7}) {
		t.Errorf("claim in the next hello: %+v", c.hello.Claim)
	}
	last := c.hello.LastRun
	if last == nil || last.Order != r.Order || last.State != signing.RunFinished || last.Outcome != signing.OutcomeFailed {
		t.Errorf("last run in the next hello: %+v", last)
	}
	if len(c.hello.Scripts) != 1 || c.hello.Scripts[0] != r.Script {
		t.Errorf("scripts in the next hello: %v", c.hello.Scripts)
	}
	if !strings.Contains(w.logged(), "kpssh-shim: run: failed: order "+r.Order) {
		t.Errorf("log: %s", w.logged())
	}
}
