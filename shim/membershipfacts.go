package shim

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"golang.org/x/sys/unix"
)

// controlPlaneTraces are what a machine has that runs a control plane: kubeadm's static pods and its administrator's
// credentials, and the state of servers of k3s, RKE2 and k0s.
var controlPlaneTraces = []string{
	"/etc/kubernetes/manifests/kube-apiserver.y*ml", "/etc/kubernetes/manifests/etcd.y*ml", "/etc/kubernetes/admin.conf",
	"/var/lib/rancher/k3s/server/tls", "/var/lib/rancher/rke2/server/tls", "/var/lib/k0s/pki/ca.key",
}

// kubeletConfigs are where kubelets have their credentials from.
var kubeletConfigs = []string{
	"/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf", "/etc/kubernetes/kpssh/kubelet.conf",
	"/var/lib/kubelet/kubeconfig", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
	"/var/lib/k0s/kubelet.conf",
}

// execDirs are where programs of a node and of its containers are run from.
var execDirs = []string{"/usr/local/bin", "/opt/cni/bin", "/var/lib/containerd", "/var/lib/kubelet"}

const (
	maxServers    = 8
	maxKubeconfig = 64 << 10
)

// membershipFacts finds what tells whose node a host is, and what keeps it from being one, and says whether it could
// look. root is empty but in tests. Any of these paths may be on a file system that does not answer.
func membershipFacts(root string, f *wire.HostFacts) (seen bool) {
	found, seen := within(func() wire.HostFacts { return configured(root) })
	f.ControlPlane, f.Servers, f.UserlandArch, f.KubeletTolerates = found.ControlPlane, found.Servers, found.UserlandArch, found.KubeletTolerates
	f.NoExec = noExecs(root)
	if f.Cgroup != "v2" { // all that its version is asked for
		f.KubeletVersion, _ = within(func() string { return kubeletVersion(root) })
	}
	return seen
}

// configured is what the host's files say.
func configured(root string) (f wire.HostFacts) {
	f.ControlPlane = slices.ContainsFunc(controlPlaneTraces, func(pattern string) bool {
		found, _ := filepath.Glob(root + pattern)
		return len(found) > 0
	})
	for _, path := range kubeletConfigs {
		f.Servers = append(f.Servers, servers(firstBytes(root+path, maxKubeconfig))...)
	}
	slices.Sort(f.Servers)
	f.Servers = slices.Compact(f.Servers)
	f.Servers = f.Servers[:min(len(f.Servers), maxServers)]
	for _, shell := range []string{"/usr/bin/bash", "/bin/bash", "/bin/sh"} {
		if f.UserlandArch = elfArch(firstBytes(root+shell, elfHeader)); f.UserlandArch != "" {
			break
		}
	}
	f.KubeletTolerates = tolerated(root)
	return f
}

// noExecs are those of the directories that no program can be run in: one that does not answer is one of them. They are
// asked at once, as several may hang.
func noExecs(root string) []string {
	answers := make(chan string, len(execDirs))
	for _, dir := range execDirs {
		go func() {
			if noExec(root + dir) {
				dir = ""
			}
			answers <- dir
		}()
	}
	left, late := slices.Clone(execDirs), time.After(lookTime)
	for range execDirs {
		select {
		case good := <-answers:
			left = slices.DeleteFunc(left, func(dir string) bool { return dir == good })
		case <-late:
			return left
		}
	}
	return left
}

// tolerated is what drop-ins of a kubelet's configuration that the host brings, or the file that kubeadm writes, allow.
func tolerated(root string) (found []string) {
	paths, _ := filepath.Glob(root + "/etc/kubernetes/kubelet.conf.d/*.conf")
	for _, path := range append(paths, root+"/var/lib/kubelet/config.yaml") {
		for line := range strings.Lines(string(firstBytes(path, maxKubeconfig))) {
			switch strings.Join(strings.Fields(line), "") {
			case "failSwapOn:false":
				found = append(found, wire.TolerateSwap)
			case "failCgroupV1:false":
				found = append(found, wire.TolerateCgroupV1)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// firstBytes reads the beginning of a regular file; nothing when there is none.
func firstBytes(path string, most int) []byte {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	data := make([]byte, most)
	n, _ := f.Read(data)
	return data[:n]
}

// servers are the API servers that a kubeconfig names, as HOST:PORT. It is read without a parser of YAML: what stands
// behind "server:" is a URL in any spelling of one.
func servers(kubeconfig []byte) (found []string) {
	for rest := kubeconfig; ; {
		var ok bool
		if _, rest, ok = bytes.Cut(rest, []byte("server:")); !ok {
			return found
		}
		url := strings.TrimLeft(string(rest[:min(len(rest), 300)]), " \t\"'")
		url, ok = strings.CutPrefix(url, "https://")
		if end := strings.IndexAny(url, " \t\r\n\"',}/"); end >= 0 {
			url = url[:end]
		}
		if host := strings.ToLower(url); ok && host != "" {
			if strings.LastIndexByte(host, ':') <= strings.LastIndexByte(host, ']') { // no port behind the name or the brackets
				host += ":443"
			}
			found = append(found, host)
		}
	}
}

const elfHeader = 20

// elfArch is the architecture of a program, as Go names it.
func elfArch(header []byte) string {
	if len(header) < elfHeader || string(header[:4]) != "\x7fELF" {
		return ""
	}
	machine := int(header[18]) | int(header[19])<<8
	if header[5] == 2 { // big-endian
		machine = int(header[19]) | int(header[18])<<8
	}
	for _, a := range elfMachines {
		if a.machine == machine {
			return a.name
		}
	}
	return ""
}

// elfMachines are those that kubelets run on, by their numbers in ELF.
var elfMachines = []struct {
	machine int
	name    string
}{{62, "amd64"}, {183, "arm64"}, {3, "386"}, {40, "arm"}, {243, "riscv64"}, {22, "s390x"}, {21, "ppc64le"}}

// noExec says whether programs cannot be run below the path, or below what would hold it once it is made.
func noExec(path string) bool {
	for {
		var st unix.Statfs_t
		switch err := unix.Statfs(path, &st); {
		case err == nil:
			return st.Flags&unix.ST_NOEXEC != 0
		case path == "/" || path == ".":
			return false
		}
		path = filepath.Dir(path)
	}
}

// kubeletVersion asks the kubelet that a node would run, if nobody but root could have put it there, or could put another
// in its place before it is run.
func kubeletVersion(root string) string {
	for _, path := range []string{"/usr/local/bin/kubelet", "/usr/bin/kubelet", "/opt/bin/kubelet"} {
		program, err := filepath.EvalSymlinks(root + path)
		if err != nil || guarded(filepath.Dir(root+path), os.Geteuid()) != nil || guarded(program, os.Geteuid()) != nil {
			continue
		}
		if st, err := os.Stat(program); err != nil || !st.Mode().IsRegular() {
			continue
		}
		out, err := runTool(probeTime, program, "--version")
		if version, ok := strings.CutPrefix(strings.TrimSpace(out), "Kubernetes "); err == nil && ok {
			return version
		}
	}
	return ""
}
