package shim

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// lastSignal is the highest signal of Linux on what the shim is built for.
	lastSignal = 64
	// kernelSigset is the size of the kernel's signal set there.
	kernelSigset = lastSignal / 8
)

// sigaction is the kernel's, of which only the handler counts here; the rest is as large as on any machine.
type sigaction struct {
	handler uintptr // 0 is SIG_DFL, 1 SIG_IGN
	_       [7]uintptr
}

// ignored is SIG_IGN.
const ignored = 1

func rtSigaction(sig int, act, old *sigaction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), kernelSigset, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// ignoreNothing gives each signal back that whoever started this process had it ignore, as scripts would inherit that.
// Go's runtime takes over most signals, which are at their defaults again in what it starts; but it leaves those of job
// control alone, and 32 to 34, which are the C library's: glibc's posix_spawn leaves 32 and 33 ignored in the children
// of a program that has used them.
func ignoreNothing() {
	for sig := 1; sig <= lastSignal; sig++ {
		var now sigaction
		if rtSigaction(sig, nil, &now) == nil && now.handler == ignored {
			_ = rtSigaction(sig, &sigaction{}, nil)
		}
	}
}
