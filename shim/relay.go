package shim

import (
	"fmt"
	"io"
	"os"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

// relay is the unprivileged stage: it connects the SSH channel with the root stage and decides
// nothing. It looks at no argument and at no environment.
func relay(p Process, paths paths) int {
	if isTerminal(p.Stdin) && isTerminal(p.Stdout) {
		fmt.Fprint(p.Stderr, usage)
		return exitUsage
	}
	conn, err := dial(paths.socket)
	if err != nil {
		return relaySudo(p, paths, err)
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, p.Stdin)
		shutdown(conn)
	}()
	// The root stage speaks first. What does not begin like its frames is a line of text that says
	// why there is no session.
	head := make([]byte, 4<<10)
	n, err := conn.Read(head)
	if n == 0 {
		return refuseText(p.Stderr, signing.ReasonNotRoot, fmt.Sprintf("root stage says nothing: %v", err))
	}
	if head[0] != '\n' {
		_, _ = p.Stderr.Write(head[:n])
		_, _ = io.Copy(p.Stderr, io.LimitReader(conn, 4<<10))
		return exitRefused
	}
	if _, err := p.Stdout.Write(head[:n]); err != nil {
		return exitFailed
	}
	if _, err := io.Copy(p.Stdout, conn); err != nil {
		return exitFailed
	}
	return exitOK
}

// dial connects to a socket of this host. Package net would do the same at a fifth of a megabyte.
func dial(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connecting to %q: %w", path, err)
	}
	// Non-blocking, so that reading and writing at once cost no threads.
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), path), nil
}

// shutdown says that no more comes, and leaves the other direction open.
func shutdown(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// relaySudo becomes the root stage through sudo, where there is no socket. It does not return when
// sudo can be started.
func relaySudo(p Process, paths paths, noSocket error) int {
	sudo, err := findSudo("sudo")
	if err == nil {
		err = unix.Exec(sudo, []string{"sudo", "-n", paths.shim, "root-stage"}, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"})
	}
	return refuseText(p.Stderr, signing.ReasonNotRoot, fmt.Sprintf("no way to the root stage: %v; sudo: %v", noSocket, err))
}

// refuseText is a refusal where no signed answer is possible.
func refuseText(to io.Writer, reason signing.Reason, why string) int {
	fmt.Fprintf(to, "kpssh-shim: refused: %s: %.400q\n", reason, why)
	return exitRefused
}
