package shim

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// process is what /proc says of one.
type process struct {
	pid, parent, session int
	dead                 bool // a zombie: holds nothing, cannot be killed, waits to be reaped
}

// tree finds the processes of a run. Where this process is the subreaper that orphans fall to,
// they are all of its descendants, which is complete: a child that forks twice and leaves the
// session is still found, with cgroups or without. Elsewhere they are the descendants of the
// run's first process and whoever is in its session. What a script has another daemon start
// (systemctl start, systemd-run) is not of the run.
type tree struct {
	first     int
	subreaper bool
}

// living lists the processes of the run that are not zombies.
func (t tree) living() []int {
	all := processes()
	parent := make(map[int]int, len(all))
	for _, p := range all {
		parent[p.pid] = p.parent
	}
	self := os.Getpid()
	var found []int
	for _, p := range all {
		ours := descends(parent, p.pid, self)
		if !t.subreaper {
			ours = p.session == t.first || descends(parent, p.pid, t.first)
		}
		if ours && !p.dead {
			found = append(found, p.pid)
		}
	}
	return found
}

func descends(parent map[int]int, pid, ancestor int) bool {
	for range len(parent) {
		up, known := parent[pid]
		if !known || up <= 0 {
			return false
		}
		if up == ancestor {
			return true
		}
		pid = up
	}
	return false
}

// childless tells at no cost that nothing is left: of a subreaper, every descendant has an ancestor
// that is its child.
func childless() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == unix.ECHILD
}

// reap takes the zombies of orphans that fell to this process, so that a long script that leaves
// many behind does not use up the host's process ids. The first process is its starter's to reap.
func (t tree) reap() {
	self := os.Getpid()
	for _, p := range processes() {
		if p.dead && p.parent == self && p.pid != t.first {
			_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
		}
	}
}

// processes reads /proc.
func processes() []process {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// The name in parentheses may itself hold parentheses and spaces.
		rest := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(rest) < 4 {
			continue
		}
		up, _ := strconv.Atoi(string(rest[1]))
		session, _ := strconv.Atoi(string(rest[3]))
		dead := rest[0][0] == 'Z' || rest[0][0] == 'X'
		all = append(all, process{pid: pid, parent: up, session: session, dead: dead})
	}
	return all
}

// kill ends every process of the run. Stopping them all before killing any keeps a tree that
// forks from growing faster than it is cut down; what was forked meanwhile is found on the next
// round. It gives up after patience, so that a process that cannot die (waiting for a dead disk)
// does not keep the host from answering.
func (t tree) kill(patience time.Duration) {
	if t.subreaper && childless() {
		return
	}
	for end := time.Now().Add(patience); ; {
		pids := t.living()
		if len(pids) == 0 {
			return
		}
		for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
			for _, pid := range pids {
				_ = unix.Kill(pid, sig)
			}
		}
		if time.Now().After(end) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
