package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cgroup"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/netns"
)

// killDeadline is how long a killed process may take to go: it is only long for one that is stuck in the kernel.
const killDeadline = 20 * time.Second

// Collect removes the labs whose owner is dead and returns their ids. It may run at any time, also beside itself.
func (r Registry) Collect() ([]string, error) {
	records, err := r.Records()
	errs := []error{err}
	var collected []string
	for _, record := range records {
		if record.Owner.Alive() {
			continue
		}
		if err := r.remove(record); err != nil {
			errs = append(errs, fmt.Errorf("removing dead lab %q: %w", record.ID, err))
			continue
		}
		collected = append(collected, record.ID)
	}
	return collected, errors.Join(errs...)
}

// remove takes a lab apart from the outside in: first what could make new things, then what is left lying. The record
// stays until all is gone, so that a failure is tried again.
func (r Registry) remove(record Record) error {
	errs := []error{killAll(record)}
	errs = append(errs, unmountBelow(record.Dir))
	errs = append(errs, cgroup.Remove(record.Cgroups, killDeadline))
	if record.Netns != "" {
		errs = append(errs, netns.Delete(record.Netns))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := removeFiles(record); err != nil {
		return err
	}
	if err := os.Remove(r.path(record.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the record: %w", err)
	}
	return nil
}

func removeFiles(record Record) error {
	paths := append(record.Paths[:len(record.Paths):len(record.Paths)], record.Dir)
	if record.KeepLogs {
		entries, err := os.ReadDir(record.Dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("listing %q: %w", record.Dir, err)
		}
		paths = paths[:len(paths)-1]
		for _, e := range entries {
			if e.Name() != "logs" {
				paths = append(paths, filepath.Join(record.Dir, e.Name()))
			}
		}
	}
	var errs []error
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			errs = append(errs, fmt.Errorf("removing %q: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

func killAll(record Record) error {
	var errs []error
	for _, p := range record.Processes {
		errs = append(errs, p.Kill(killDeadline))
	}
	if record.Netns == "" {
		return errors.Join(errs...)
	}
	pids, err := netns.Processes(record.Netns)
	errs = append(errs, err)
	for _, pid := range pids {
		p, err := Identify(pid)
		if err != nil {
			continue // gone meanwhile
		}
		errs = append(errs, p.Kill(killDeadline))
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts what is mounted at and below dir, the deepest and the latest first.
func unmountBelow(dir string) error {
	// Not of /proc/self, which is the main thread: a test may have put that one into a mount namespace of its own.
	content, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	points := mountsBelow(string(content), dir)
	for _, point := range points {
		err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmounting %q: %w", point, err)
		}
	}
	return nil
}

func mountsBelow(mountinfo, dir string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var points []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if point := unescape.Replace(fields[4]); point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	sort.SliceStable(points, func(i, j int) bool { return len(points[i]) > len(points[j]) })
	return points
}
