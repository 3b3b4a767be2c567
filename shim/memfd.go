package shim

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sealedScript puts a script into anonymous memory that nobody can change any more, this process
// included, and only then compares its digest: what was hashed is what runs.
func sealedScript(script []byte, digest string) (*os.File, error) {
	f, err := memfd("kpssh-script")
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(script); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("filling memory file: %w", err)
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("sealing memory file: %w", err)
	}
	sum := sha256.New()
	chunk := make([]byte, 8<<10)
	if _, err := io.CopyBuffer(sum, io.NewSectionReader(f, 0, int64(len(script))+1), chunk); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("hashing memory file: %w", err)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != digest {
		_ = f.Close()
		return nil, fmt.Errorf("memory file has digest %s", got)
	}
	return f, nil
}

// memfd asks for memory that can never be made executable, which hardened kernels insist on and
// kernels before 6.3 do not know: bash reads its script, nothing maps it.
func memfd(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("making memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
