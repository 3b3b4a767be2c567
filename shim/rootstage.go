package shim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

// memoryLimit is how much memory, in bytes, a session takes before the garbage collector works for every byte of it. No
// document needs as much; garbage of what an author's key may sign would otherwise come on top.
const memoryLimit = 14 << 20

// lingerTime is how long a refused client may still be talking before it is cut off.
const lingerTime = 2 * time.Second

const rootStageUsage = `usage: kpssh-shim root-stage [--socket]

Holds one session on its input and output, as root. systemd starts it for a connection to
/run/kpssh/kpssh.sock with --socket; without systemd, user kpssh starts it through sudo.

example:
  sudo -n /usr/libexec/kpssh/kpssh-shim root-stage
`

// rootStage is the privileged stage.
func rootStage(p Process, sys hostSystem, build Build, args []string) int {
	flags := flag.NewFlagSet("root-stage", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	socket := flags.Bool("socket", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		fmt.Fprint(p.Stderr, rootStageUsage)
		return exitUsage
	}
	go prepare()
	growStack(false)
	if err := startClean(p.Args); err != nil {
		return fail(p.Stderr, err)
	}
	harden()
	refusal := io.Writer(p.Stderr)
	if *socket {
		refusal = io.MultiWriter(p.Stderr, p.Stdout)
	}
	if os.Geteuid() != 0 {
		return refuseText(refusal, signing.ReasonNotRoot, "the root stage was not started as root")
	}
	if err := checkPeer(int(p.Stdin.Fd()), sys); err != nil {
		return refuseText(refusal, signing.ReasonUntrusted, err.Error())
	}
	in, out, err := private(p)
	if err != nil {
		return refuseText(refusal, signing.ReasonStateUnwritable, err.Error())
	}
	cfg := Config{
		State: sys.paths.state, Build: build, Log: p.Stderr, Now: time.Now, BootID: BootID(),
		Posture: func() Posture { return posture(sys) }, Subreaper: subreaper(),
	}
	return Session(cfg, in, out, *socket)
}

// Session holds one session and returns the exit code of the root stage. With textual, a host that
// cannot sign answers says why in the stream, where the relay finds it.
func Session(cfg Config, in, out *os.File, textual bool) int {
	h, err := Open(cfg)
	if err != nil {
		code := refuseText(cfg.Log, signing.ReasonOf(err), detail(err))
		if textual {
			refuseText(out, signing.ReasonOf(err), detail(err))
		}
		return code
	}
	defer h.Close()
	if err := h.Serve(context.Background(), in, out); err != nil {
		linger(in, out)
		return exitRefused
	}
	return exitOK
}

// linger lets a client that is still sending finish, so that it gets to read its refusal.
func linger(in, out *os.File) {
	shutdown(out)
	if in.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.Copy(io.Discard, in)
	}
}

// startClean starts this program anew when it was given what cannot be put right any more: an environment
// with what Go's runtime reads before main does (GODEBUG, GOTRACEBACK, …), as may be where sudo was told
// not to reset it, or signals that are blocked, which scripts would inherit and not hear TERM at their
// deadline.
func startClean(args []string) error {
	var blocked unix.Sigset_t
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, nil, &blocked)
	tainted := slices.ContainsFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GO") })
	if blocked == (unix.Sigset_t{}) && !tainted {
		return nil
	}
	// Every thread has the signals blocked that the first one came with, and one of them becomes the new program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
	return fmt.Errorf("starting with a clean environment: %w", unix.Exec("/proc/self/exe", args, nil))
}

// harden makes this process clean, whoever started it: no core dumps and no ptrace while it holds
// secrets, nobody's environment, umask, limits, directory, session or signals. Signals are caught and
// not ignored: what is ignored stays so in the scripts.
func harden() {
	debug.SetMemoryLimit(memoryLimit)
	os.Clearenv()
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	noCores()
	for _, limit := range []int{unix.RLIMIT_CPU, unix.RLIMIT_FSIZE, unix.RLIMIT_DATA, unix.RLIMIT_AS} {
		_ = unix.Setrlimit(limit, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	}
	closeOnExec()
	unix.Umask(0o022)
	_ = unix.Chdir("/")
	_, _ = unix.Setsid()
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
	ignoreNothing()
}

// noCores keeps secrets out of core dumps, those of scripts too. A limit of 0 does not hold the kernel
// from piping a dump to a program such as systemd-coredump, which writes the environment of who crashed
// to the journal; a limit of one byte does, and is too small for a file (core(5), kernel/coredump.c).
func noCores() {
	if unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}) != nil {
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	}
}

// closeOnExec keeps scripts from inheriting descriptors that whoever started this process forgot.
func closeOnExec() {
	const first = 3
	if unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	// Kernels before 5.11.
	open, _ := os.ReadDir("/proc/self/fd")
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
		}
	}
}

// subreaper makes orphans of scripts children of this process, so that none gets away.
func subreaper() bool {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil
}

// checkPeer lets root and user kpssh in, when input is a socket. The socket's mode says the same;
// this holds when somebody changed it. Where input is none, sudo has decided.
func checkPeer(fd int, sys hostSystem) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if errors.Is(err, unix.ENOTSOCK) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking who is at the other end: %w", err)
	}
	if cred.Uid == 0 {
		return nil
	}
	user, err := sys.user()
	if err != nil {
		return err
	}
	if int(cred.Uid) != user.uid {
		return fmt.Errorf("uid %d is at the other end", cred.Uid)
	}
	return nil
}

// private moves the session to descriptors that nothing else knows: whatever prints to standard
// output ends up in the log, and scripts inherit none of it.
func private(p Process) (in, out *os.File, err error) {
	files := make([]*os.File, 2)
	for i, f := range []*os.File{p.Stdin, p.Stdout} {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 10)
		if err != nil {
			return nil, nil, fmt.Errorf("moving descriptor %d: %w", i, err)
		}
		// Non-blocking descriptors have deadlines.
		_ = unix.SetNonblock(fd, true)
		files[i] = os.NewFile(uintptr(fd), "session")
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return nil, nil, fmt.Errorf("closing input: %w", err)
	}
	if err := unix.Dup3(2, 1, 0); err != nil {
		return nil, nil, fmt.Errorf("closing output: %w", err)
	}
	return files[0], files[1], nil
}
