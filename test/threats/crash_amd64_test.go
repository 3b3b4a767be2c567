//go:build e2e

package threats

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const leave = "leave: " + mark

// crashing is a host that a leave is about to be ordered on, with all that an order can bring: a new root, a new list
// and a script. It is what every crash of these tests begins with.
func crashing(t *testing.T) *host {
	t.Helper()
	w := newWorld(t, join, leave)
	h := joined(t, w)
	w.NewRoot(func(*signing.Root) {})
	w.NewList(func(*signing.Allowlist) {})
	return h
}

// leaving orders the leave on a traced host, counted by n, and returns what came back and the exit code.
func (h *host) leaving(n *nth) (a answer, code int, err error) {
	h.t.Helper()
	s := h.trace(&tracer{before: n.before})
	if err := s.greet(); err != nil {
		h.t.Fatalf("hello: %v; log: %s", err, s.logged())
	}
	p := s.plan(leave, "uid-1", 5)
	if p.Roots == nil || p.List == nil || p.Script == nil {
		h.t.Fatal("the order does not bring all that it could")
	}
	n.armed.Store(true) // it waits for us to speak
	s.submit(p)
	a, err = s.read()
	return a, s.end(), err
}

// quiet waits until nothing of the box runs any more: a script whose shim was killed is killed after it.
func (h *host) quiet() {
	h.t.Helper()
	var ours string
	if err := h.inside(func() (err error) {
		ours, err = os.Readlink("/proc/thread-self/ns/mnt")
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	left := ""
	defer func() {
		if left != "" {
			h.t.Logf("what still runs: %s", left)
		}
	}()
	eventually(h.t, "the box to be quiet", func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
		if err != nil {
			h.t.Fatal(err)
		}
		left = ""
		for _, link := range all {
			// This process shows where its first thread is, which may be the one in the box.
			if ns, _ := os.Readlink(link); ns == ours && link != fmt.Sprintf("/proc/%d/ns/mnt", os.Getpid()) {
				status, _ := os.ReadFile(strings.Replace(link, "ns/mnt", "status", 1))
				command, _ := os.ReadFile(strings.Replace(link, "ns/mnt", "cmdline", 1))
				left += fmt.Sprintf("%q, %.200s\n", command, status)
			}
		}
		return left == ""
	})
}

// sound holds what a crash left behind against what a host can be: free, started or finished, never torn, and nothing
// that ran is told as not having run, or is run again by itself. It returns the state's name.
func (h *host) sound(t *testing.T) string {
	t.Helper()
	h.quiet()
	ran := h.marks() - 1 // the join was one
	s := h.open()
	s.frame(wire.Probe, nil)
	if kind, _, err := s.in.Next(); kind != wire.Facts || err != nil {
		t.Errorf("a probe after it: %s, %v", kind, err)
	}
	s.end()
	claim, last, name := s.hello.Claim, s.hello.LastRun, "free"
	switch {
	case last == nil || last.Phase != signing.PhaseLeave: // the join is the last that it knows of
		if ran != 0 || claim.UID != "uid-1" {
			t.Errorf("%d runs and no record of any, claim %+v", ran, claim)
		}
	case last.State == signing.RunInterrupted:
		name = "started"
		if claim.UID != "uid-1" || ran > 1 {
			t.Errorf("interrupted after %d runs, claim %+v", ran, claim)
		}
	case last.State == signing.RunFinished:
		name = "finished"
		if ran != 1 || claim != (signing.Claim{Fence: 5}) {
			t.Errorf("finished after %d runs, claim %+v", ran, claim)
		}
	default:
		t.Errorf("state %q", last.State)
	}
	if last != nil {
		s := h.open()
		s.frame(wire.Collect, []byte(last.Order))
		if a := s.answered(); a.Outcome != last.Outcome && a.Outcome != signing.OutcomeInterrupted {
			t.Errorf("collecting says %s, the hello %s", a.Outcome, last.Outcome)
		}
		s.end()
	}
	if again := h.marks() - 1; again != ran {
		t.Errorf("the shim ran it again by itself: %d runs, then %d", ran, again)
	}
	// And the host goes on from there.
	h.mustRun(leave, "uid-1", 6)
	if got := h.marks() - 1; got != ran+1 {
		t.Errorf("the next order ran %d times", got-ran)
	}
	return name
}

// The shipped shim is killed at every system call that changes what is on the disk, or begins or ends a run, from the
// order to the receipt: whatever that leaves, it is a state that a host can be in.
func TestD3_DeathAtAnySystemCallLeavesAStateThatHolds(t *testing.T) {
	t.Parallel()
	h := crashing(t)
	dry := &nth{}
	if a, code, err := h.stand(t).leaving(dry); err != nil || a.Outcome != signing.OutcomeOK || code != 0 {
		t.Fatalf("%+v, %v, exit %d", a.Receipt, err, code)
	}
	for _, must := range []string{"create", "write", "fsync", "rename", "pwrite", "fdatasync", "memfd", "clone", "lock"} {
		if !slices.Contains(dry.names, must) {
			t.Errorf("the tracer saw no %s among %q", must, dry.names)
		}
	}
	var mu sync.Mutex
	states, killed := map[string]int{}, 0
	spread(t, len(dry.names), func(i int) {
		h := h.stand(t)
		n := &nth{want: i + 1, act: func(c *call, _ string) { c.kill = true }}
		_, code, _ := h.leaving(n)
		name := h.sound(t)
		mu.Lock()
		defer mu.Unlock()
		states[name]++
		if code == -1 {
			killed++
		}
		if t.Failed() {
			t.Logf("killed before %s", n.last(i+1))
		}
	})
	// Threads do not make the same calls each time, so that a few come after the end.
	if killed < len(dry.names)*9/10 || states["free"] == 0 || states["started"] == 0 || states["finished"] == 0 {
		t.Errorf("killed %d times at %d calls, states %v", killed, len(dry.names), states)
	}
	t.Logf("killed at %d of %d calls (%s): %v", killed, len(dry.names), strings.Join(slices.Compact(slices.Clone(dry.names)), " "), states)
}

// A write that is cut short, as by a power cut, tears the older of the two slots and never the state.
func TestD3_ATornWriteTearsNoState(t *testing.T) {
	t.Parallel()
	h := crashing(t)
	toDisk := func(c *call, name string) bool {
		return (name == "pwrite" || name == "write") && c.args[2] > 1 && !strings.HasPrefix(c.file(c.args[0]), "socket:")
	}
	dry := &nth{only: toDisk}
	if _, _, err := h.stand(t).leaving(dry); err != nil {
		t.Fatal(err)
	}
	states := map[string]int{}
	for at := 1; at <= len(dry.names); at++ {
		for part, length := range map[string]func(uint64) uint64{
			"one byte": func(uint64) uint64 { return 1 }, "half": func(n uint64) uint64 { return n / 2 }, "all but one": func(n uint64) uint64 { return n - 1 },
		} {
			t.Run(fmt.Sprintf("D3 write %d, %s of it", at, part), func(t *testing.T) {
				h := h.stand(t)
				x := &tracer{}
				var torn *call
				n := &nth{want: at, only: toDisk, act: func(c *call, _ string) {
					torn = c
					c.shorten(length(c.args[2]))
				}}
				x.before = n.before
				x.after = func(c *call) {
					if c == torn {
						_ = unix.Kill(x.pid, unix.SIGKILL)
					}
				}
				s := h.trace(x)
				if err := s.greet(); err != nil {
					t.Fatal(err)
				}
				p := s.plan(leave, "uid-1", 5)
				n.armed.Store(true)
				s.submit(p)
				_, _ = s.read()
				s.end()
				states[h.sound(t)]++
			})
		}
	}
	if states["free"] == 0 || states["started"] == 0 {
		t.Errorf("states %v", states)
	}
	t.Logf("%d writes, each cut in three places: %v", len(dry.names), states)
}

// A disk that fails at any call refuses the order before anything runs, or is told of after a run that is recorded as
// started: never a run that the host does not know of, never a state that cannot be read.
func TestD4_ADiskThatFailsAtAnyCall(t *testing.T) {
	t.Parallel()
	h := crashing(t)
	dry := &nth{}
	if _, _, err := h.stand(t).leaving(dry); err != nil {
		t.Fatal(err)
	}
	disk := []string{"create", "write", "pwrite", "fsync", "fdatasync", "rename", "truncate", "fallocate", "mkdir", "memfd"}
	var at []int
	for i, name := range dry.names {
		if slices.Contains(disk, name) {
			at = append(at, i+1)
		}
	}
	faults := []unix.Errno{unix.EIO, unix.ENOSPC, unix.EROFS}
	var mu sync.Mutex
	outcomes := map[string]int{}
	spread(t, len(at), func(i int) {
		h := h.stand(t)
		n := &nth{want: at[i], act: func(c *call, name string) {
			if name != "write" || !strings.HasPrefix(c.file(c.args[0]), "socket:") {
				c.fail = faults[i%len(faults)]
			}
		}}
		a, code, err := h.leaving(n)
		ran := h.marks() - 1
		outcome := "no receipt"
		if err == nil {
			outcome = strings.TrimSpace(string(a.Outcome) + " " + string(a.Reason))
		}
		switch {
		case code == -1:
			t.Errorf("%s: killed", n.last(at[i]))
		case err == nil && a.Outcome == signing.OutcomeRefused && (ran != 0 || a.Reason != signing.ReasonStateUnwritable):
			t.Errorf("%s: %s, %d runs", n.last(at[i]), outcome, ran)
		case err == nil && a.Outcome != signing.OutcomeRefused && ran != 1:
			t.Errorf("%s: %s, %d runs", n.last(at[i]), outcome, ran)
		}
		state := h.sound(t)
		if err == nil && a.Outcome == signing.OutcomeRefused && state != "free" {
			t.Errorf("%s: refused, and the state says %s", n.last(at[i]), state)
		}
		mu.Lock()
		defer mu.Unlock()
		outcomes[outcome+" → "+state]++
	})
	if outcomes["refused state-unwritable → free"] == 0 {
		t.Errorf("outcomes %v", outcomes)
	}
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(outcomes)) {
		lines = append(lines, fmt.Sprintf("%s: %d", k, outcomes[k]))
	}
	t.Logf("%d calls failed, one at a time: %s", len(at), strings.Join(lines, ", "))
}
