// Package cachedir keeps directories that are dear to make (a build, a root file system) so that a machine pays for
// each once. An entry is whole or absent: it is filled under another name and renamed, so a crash leaves rubbish that
// the next fill removes, never half an entry; a lock lets two runs that want the same entry make it once.
package cachedir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Logf receives one progress message, without a final newline. A nil Logf is silent.
type Logf func(format string, args ...any)

// Printf calls f unless it is nil.
func (f Logf) Printf(format string, args ...any) {
	if f != nil {
		f(format, args...)
	}
}

// pollLock is how often a held lock is tried again: flock cannot be waited for with a deadline.
const pollLock = 200 * time.Millisecond

// Default is ${XDG_CACHE_HOME:-$HOME/.cache}/kpssh.
func Default() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory: %w", err)
	}
	return filepath.Join(base, "kpssh"), nil
}

// Fill returns the path of entry key under root, calling fill first if the entry is not there. fill writes into the
// directory it is given; when it returns an error the entry stays absent. key may contain slashes.
func Fill(ctx context.Context, root, key string, log Logf, fill func(ctx context.Context, dir string) error) (string, error) {
	target := filepath.Join(root, filepath.FromSlash(key))
	if exists(target) {
		return target, nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return "", fmt.Errorf("making the cache: %w", err)
	}
	unlock, err := Lock(ctx, target+".lock", log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(target) { // another run made it while we waited
		return target, nil
	}
	if err := sweep(target); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(target), tempPrefix(target))
	if err != nil {
		return "", fmt.Errorf("making the cache: %w", err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("making the cache: %w", err)
	}
	if err := fill(ctx, tmp); err != nil {
		return "", errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, target); err != nil {
		return "", fmt.Errorf("keeping %q: %w", key, err)
	}
	return target, nil
}

// Lock takes the lock file at path, waiting for as long as ctx allows, and returns how to give it up. The kernel
// gives it up for a process that dies.
func Lock(ctx context.Context, path string, log Logf) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	told := time.Time{}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %q: %w", path, err), f.Close())
		}
		if time.Since(told) > 15*time.Second {
			told = time.Now()
			log.Printf("waiting for another run to finish with %s", strings.TrimSuffix(path, ".lock"))
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for lock %q: %w", path, ctx.Err()), f.Close())
		case <-time.After(pollLock):
		}
	}
}

// KillTogether makes the cancellation of cmd's context end also what cmd started: a fill that was given up must not
// go on writing into a directory that is being removed.
func KillTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// sweep removes what fills that died left behind. It is only right under the entry's lock.
func sweep(target string) error {
	dead, err := filepath.Glob(filepath.Join(filepath.Dir(target), tempPrefix(target)+"*"))
	if err != nil {
		return fmt.Errorf("looking for dead fills: %w", err)
	}
	for _, d := range dead {
		if err := os.RemoveAll(d); err != nil {
			return fmt.Errorf("removing a dead fill: %w", err)
		}
	}
	return nil
}

func tempPrefix(target string) string { return "." + filepath.Base(target) + ".fill-" }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
