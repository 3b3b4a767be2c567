package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// childConfig is what a root stage in a process of its own gets from its test.
type childConfig struct {
	State     string
	BootID    string
	Clock     time.Time
	TermGrace time.Duration
	// DieAt is the step of a durable write, and its occurrence, at which the process dies.
	DieAt  string
	DieNth int
}

const childArgument = "-be-a-root-stage"

// TestMain lets the test binary be a root stage: the real one, in the state directory of a test.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childArgument {
		os.Exit(beRootStage(os.Args[2]))
	}
	os.Exit(m.Run())
}

func beRootStage(config string) int {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return 99
	}
	harden()
	in, out, err := private(Process{Stdin: os.Stdin, Stdout: os.Stdout})
	if err != nil {
		return 98
	}
	seen := 0
	cfg := Config{
		State: c.State, Build: Build{Version: "v1.0.0"}, Log: os.Stderr, BootID: c.BootID,
		Now: func() time.Time { return c.Clock }, Posture: func() Posture { return Posture{} },
		Subreaper: subreaper(), termGrace: c.TermGrace,
		fault: func(step string) {
			if step == c.DieAt {
				if seen++; seen == c.DieNth {
					_ = unix.Kill(os.Getpid(), unix.SIGKILL)
					select {}
				}
			}
		},
	}
	return Session(cfg, in, out, true)
}

// child is a session with a root stage in a process of its own.
type child struct {
	*client
	cmd *exec.Cmd
	log string // file of its standard error
}

func (w *world) child(change ...func(*childConfig, *exec.Cmd)) *child {
	w.t.Helper()
	c := childConfig{State: w.cfg.State, BootID: w.cfg.BootID, Clock: w.clock, TermGrace: w.cfg.termGrace}
	ours, theirs, err := socketpair()
	if err != nil {
		w.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(w.t.TempDir(), "log"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, log
	for _, f := range change {
		f(&c, cmd)
	}
	config, err := json.Marshal(c)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Args = []string{self, childArgument, string(config)}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	_ = theirs.Close()
	conn := fileConn(w.t, ours)
	s := &child{client: &client{w: w, conn: conn, r: wire.NewReader(conn)}, cmd: cmd, log: log.Name()}
	w.t.Cleanup(func() {
		_ = conn.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return s
}

// wait waits for the root stage to end and returns its exit code, -1 when a signal ended it.
func (c *child) wait() int {
	c.w.t.Helper()
	_ = c.cmd.Wait()
	return c.cmd.ProcessState.ExitCode()
}

func (c *child) logged() string {
	data, err := os.ReadFile(c.log)
	if err != nil {
		c.w.t.Fatal(err)
	}
	return string(data)
}

// eventually waits for a condition, however slow the machine is.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// alive tells whether a process is there and no zombie.
func alive(pid int) bool {
	for _, p := range processes() {
		if p.pid == pid && !p.dead {
			return true
		}
	}
	return false
}

// pids reads the file that a script wrote process ids to.
func pids(t testing.TB, path string, n int) []int {
	t.Helper()
	var found []int
	eventually(t, fmt.Sprintf("%d process ids", n), func() bool {
		data, _ := os.ReadFile(path)
		found = nil
		for line := range strings.Lines(string(data)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && strings.HasSuffix(line, "\n") {
				found = append(found, pid)
			}
		}
		return len(found) == n
	})
	return found
}

// status reads a figure in KiB of a process.
func status(pid int, field string) int64 {
	return fields(fmt.Sprintf("/proc/%d/status", pid))[field]
}
