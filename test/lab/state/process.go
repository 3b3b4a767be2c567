package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process names a process for good: ids are used again, an id with a start time and a boot is not.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
	Boot  string `json:"boot"`
}

// Identify names the process that has id pid now.
func Identify(pid int) (Process, error) {
	boot, err := bootID()
	if err != nil {
		return Process{}, err
	}
	start, _, err := stat(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: start, Boot: boot}, nil
}

// Alive is whether that very process still runs; one that has ended but was not waited for does not.
func (p Process) Alive() bool {
	boot, err := bootID()
	if err != nil || boot != p.Boot {
		return false
	}
	start, zombie, err := stat(p.PID)
	return err == nil && start == p.Start && !zombie
}

// Kill ends the process and waits until it is gone. One that is gone already is no error.
func (p Process) Kill(deadline time.Duration) error {
	for end := time.Now().Add(deadline); p.Alive(); time.Sleep(20 * time.Millisecond) {
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("killing process %d: %w", p.PID, err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("killing process %d: still there after %s", p.PID, deadline)
		}
	}
	return nil
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// stat reads field 22 (start time) and field 3 (state) of /proc/PID/stat. The second field may hold spaces and
// parentheses, so counting starts behind the last parenthesis.
func stat(pid int) (start uint64, zombie bool, err error) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false, fmt.Errorf("reading process %d: %w", pid, err)
	}
	_, rest, _ := strings.Cut(string(content), ")")
	if i := strings.LastIndex(rest, ")"); i >= 0 {
		rest = rest[i+1:]
	}
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, false, fmt.Errorf("reading process %d: malformed stat", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("reading process %d: malformed start time", pid)
	}
	return start, fields[0] == "Z" || fields[0] == "X", nil
}
