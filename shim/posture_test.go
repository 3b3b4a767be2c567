package shim

import (
	"os/exec"
	"testing"
)

// A host that is reached through another server than OpenSSH's is not examined anew in every session.
func TestPostureIsKeptWhereThereIsNoSSHD(t *testing.T) {
	h := makeHost(t)
	h.complete()
	asked, run := 0, h.run
	h.run = func(name string, args ...string) (string, error) {
		asked++
		if name == "sshd" {
			return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
		}
		return run(name, args...)
	}
	first := posture(h.hostSystem)
	before := asked
	again := posture(h.hostSystem)
	if before == 0 || asked != before || len(first.Findings) == 0 || len(again.Findings) != len(first.Findings) {
		t.Errorf("asked %d times, then %d; found %q, then %q", before, asked, first.Findings, again.Findings)
	}
}
