//go:build e2e

package threats

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// systemd stands in for kpssh.socket: it starts a root stage for each connection. The function that it returns waits until
// all of them have ended.
func (h *host) systemd() (ended func()) {
	h.t.Helper()
	l, err := net.Listen("unix", h.path("run/kpssh/kpssh.sock"))
	if err != nil {
		h.t.Fatal(err)
	}
	var stages sync.WaitGroup
	h.t.Cleanup(func() {
		_ = l.Close()
		stages.Wait()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f, err := conn.(*net.UnixConn).File()
			_ = conn.Close()
			if err != nil {
				h.t.Error(err)
				continue
			}
			cmd := exec.Command(binaries.shim, "root-stage", "--socket")
			cmd.Stdin, cmd.Stdout, cmd.Env = f, f, []string{}
			stages.Add(1)
			if err := h.inside(cmd.Start); err != nil {
				h.t.Error(err)
			}
			_ = f.Close()
			go func() {
				defer stages.Done()
				_ = cmd.Wait()
			}()
		}
	}()
	return stages.Wait
}

// relay is a session through the unprivileged stage, as sshd starts it: that process is the client's end on the host.
func (h *host) relay() *session {
	h.t.Helper()
	ours, theirs := socketpair(h.t)
	defer theirs.Close()
	s := &session{h: h, conn: ours, in: wire.NewReader(ours)}
	s.cmd = exec.Command(binaries.shim)
	s.cmd.Args = []string{"-kpssh-shim"}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = theirs, theirs, &s.log, []string{}
	if err := h.inside(s.cmd.Start); err != nil {
		h.t.Fatal(err)
	}
	if err := s.greet(); err != nil {
		h.t.Fatalf("hello: %v; log: %s", err, &s.log)
	}
	return s
}

// Whenever the connection dies, there is one run, it goes on to its end, and its receipt can be had; or the order was still
// on its way, and there is none.
func TestD1_ARunOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	const cuts = 20
	script := "join: " + mark + "\nfor i in 1 2 3 4 5 6; do echo tick $i; sleep 0.05; done; echo \"$KPSSH_NODE_NAME\" > /var/lib/network-is-gone"
	h := newHost(t, newWorld(t, script))
	ended := h.systemd()
	ran := 0
	for i := range cuts {
		s := h.relay()
		p := s.plan(script, "uid-1", int64(i+1))
		p.Params["KPSSH_NODE_NAME"] = fmt.Sprintf("node-%d", i)
		s.bind(p)
		order, err := signing.PayloadDigest(sign(t, &p.Order, p.By...))
		if err != nil {
			t.Fatal(err)
		}
		s.submit(p)
		heard := 0
		if i%2 == 0 { // in the middle of what it says; the others anywhere, also before it says anything
			for range 1 + rand.IntN(3) {
				if _, _, err := s.in.Next(); err != nil {
					t.Fatal(err)
				}
				heard++
			}
		} else {
			time.Sleep(time.Duration(rand.Int64N(int64(350 * time.Millisecond))))
		}
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s.end()
		var a answer
		var last signing.Reason
		eventually(t, "the receipt", func() bool {
			c := h.relay()
			defer c.end()
			c.frame(wire.Collect, []byte(order))
			a = c.answered()
			last = a.Reason
			return last != signing.ReasonBusy && (heard == 0 || last != signing.ReasonUnknownRun)
		})
		if last == signing.ReasonUnknownRun {
			// Nobody reads for the killed relay any more: what it has not passed on by now is lost.
			ended()
			c := h.relay()
			c.frame(wire.Collect, []byte(order))
			a = c.answered()
			c.end()
			if last = a.Reason; last == signing.ReasonUnknownRun {
				if got := h.marks(); got != ran {
					t.Fatalf("D1 cut %d: %d runs, one of which the host knows nothing of", i, got)
				}
				continue
			}
		}
		ran++
		if a.Outcome != signing.OutcomeOK || strings.Count(a.output, "tick") != 6 || a.Order != order {
			t.Errorf("D1 cut %d, after %d frames: %s %q, output %q", i, heard, a.Outcome, last, a.output)
		}
		if got := h.marks(); got != ran {
			t.Fatalf("D1 cut %d: %d runs, not %d", i, got, ran)
		}
		if got := h.read(t, "lib/network-is-gone"); got != fmt.Sprintf("node-%d\n", i) {
			t.Errorf("D1 cut %d: the script did not come to its end: %q", i, got)
		}
	}
}

// A host that cannot write its state refuses before anything runs, and still says who it is and what ran.
func TestD4_AHostThatCannotWriteRunsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join, leave)
	first := newHost(t, w)
	done := first.mustRun(join, "uid-1", 5)
	for name, c := range map[string]struct {
		disk
		newList bool
		// runs says that a host like this may still run what needs nothing new on its disk.
		runs bool
	}{
		"D4 a full disk":                  {disk: disk{options: "size=6m", full: true}, runs: true},
		"D4 no inodes left":               {disk: disk{options: "size=12m,nr_inodes=400", noInodes: true}, runs: true},
		"D4 mounted read-only":            {disk: disk{options: "size=12m", flags: unix.MS_RDONLY}},
		"D4 mounted read-only, and full":  {disk: disk{options: "size=6m", flags: unix.MS_RDONLY, full: true}},
		"D4 a full disk without a spool":  {disk: disk{options: "size=6m", full: true, noSpool: true}},
		"D4 a list that cannot be stored": {disk: disk{options: "size=6m", full: true}, newList: true},
		"D4 no inode for a new list":      {disk: disk{options: "size=12m,nr_inodes=400", noInodes: true}, newList: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := first.stand(t)
			if err := h.onDisk(c.disk); err != nil {
				t.Fatal(err)
			}
			if c.newList {
				twin := *w
				h.w = &twin
				h.w.NewList(func(*signing.Allowlist) {})
			}
			s := h.open()
			if s.hello.LastRun == nil || s.hello.LastRun.Order != done.Order || s.hello.Claim != (signing.Claim{UID: "uid-1", Fence: 5}) {
				t.Errorf("the hello: %+v, claim %+v", s.hello.LastRun, s.hello.Claim)
			}
			s.frame(wire.Collect, []byte(done.Order))
			if a := s.answered(); a.Outcome != signing.OutcomeOK || a.Order != done.Order {
				t.Errorf("collect: %s %q", a.Outcome, a.Reason)
			}
			s.end()
			// Made at enrolment, all that a run has to write is there already: a full disk keeps nobody from leaving.
			a := h.order(leave, "uid-1", 5)
			if c.runs {
				if a.Outcome != signing.OutcomeOK || h.marks() != 2 {
					t.Errorf("leave: %s %q, %d runs", a.Outcome, a.Reason, h.marks()-1)
				}
				return
			}
			if a.Reason != signing.ReasonStateUnwritable || h.marks() != 1 {
				t.Errorf("leave: %s %q, %d runs", a.Outcome, a.Reason, h.marks()-1)
			}
		})
	}
}

// disk is a file system for the shim's state that has something wrong with it.
type disk struct {
	options                 string
	flags                   uintptr
	full, noInodes, noSpool bool
}

// onDisk puts the shim's state onto a file system of its own.
func (h *host) onDisk(d disk) error {
	h.t.Helper()
	const state, beside = "/var/lib/kpssh", "/var/lib/beside"
	return h.inside(func() error {
		if err := os.Mkdir(beside, 0o700); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", beside, "tmpfs", 0, "mode=0700,"+d.options); err != nil {
			return fmt.Errorf("mounting: %w", err)
		}
		if d.noSpool {
			if err := os.Remove(state + "/spool"); err != nil {
				return err
			}
		}
		if out, err := exec.Command("cp", "-a", state+"/.", beside+"/").CombinedOutput(); err != nil {
			return fmt.Errorf("copying: %w: %s", err, out)
		}
		if err := d.fill(beside); err != nil {
			return err
		}
		if err := unix.Mount(beside, state, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if d.flags != 0 {
			return unix.Mount("", state, "", unix.MS_BIND|unix.MS_REMOUNT|d.flags, "")
		}
		return nil
	})
}

// fill takes all the space, or all the inodes, of a file system.
func (d disk) fill(dir string) error {
	if d.full {
		f, err := os.Create(filepath.Join(dir, ".filler"))
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := io.Copy(f, zeros{}); !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("filling the disk ended with %w", err)
		}
	}
	for i := 0; d.noInodes; i++ {
		err := os.Symlink("x", filepath.Join(dir, fmt.Sprintf(".filler-%d", i)))
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// zeros is /dev/zero.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
