//go:build e2e

package threats

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// tracer runs a root stage under ptrace: it sees the shipped binary, which has no fault points of its own, at each of
// its system calls and may end it there, have the call fail, or tell it another time. It belongs to amd64.
type tracer struct {
	// before is called when a thread is about to make a call; after when the call was made.
	before, after func(c *call)
	// clock is what the process takes for the time, given the time that it is.
	clock func(time.Time) time.Time

	pid   int
	calls map[int]*call // by thread, while it is in a call
	// peak is the most memory that the process ever had, in KiB; 0 before its end.
	peak int64
}

// call is a system call.
type call struct {
	x    *tracer
	tid  int
	nr   uint64
	args [6]uint64
	fail unix.Errno // set by before: the call is not made and fails with that
	kill bool       // set by before or after: the process is killed, as by a power cut, at this very point
}

// session in a traced process.
type tracedSession struct {
	*session
	x    *tracer
	done chan int
	log  string
}

// trace starts a root stage under a tracer. The caller reads the hello.
func (h *host) trace(x *tracer) *tracedSession {
	h.t.Helper()
	ours, theirs := socketpair(h.t)
	log, err := os.CreateTemp(h.dir, "log-*")
	if err != nil {
		h.t.Fatal(err)
	}
	s := &tracedSession{
		session: &session{h: h, conn: ours, in: wire.NewReader(ours)}, x: x, done: make(chan int, 1), log: log.Name(),
	}
	x.calls = map[int]*call{}
	go func() {
		err := h.apart(func() error {
			defer theirs.Close()
			defer log.Close()
			pid, err := syscall.ForkExec(binaries.shim, []string{binaries.shim, "root-stage", "--socket"}, &syscall.ProcAttr{
				Files: []uintptr{theirs.Fd(), theirs.Fd(), log.Fd()}, Env: []string{}, Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
			})
			if err != nil {
				return err
			}
			_ = theirs.Close()
			x.pid = pid
			code, err := x.follow()
			s.done <- code
			return err
		})
		if err != nil {
			h.t.Errorf("tracing: %v", err)
			_ = ours.Close()
			s.done <- -2
		}
	}()
	return s
}

// end hangs up and waits for the process, and returns its exit code: -1 when a signal ended it.
func (s *tracedSession) end() int {
	_ = s.conn.Close()
	return <-s.done
}

func (s *tracedSession) logged() string {
	data, _ := os.ReadFile(s.log)
	return string(data)
}

const sysgood = unix.SIGTRAP | 0x80

// follow drives the process to its end. It stays on the thread that started it.
func (x *tracer) follow() (int, error) {
	var ws unix.WaitStatus
	if _, err := unix.Wait4(x.pid, &ws, unix.WALL, nil); err != nil {
		return 0, err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXIT | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(x.pid, options); err != nil {
		return 0, err
	}
	if x.clock != nil {
		if err := x.hideVDSO(); err != nil {
			return 0, err
		}
	}
	x.resume(x.pid, 0)
	for {
		// Its threads are in its process group, which is its own. Other tests have children too.
		tid, err := unix.Wait4(-x.pid, &ws, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("waiting for the traced process: %w", err)
		case ws.Exited() || ws.Signaled():
			if tid == x.pid {
				return exitCode(ws), nil
			}
			continue
		}
		x.stopped(tid, ws)
	}
}

func exitCode(ws unix.WaitStatus) int {
	if ws.Exited() {
		return ws.ExitStatus()
	}
	return -1
}

// stopped deals with one stop of a thread and lets it go on.
func (x *tracer) stopped(tid int, ws unix.WaitStatus) {
	switch {
	case ws.StopSignal() == sysgood:
		x.atCall(tid)
		x.resume(tid, 0)
	case ws.StopSignal() == unix.SIGTRAP && ws.TrapCause() > 0:
		if ws.TrapCause() == unix.PTRACE_EVENT_EXIT {
			x.peak = max(x.peak, statusOf(x.pid, "VmHWM:"))
		}
		x.resume(tid, 0)
	case ws.StopSignal() == unix.SIGSTOP || ws.StopSignal() == unix.SIGTRAP:
		x.resume(tid, 0) // a thread that begins
	default:
		x.resume(tid, int(ws.StopSignal()))
	}
}

// resume lets a thread go on, which may have been killed meanwhile.
func (x *tracer) resume(tid, signal int) {
	if x.before == nil && x.after == nil && x.clock == nil {
		_ = unix.PtraceCont(tid, signal)
		return
	}
	_ = unix.PtraceSyscall(tid, signal)
}

// atCall is called at the beginning and at the end of each system call.
func (x *tracer) atCall(tid int) {
	var info struct {
		op uint8
		_  [7]byte
		_  [2]uint64 // instruction and stack pointer
		nr uint64
		a  [6]uint64
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return
	}
	const entry, exit = 1, 2
	switch info.op {
	case entry:
		c := &call{x: x, tid: tid, nr: info.nr, args: info.a}
		x.calls[tid] = c
		if x.before != nil {
			x.before(c)
		}
		if c.fail != 0 {
			c.registers(func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
		}
	case exit:
		c := x.calls[tid]
		if c == nil {
			return
		}
		delete(x.calls, tid)
		if c.fail != 0 {
			c.registers(func(r *unix.PtraceRegs) { r.Rax = uint64(-int64(c.fail)) })
		}
		if x.clock != nil && c.nr == unix.SYS_CLOCK_GETTIME && (c.args[0] == unix.CLOCK_REALTIME || c.args[0] == unix.CLOCK_REALTIME_COARSE) {
			x.tellTime(c)
		}
		if x.after != nil {
			x.after(c)
		}
	}
	if c := x.calls[tid]; c != nil && c.kill {
		_ = unix.Kill(x.pid, unix.SIGKILL)
	}
}

func (c *call) registers(change func(*unix.PtraceRegs)) {
	var r unix.PtraceRegs
	if unix.PtraceGetRegs(c.tid, &r) == nil {
		change(&r)
		_ = unix.PtraceSetRegs(c.tid, &r)
	}
}

// shorten makes a write one of so many bytes.
func (c *call) shorten(n uint64) { c.registers(func(r *unix.PtraceRegs) { r.Rdx = n }) }

// file is what a descriptor of the process is.
func (c *call) file(fd uint64) string {
	link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.x.pid, int32(fd)))
	return link
}

// tellTime changes the time that a call has just returned.
func (x *tracer) tellTime(c *call) {
	var b [16]byte
	if _, err := unix.PtracePeekData(c.tid, uintptr(c.args[1]), b[:]); err != nil {
		return
	}
	now := x.clock(time.Unix(int64(binary.LittleEndian.Uint64(b[:])), int64(binary.LittleEndian.Uint64(b[8:]))))
	binary.LittleEndian.PutUint64(b[:], uint64(now.Unix()))
	binary.LittleEndian.PutUint64(b[8:], uint64(now.Nanosecond()))
	_, _ = unix.PtracePokeData(c.tid, uintptr(c.args[1]), b[:])
}

// hideVDSO has the process ask the kernel for the time by system calls, which a tracer sees. Go's runtime does so where
// the auxiliary vector names no vDSO.
func (x *tracer) hideVDSO() error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(x.pid, &r); err != nil {
		return err
	}
	word := func(at uint64) uint64 {
		var b [8]byte
		_, _ = unix.PtracePeekData(x.pid, uintptr(at), b[:])
		return binary.LittleEndian.Uint64(b[:])
	}
	at := r.Rsp + 8*(word(r.Rsp)+2) // the number of arguments, they, and a zero
	for word(at) != 0 {
		at += 8 // the environment
	}
	const atNull, atIgnore, atSysinfoEHDR = 0, 1, 33
	for at += 8; word(at) != atNull; at += 16 {
		if word(at) == atSysinfoEHDR {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], atIgnore)
			_, err := unix.PtracePokeData(x.pid, uintptr(at), b[:])
			return err
		}
	}
	return errors.New("the process has no vDSO to hide")
}

// statusOf reads a figure of a process, in KiB.
func statusOf(pid int, field string) int64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == field {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// durable tells calls that change what is on the disk, or that begin or end a run, from all others.
func durable(c *call) string {
	switch c.nr {
	case unix.SYS_WRITE:
		if f := c.file(c.args[0]); strings.Contains(f, "/kpssh") || strings.HasPrefix(f, "/memfd:") || strings.HasPrefix(f, "socket:") {
			return "write"
		}
	case unix.SYS_OPENAT:
		if c.args[2]&unix.O_CREAT != 0 {
			return "create"
		}
	case unix.SYS_PWRITE64:
		return "pwrite"
	case unix.SYS_FSYNC:
		return "fsync"
	case unix.SYS_FDATASYNC:
		return "fdatasync"
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return "rename"
	case unix.SYS_UNLINKAT:
		return "unlink"
	case unix.SYS_FTRUNCATE:
		return "truncate"
	case unix.SYS_FALLOCATE:
		return "fallocate"
	case unix.SYS_MKDIRAT:
		return "mkdir"
	case unix.SYS_MEMFD_CREATE:
		return "memfd"
	case unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_VFORK, unix.SYS_FORK:
		return "clone"
	case unix.SYS_WAITID, unix.SYS_WAIT4:
		return "wait"
	case unix.SYS_FCNTL:
		const setLock, setLockWait = 37, 38
		if c.args[1] == setLock || c.args[1] == setLockWait {
			return "lock"
		}
	case unix.SYS_EXIT_GROUP:
		return "exit"
	}
	return ""
}

// nth counts durable calls from when it is armed and acts on the one that it waits for.
type nth struct {
	armed atomic.Bool
	seen  int
	want  int // 0 for none
	names []string
	act   func(c *call, name string)
	// only, where set, says which calls count.
	only func(c *call, name string) bool
}

func (n *nth) before(c *call) {
	if !n.armed.Load() {
		return
	}
	name := durable(c)
	if name == "" || n.only != nil && !n.only(c, name) {
		return
	}
	n.seen++
	n.names = append(n.names, name)
	if n.seen == n.want {
		n.act(c, name)
	}
}

// last names a call for a message.
func (n *nth) last(at int) string {
	if at > len(n.names) {
		return fmt.Sprintf("call %d, which was not made", at)
	}
	return fmt.Sprintf("call %d, %s", at, n.names[at-1])
}
