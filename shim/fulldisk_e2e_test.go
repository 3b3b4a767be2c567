//go:build e2e

package shim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// fullDisk makes the host's state live on a small file system of its own, and fill fills that.
func fullDisk(t *testing.T) (parent string, fill func()) {
	t.Helper()
	parent = t.TempDir()
	if err := unix.Mount("kpssh-test", parent, "tmpfs", 0, "size=6m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(parent, 0); err != nil {
			t.Error(err)
		}
	})
	return parent, func() {
		t.Helper()
		f, err := os.Create(filepath.Join(parent, "filler"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for chunk := 64 << 10; chunk > 0; {
			if _, err := f.Write(make([]byte, chunk)); errors.Is(err, unix.ENOSPC) {
				chunk /= 2
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A disk that fills up after enrolment keeps neither a leave from running nor its receipt from being kept, and one that
// was full before the trail was made (a shim that is upgraded) still lets the host be left.
func TestAFullDiskHindersNoLeave(t *testing.T) {
	for name, upgraded := range map[string]bool{"the trail was made at enrolment": false, "there is no trail yet": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "join: "+noop, "leave: "+noop)
			parent, fill := fullDisk(t)
			w.cfg.State = filepath.Join(parent, "state")
			if err := MakeIdentity(w.cfg.State, w.Roots[1], false); err != nil {
				t.Fatal(err)
			}
			w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
			if upgraded {
				w.swap(receiptDir, func(string) error { return nil })
			}
			fill()
			w.mustRun(signing.PhaseLeave, noop, "uid-1", 1)
			rec, err := readState(w)
			if err != nil || rec.Claim.UID != "" || rec.Run.State != signing.RunFinished {
				t.Errorf("state %+v, %v", rec, err)
			}
			want := "1 join uid-1 ok\n2 leave uid-1 ok\n"
			if upgraded {
				want = "2 leave uid-1 ok\n" // from the state file
			}
			if got := told(w.exported()); got != want {
				t.Errorf("exported\n%swant\n%s", got, want)
			}
		})
	}
}
