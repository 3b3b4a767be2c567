package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	tmpfs   = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
	memory  = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
	cpu     = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
	named   = "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"
	unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	only    = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
	inside  = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		self, mounts string
		want         Layout
	}{
		"v1 and v2 side by side: a child in every hierarchy": {
			self:   "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/\n0::/\n",
			mounts: tmpfs + memory + cpu + named + unified,
			want: Layout{Own: []string{
				"/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified",
			}},
		},
		"v2 alone": {
			self:   "0::/user.slice/user-0.slice/session-3.scope\n",
			mounts: only,
			want:   Layout{V2Only: true, Own: []string{"/sys/fs/cgroup/user.slice/user-0.slice/session-3.scope"}},
		},
		"a container that sees only its part of a hierarchy": {
			self:   "4:memory:/docker/abc/x\n",
			mounts: inside,
			want:   Layout{Own: []string{"/sys/fs/cgroup/memory/x"}},
		},
		"a hierarchy in which our group does not show is left out": {
			self:   "4:memory:/elsewhere\n9:name=systemd:/\n",
			mounts: inside + named,
			want:   Layout{Own: []string{"/sys/fs/cgroup/systemd"}},
		},
		"the same hierarchy mounted twice counts once": {
			self:   "4:memory:/a\n",
			mounts: memory + memory,
			want:   Layout{Own: []string{"/sys/fs/cgroup/memory/a"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(strings.NewReader(test.self), strings.NewReader(test.mounts))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRefusesAMachineWithoutControlGroups(t *testing.T) {
	if _, err := parse(strings.NewReader("0::/\n"), strings.NewReader(tmpfs)); err == nil {
		t.Error("took a machine without control groups")
	}
	if _, err := parse(strings.NewReader("nonsense\n"), strings.NewReader(only)); err == nil {
		t.Error("took a malformed line")
	}
}

func TestMakeFillsCpusetFromTheParent(t *testing.T) {
	parent := t.TempDir()
	for file, value := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"} {
		if err := os.WriteFile(filepath.Join(parent, file), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(parent, "child")
	if err := Make([]string{dir}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus"))
	if err != nil || string(got) != "0-1\n" {
		t.Errorf("cpuset.cpus is %q, %v", got, err)
	}
}

func TestRemoveTakesChildrenFirstAndIsIdempotent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "g")
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove([]string{dir}, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}
