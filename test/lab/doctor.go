package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/cgroup"
)

// Severity of a Finding.
type Severity int

// Severities: Fatal keeps a lab from starting, a Note costs time.
const (
	Fine Severity = iota
	Note
	Fatal
)

// Finding is one fact about this machine.
type Finding struct {
	Severity        Severity
	Subject, Detail string
}

// minFree is what a lab with a few hosts, and the caches, may take: the caches alone are 2 GB and the build's own
// cache 3 GB more.
const minFree = 8 << 30

// Examine looks at what a lab needs of this machine. It changes nothing.
func Examine() []Finding {
	return []Finding{
		examineRoot(), examineTools(), examineGo(), examineCgroups(), examineOverlay(), examineInotify(), examineSpace(),
		examineCaches(),
	}
}

func examineRoot() Finding {
	if os.Geteuid() != 0 {
		return Finding{Fatal, "root", "a lab makes namespaces, mounts and control groups: run it with sudo"}
	}
	return Finding{Fine, "root", "yes"}
}

func examineTools() Finding {
	missing := missingPackages(hostTools(), exec.LookPath)
	switch _, err := exec.LookPath("apt-get"); {
	case len(missing) == 0:
		return Finding{Fine, "tools", "all here"}
	case err != nil:
		return Finding{Fatal, "tools", "install " + strings.Join(missing, ", ") + " (there is no apt-get to do it for you)"}
	default:
		return Finding{Note, "tools", "the first start will install " + strings.Join(missing, ", ")}
	}
}

func examineGo() Finding {
	path, err := exec.LookPath("go")
	if err != nil {
		return Finding{Fatal, "go", "needed to build the sandbox image, and Kubernetes where its release files are out of reach"}
	}
	return Finding{Fine, "go", path}
}

func examineCgroups() Finding {
	layout, err := cgroup.Read()
	if err != nil {
		return Finding{Fatal, "control groups", err.Error()}
	}
	if !layout.V2Only {
		return Finding{Fine, "control groups", fmt.Sprintf("v1, %d hierarchies", len(layout.Own))}
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return Finding{Fatal, "control groups", "v2 only, and no systemd here to delegate a part of them"}
	}
	return Finding{Fine, "control groups", "v2, delegated by systemd"}
}

func examineOverlay() Finding {
	content, err := os.ReadFile("/proc/filesystems")
	if err != nil || !strings.Contains(string(content), "\toverlay\n") {
		return Finding{Note, "overlay", "the kernel has no overlay file system loaded; it may load it when it is asked"}
	}
	return Finding{Fine, "overlay", "yes"}
}

// inotifyPerHost is what systemd, the kubelet and containerd of one host take of fs.inotify.max_user_instances, which root has
// once on a machine, for all hosts of all labs together.
const inotifyPerHost = 14

// comfortableHosts run side by side where two labs do.
const comfortableHosts = 12

func examineInotify() Finding {
	content, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	limit, parsed := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || parsed != nil {
		return Finding{Note, "inotify", "fs.inotify.max_user_instances cannot be read"}
	}
	if limit < comfortableHosts*inotifyPerHost {
		return Finding{Note, "inotify", fmt.Sprintf("fs.inotify.max_user_instances is %d: about %d hosts at a time, of all labs; for more: sysctl fs.inotify.max_user_instances=512",
			limit, limit/inotifyPerHost)}
	}
	return Finding{Fine, "inotify", strconv.Itoa(limit) + " instances"}
}

func examineSpace() Finding {
	dir := defaultDir
	for {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return Finding{Fatal, "disk", err.Error()}
	}
	switch fs.Type {
	case unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		return Finding{Fatal, "disk", defaultDir + " is on a tmpfs or an overlay, over which no host can be laid"}
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if free < minFree {
		return Finding{Note, "disk", fmt.Sprintf("%d GiB free at %s: %d are better", free>>30, dir, minFree>>30)}
	}
	return Finding{Fine, "disk", fmt.Sprintf("%d GiB free at %s", free>>30, dir)}
}

func examineCaches() Finding {
	cache, err := cachedir.Default()
	if err != nil {
		return Finding{Fatal, "caches", err.Error()}
	}
	for _, name := range []string{"kubernetes", "rootfs"} {
		entries, err := filepath.Glob(filepath.Join(cache, name, "[^.]*"))
		if err != nil || len(entries) == 0 {
			return Finding{Note, "caches", "empty: the first start may take up to 20 minutes"}
		}
	}
	return Finding{Fine, "caches", cache}
}
