package shim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// A client that is cut at any point leaves exactly one run behind, whose receipt can be collected.
func TestRunOutlivesItsClient(t *testing.T) {
	script, marker := marking(t, "for i in 1 2 3 4; do echo tick $i; sleep 0.02; done")
	w := newWorld(t, "join: "+script)
	const cuts = 20
	for i := range cuts {
		c := w.child()
		c.readHello()
		p := c.plan(signing.PhaseJoin, script, "uid-1", int64(i+1))
		c.submit(p)
		// The order is in; from here on the client does not count.
		cut := time.Duration(rand.Int64N(int64(150 * time.Millisecond)))
		timer := time.AfterFunc(cut, func() { _ = c.conn.Close() })
		_, _, _ = c.read()
		timer.Stop()
		_ = c.conn.Close()
		c.wait()
		if got := runs(t, marker); got != i+1 {
			t.Fatalf("cut after %v: %d runs of %d orders; log %s", cut, got, i+1, c.logged())
		}
		env := sign(w.T, &p.Order, p.By...)
		digest, err := signing.PayloadDigest(env)
		if err != nil {
			t.Fatal(err)
		}
		r, out := w.collect(digest)
		if r.Outcome != signing.OutcomeOK || strings.Count(out, "tick") != 4 {
			t.Errorf("cut after %v: collected %s %s, %q", cut, r.Outcome, r.Reason, out)
		}
	}
}

func TestCollectDuringRunSaysBusy(t *testing.T) {
	w := newWorld(t, "join: echo early; read -r _ < $KPSSH_MARK")
	gate := newGate(t)
	c := w.child()
	c.readHello()
	p := c.plan(signing.PhaseJoin, "echo early; read -r _ < $KPSSH_MARK", "uid-1", 1)
	p.Params["KPSSH_MARK"] = gate.path
	c.submit(p)
	if kind, payload, err := c.r.Next(); kind != wire.Output || string(payload) != "early\n" {
		t.Fatalf("first came %s %q, %v: output is not sent as it comes", kind, payload, err)
	}
	digest, err := signing.PayloadDigest(sign(w.T, &p.Order, p.By...))
	if err != nil {
		t.Fatal(err)
	}
	other := w.connect()
	if last := other.hello.LastRun; last == nil || last.State != signing.RunStarted || last.Order != digest || last.Deadline != 60 {
		t.Errorf("hello during the run: %+v", last)
	}
	other.write(wire.Collect, []byte(digest))
	if r, _ := other.finish(); r.Reason != signing.ReasonBusy || r.Running != digest {
		t.Errorf("collect during the run: %s %s %s", r.Outcome, r.Reason, r.Running)
	}
	gate.open()
	if code := c.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if r, out := w.collect(digest); r.Outcome != signing.OutcomeOK || out != "early\n" {
		t.Errorf("collect after the run: %s %q", r.Outcome, out)
	}
}

// The deadline takes everything down: what ignores TERM, what left the group, what left the
// session and was forked twice.
func TestDeadlineKillsTheWholeTree(t *testing.T) {
	list := filepath.Join(t.TempDir(), "pids")
	script := `trap '' TERM
echo $BASHPID >> ` + list + `
(trap '' TERM; echo $BASHPID >> ` + list + `; sleep 600) &
(setsid bash -c 'trap "" TERM; (setsid bash -c "echo \$BASHPID >> ` + list + `; sleep 601" & ) ; exit' &)
sleep 602; sleep 603`
	w := newWorld(t, "join: "+script)
	c := w.child()
	c.readHello()
	p := c.plan(signing.PhaseJoin, script, "uid-1", 1)
	p.Order.TimeoutSeconds = 1
	c.submit(p)
	found := pids(t, list, 3)
	r, _ := c.finish()
	if r.Outcome != signing.OutcomeTimeout || r.Signal != "SIGKILL" || r.DurationMillis < 1000 {
		t.Errorf("receipt %+v", r)
	}
	c.wait()
	for _, pid := range found {
		if alive(pid) {
			t.Errorf("process %d lives on", pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func TestDeadlineLetsAScriptCleanUp(t *testing.T) {
	script := `trap 'echo cleaned; exit 7' TERM; sleep 600 & wait`
	w := newWorld(t, "join: "+script)
	w.cfg.termGrace = 30 * time.Second
	r, out := w.order(signing.PhaseJoin, script, "uid-1", 1, func(p *plan) { p.Order.TimeoutSeconds = 1 })
	if r.Outcome != signing.OutcomeTimeout || r.ExitCode != 7 || out != "cleaned\n" {
		t.Errorf("%+v, %q", r, out)
	}
}

func TestNothingIsLeftInTheBackground(t *testing.T) {
	list := filepath.Join(t.TempDir(), "pids")
	script := `setsid bash -c 'echo $BASHPID >> ` + list + `; exec sleep 600' >/dev/null 2>&1 & 
while [ ! -s ` + list + ` ]; do sleep 0.01; done; echo started`
	w := newWorld(t, "join: "+script)
	c := w.child()
	c.readHello()
	c.submit(c.plan(signing.PhaseJoin, script, "uid-1", 1))
	r, out := c.finish()
	c.wait()
	if r.Outcome != signing.OutcomeOK || out != "started\n" {
		t.Errorf("%+v %q", r, out)
	}
	if pid := pids(t, list, 1)[0]; alive(pid) {
		t.Errorf("process %d lives on", pid)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// What is still in a pipe of the script's own when bash ends is printed before its processes go.
func TestOutputThroughAPipeIsNotCutOff(t *testing.T) {
	script := "exec > >(while read -r line; do sleep 0.05; echo \"late $line\"; done)\necho a\necho b"
	w := newWorld(t, "join: "+script)
	if out := w.mustRun(signing.PhaseJoin, script, "uid-1", 1); out != "late a\nlate b\n" {
		t.Errorf("output %q", out)
	}
}

func TestFloodLeavesMemoryFlat(t *testing.T) {
	script := "yes kpssh-flood | head -c 400000000; echo; echo the end"
	w := newWorld(t, "join: "+script)
	c := w.child()
	c.readHello()
	quiet := status(c.cmd.Process.Pid, "VmHWM:")
	c.submit(c.plan(signing.PhaseJoin, script, "uid-1", 1))
	var peak int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			// The figure is gone with the process; the last reading stands.
			now := status(c.cmd.Process.Pid, "VmHWM:")
			if now == 0 {
				return
			}
			peak = max(peak, now)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	r, out := c.finish()
	c.wait()
	<-done
	if r.Output.Bytes != 400000009 || !r.Output.Truncated || r.Output.Kept != keepAll || len(out) != keepAll {
		t.Errorf("output %+v, %d bytes came", r.Output, len(out))
	}
	if !strings.HasPrefix(out, "kpssh-flood\n") || !strings.HasSuffix(out, "\nthe end\n") {
		t.Errorf("head %q, tail %q", out[:20], out[len(out)-20:])
	}
	limit := int64(16 << 10)
	if raceDetector {
		limit *= 4 // it keeps a shadow of all memory
	}
	if grown := peak - quiet; grown > limit {
		t.Errorf("memory grew by %d KiB", grown)
	}
	t.Logf("memory: %d KiB after the hello, %d KiB at most", quiet, peak)
}

// A client that reads nothing does not hold up the script or the next order.
func TestDeafClientHoldsNothingUp(t *testing.T) {
	flood := "head -c 3000000 /dev/zero | tr '\\0' x"
	w := newWorld(t, "join: "+flood, "join: echo next")
	c := w.child()
	c.readHello()
	c.submit(c.plan(signing.PhaseJoin, flood, "uid-1", 1))
	eventually(t, "the run to be recorded", func() bool {
		rec, err := readState(w)
		return err == nil && rec.Run != nil && rec.Run.State == signing.RunFinished
	})
	if out := w.mustRun(signing.PhaseJoin, "echo next", "uid-1", 2); out != "next\n" {
		t.Errorf("output %q", out)
	}
}

func readState(w *world) (record, error) {
	h, err := Open(w.cfg)
	if err != nil {
		return record{}, err
	}
	defer h.Close()
	return h.runState()
}

// k0sctl#437, R26: PATH, too, is the shim's and not what sudo's secure_path leaves of it.
func TestScriptSeesNothingButItsParameters(t *testing.T) {
	script := "env -0 | tr '\\0' '\\n'; pwd; umask; sed -nE 's/^Max core file size +//p' /proc/self/limits; cat; shopt -q login_shell && echo login; alias; type -t evil; trap; echo ${-//[^p]/}; ls -l /proc/self/fd | grep -c evil; sed -nE 's/^Sig(Ign|Blk):\\t//p' /proc/self/status; ls /proc/self/fd"
	w := newWorld(t, "join: "+script)
	evil := filepath.Join(t.TempDir(), "evil")
	if err := os.WriteFile(evil, []byte("echo EVIL\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	inherited, err := os.Open(evil)
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	// Signals that whoever starts the root stage ignores: systemd does so with SIGPIPE, a shell with those of job
	// control, and glibc's posix_spawn with 32 and 33, which Go leaves alone.
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU,
		unix.Signal(35), unix.Signal(lastSignal))
	defer signal.Reset()
	for _, sig := range []int{32, 33, 34} {
		var before sigaction
		if err := rtSigaction(sig, &sigaction{handler: ignored}, &before); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rtSigaction(sig, &before, nil) }()
	}
	c := w.child(func(_ *childConfig, cmd *exec.Cmd) {
		cmd.Dir = t.TempDir()
		// A descriptor that whoever starts the root stage left open.
		cmd.ExtraFiles = []*os.File{inherited, inherited}
		for _, name := range []string{"BASH_ENV", "ENV", "LD_PRELOAD", "IFS", "TMPDIR", "HOME", "PATH", "TZ", "LC_ALL", "LANGUAGE"} {
			cmd.Env = append(cmd.Env, name+"="+evil)
		}
		cmd.Env = append(cmd.Env, "SHELLOPTS=xtrace", "PS4=$("+evil+")", "BASH_FUNC_evil%%=() { echo EVIL; }", "PROMPT_COMMAND="+evil,
			"GODEBUG=madvdontneed=1", "GOTRACEBACK=crash", "KPSSH_NODE_NAME=other", "KPSSH_STATE="+evil, "KPSSH_ALLOWED_SIGNERS=x", "BASHOPTS=extdebug")
	})
	c.readHello()
	p := c.plan(signing.PhaseJoin, script, "uid-1", 1)
	p.Params["KPSSH_NODE_NAME"], p.Secrets["KPSSH_BOOTSTRAP_TOKEN"] = "node-a", token
	c.submit(p)
	r, out := c.finish()
	home := "/root"
	if os.Geteuid() != 0 {
		home = "/"
	}
	got := strings.Fields(out)
	slices.Sort(got[:9])
	if len(got) < 17 {
		t.Fatalf("%s: %q", r.Outcome, got)
	}
	want := []string{
		"HOME=" + home, "KPSSH_BOOTSTRAP_TOKEN=" + redaction, "KPSSH_NODE_NAME=node-a", "LANG=C.UTF-8",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"PWD=/", "SHLVL=1", "_=/usr/bin/env", "/", // PWD, SHLVL and _ are bash's own
		"0022", "1", "1", "bytes", "p", "0", "0000000000000000", "0000000000000000", "0", "1", "2", "3", "4",
	}
	slices.Sort(want[:9])
	if r.Outcome != signing.OutcomeOK && r.ExitCode != 0 || !slices.Equal(got, want) {
		t.Errorf("%s\ngot  %q\nwant %q", r.Outcome, got, want)
	}
	if strings.Contains(out, "EVIL") || strings.Contains(c.logged(), "EVIL") {
		t.Errorf("something foreign ran: %s", out)
	}
}

func TestInterruptedRunIsTold(t *testing.T) {
	script, marker := marking(t, "read -r _ < $KPSSH_MARK")
	for name, end := range map[string]func(*world, *child){
		"the process was killed": func(_ *world, c *child) { _ = c.cmd.Process.Kill(); c.wait() },
		"the host was rebooted":  func(w *world, _ *child) { w.cfg.BootID = "boot-2" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "join: "+script)
			gate := newGate(t)
			before := runs(t, marker)
			c := w.child()
			c.readHello()
			p := c.plan(signing.PhaseJoin, script, "uid-1", 1)
			p.Params["KPSSH_MARK"] = gate.path
			c.submit(p)
			eventually(t, "the script", func() bool { return runs(t, marker) == before+1 })
			end(w, c)
			again := w.connect()
			last := again.hello.LastRun
			if last == nil || last.State != signing.RunInterrupted || last.Phase != signing.PhaseJoin || last.Outcome != signing.OutcomeInterrupted {
				t.Fatalf("hello after it: %+v", last)
			}
			again.write(wire.Collect, []byte(last.Order))
			r, _ := again.finish()
			if r.Outcome != signing.OutcomeInterrupted || r.Order != last.Order || r.Claim != "uid-1" || r.BootID != "boot-1" {
				t.Errorf("receipt %+v", r)
			}
			if runs(t, marker) != before+1 {
				t.Error("the shim ran it again by itself")
			}
		})
	}
}

// The run's process goes with the shim that runs it, so that an interrupted run is over.
func TestScriptDiesWithItsShim(t *testing.T) {
	list := filepath.Join(t.TempDir(), "pids")
	script := "echo $BASHPID > " + list + "; read -r _ < $KPSSH_MARK"
	w := newWorld(t, "join: "+script)
	c := w.child()
	c.readHello()
	p := c.plan(signing.PhaseJoin, script, "uid-1", 1)
	p.Params["KPSSH_MARK"] = newGate(t).path
	c.submit(p)
	pid := pids(t, list, 1)[0]
	_ = c.cmd.Process.Kill()
	eventually(t, "the script to be gone", func() bool { return !alive(pid) })
}

// Whatever the step at which the shim dies, the state is one that a host can be in, and a run
// that may have happened is never told as one that did not.
func TestDeathBetweenAnyTwoSteps(t *testing.T) {
	script, marker := marking(t, "")
	steps := recordSteps(t, script)
	if len(steps) < 18 || !slices.Contains(steps, "receipt out") {
		t.Fatalf("only %d steps: %q", len(steps), steps)
	}
	seen := map[string]int{}
	for _, step := range steps {
		seen[step]++
		nth := seen[step]
		t.Run(fmt.Sprintf("%s %d", step, nth), func(t *testing.T) {
			w := newWorld(t, "leave: "+script)
			w.claim("uid-1", 3)
			before := runs(t, marker)
			c := w.child(func(cfg *childConfig, _ *exec.Cmd) { cfg.DieAt, cfg.DieNth = step, nth })
			c.readHello()
			p := c.plan(signing.PhaseLeave, script, "uid-1", 3)
			c.submit(p)
			_, _, _ = c.read()
			if code := c.wait(); code != -1 {
				t.Fatalf("exit %d, not killed", code)
			}
			ran := runs(t, marker) - before
			rec, err := readState(w)
			if err != nil {
				t.Fatalf("state after it: %v", err)
			}
			switch {
			case rec.Run == nil:
				if ran != 0 || rec.Claim.UID != "uid-1" {
					t.Errorf("%d runs and no record, claim %+v", ran, rec.Claim)
				}
			case rec.Run.State == signing.RunInterrupted:
				if rec.Claim.UID != "uid-1" {
					t.Errorf("an interrupted leave freed the host: %+v", rec.Claim)
				}
			case rec.Run.State == signing.RunFinished:
				if ran != 1 || rec.Claim.UID != "" || rec.Claim.Fence != 3 {
					t.Errorf("finished with %d runs, claim %+v", ran, rec.Claim)
				}
			default:
				t.Errorf("state %q", rec.Run.State)
			}
			// And the host goes on from there.
			r, _ := w.order(signing.PhaseLeave, script, "uid-1", 4)
			if r.Outcome != signing.OutcomeOK {
				t.Errorf("the next order: %s %s", r.Outcome, r.Reason)
			}
			// The trail has no hole, and what may have run is in it.
			want := []signing.Outcome{signing.OutcomeOK}
			switch {
			case rec.Run == nil:
			case rec.Run.State == signing.RunFinished:
				want = []signing.Outcome{signing.OutcomeOK, signing.OutcomeOK}
			default:
				want = []signing.Outcome{signing.OutcomeInterrupted, signing.OutcomeOK}
			}
			var got []signing.Outcome
			for i, record := range w.exported() {
				if record.Seq != uint64(i+1) {
					t.Errorf("record %d has number %d", i+1, record.Seq)
				}
				got = append(got, signing.Outcome(record.Outcome))
			}
			if !slices.Equal(got, want) {
				t.Errorf("the trail holds %q, want %q", got, want)
			}
		})
	}
}

// recordSteps lists the steps of an order that brings a list and a script and runs.
func recordSteps(t *testing.T, script string) (steps []string) {
	w := newWorld(t, "leave: "+script)
	w.claim("uid-1", 3)
	w.cfg.fault = func(step string) { steps = append(steps, step) }
	w.mustRun(signing.PhaseLeave, script, "uid-1", 3)
	return steps
}
