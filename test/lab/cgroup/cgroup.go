// Package cgroup makes control groups for pool hosts: one child a host, under the group that this process is in
// already, in every hierarchy of the machine. A host's systemd then sees its own root in each, and limits and clean-up
// have one place to look.
//
// With control groups v1, or v1 beside v2, children are plain directories. With v2 alone a group that holds processes
// cannot hand controllers to its children, so the machine's systemd is asked for a delegated scope instead.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Layout is how this machine's hierarchies are mounted and where this process is in each.
type Layout struct {
	// Own holds, for each mounted hierarchy, the directory of the group that this process is in.
	Own []string
	// V2Only is true when the unified hierarchy is the only one.
	V2Only bool
}

// Read finds the layout of this machine.
func Read() (Layout, error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Layout{}, fmt.Errorf("reading own control groups: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, fmt.Errorf("reading mounts: %w", err)
	}
	return parse(strings.NewReader(string(self)), strings.NewReader(string(mounts)))
}

// parse joins the text of /proc/self/cgroup ("4:memory:/a/b") with that of /proc/self/mountinfo.
func parse(self, mountinfo io.Reader) (Layout, error) {
	own := map[string]string{} // "memory", "name=systemd" or "" for the unified one → path of our group in it
	lines := bufio.NewScanner(self)
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			return Layout{}, fmt.Errorf("reading own control groups: malformed line %q", lines.Text())
		}
		own[parts[1]] = parts[2]
	}
	layout := Layout{V2Only: true}
	seen := map[string]bool{}
	mounts := bufio.NewScanner(mountinfo)
	for mounts.Scan() {
		m, ok := parseMount(mounts.Text())
		if !ok {
			continue
		}
		layout.V2Only = layout.V2Only && m.unified
		path, ok := m.find(own)
		if !ok {
			continue
		}
		dir, ok := m.dir(path)
		if !ok || seen[dir] {
			continue
		}
		seen[dir] = true
		layout.Own = append(layout.Own, dir)
	}
	if len(layout.Own) == 0 {
		return Layout{}, errors.New("finding control groups: no hierarchy is mounted")
	}
	return layout, nil
}

// mount is one mounted hierarchy.
type mount struct {
	root, point string
	unified     bool
	controllers []string
}

// parseMount reads one line of mountinfo: "36 31 0:33 ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPEROPTIONS".
func parseMount(line string) (mount, bool) {
	fields := strings.Fields(line)
	for i, f := range fields {
		if f != "-" || i < 5 || len(fields) < i+4 {
			continue
		}
		m := mount{root: fields[3], point: fields[4], controllers: strings.Split(fields[i+3], ",")}
		m.unified = fields[i+1] == "cgroup2"
		return m, m.unified || fields[i+1] == "cgroup"
	}
	return mount{}, false
}

// find returns our path in this hierarchy.
func (m mount) find(own map[string]string) (string, bool) {
	if m.unified {
		path, ok := own[""]
		return path, ok
	}
	for names, path := range own {
		for name := range strings.SplitSeq(names, ",") {
			for _, c := range m.controllers {
				if name != "" && name == c {
					return path, true
				}
			}
		}
	}
	return "", false
}

// dir is where path shows under the mount, if it does.
func (m mount) dir(path string) (string, bool) {
	rel, err := filepath.Rel(m.root, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", false
	}
	return filepath.Join(m.point, rel), true
}

// Children are the directories of a child called name in every hierarchy.
func (l Layout) Children(name string) []string {
	dirs := make([]string, 0, len(l.Own))
	for _, own := range l.Own {
		dirs = append(dirs, filepath.Join(own, name))
	}
	return dirs
}

// Make makes the groups at dirs. In a cpuset hierarchy a new group has no processors and no memory nodes and refuses
// members until it is given some, so it is given its parent's.
func Make(dirs []string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making a control group: %w", err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if err := inherit(dir, file); err != nil {
				return err
			}
		}
	}
	return nil
}

func inherit(dir, file string) error {
	value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	if len(strings.TrimSpace(string(value))) == 0 {
		return nil // v2: empty means the parent's
	}
	if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
		return fmt.Errorf("setting %s: %w", file, err)
	}
	return nil
}

// Remove kills what is still in the groups at dirs and below, and removes them. Groups that are gone are no error.
func Remove(dirs []string, deadline time.Duration) error {
	end := time.Now().Add(deadline)
	for {
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, removeTree(dir))
		}
		err := errors.Join(errs...)
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond) // a killed process stays a member until it is reaped
	}
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading a control group: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	for _, pid := range members(dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is what we want
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("removing control group %q: %w", dir, err))
	}
	return errors.Join(errs...)
}

func members(dir string) []int {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(content)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
