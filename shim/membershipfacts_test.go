package shim

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// hostTree is a host's file system with these files.
func hostTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+path, []byte(text), 0o755); err != nil { //nolint:gosec // some are run
			t.Fatal(err)
		}
	}
	return root
}

func TestWhoseNodeAHostIs(t *testing.T) {
	const flow = `clusters: [{name: cluster, cluster: {server: "https://API.example:6443", certificate-authority: /x}}]`
	const block = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: QUJD\n    server: https://10.0.0.100:6443\n  name: default\n"
	for name, tt := range map[string]struct {
		files        map[string]string
		controlPlane bool
		servers      []string
	}{
		"nobody's":                    {},
		"a member made by kubeadm":    {map[string]string{"/etc/kubernetes/kubelet.conf": block}, false, []string{"10.0.0.100:6443"}},
		"a member made by kpssh":      {map[string]string{"/etc/kubernetes/kpssh/kubelet.conf": flow}, false, []string{"api.example:6443"}},
		"one that is bootstrapped":    {map[string]string{"/etc/kubernetes/bootstrap-kubelet.conf": "server: 'https://[fd00::1]'\n"}, false, []string{"[fd00::1]:443"}},
		"of two":                      {map[string]string{"/etc/kubernetes/kubelet.conf": block, "/var/lib/kubelet/kubeconfig": "server: https://eks.example/\n"}, false, []string{"10.0.0.100:6443", "eks.example:443"}},
		"what is no kubeconfig":       {map[string]string{"/etc/kubernetes/kubelet.conf": "server: http://x\nserver: \nserver:"}, false, nil},
		"a control plane of kubeadm":  {map[string]string{"/etc/kubernetes/manifests/kube-apiserver.yaml": "{}"}, true, nil},
		"one with etcd alone":         {map[string]string{"/etc/kubernetes/manifests/etcd.yml": "{}"}, true, nil},
		"its administrator's machine": {map[string]string{"/etc/kubernetes/admin.conf": block}, true, nil},
		"a server of k3s":             {map[string]string{"/var/lib/rancher/k3s/server/tls/server-ca.key": "x"}, true, nil},
		"a static pod of another":     {map[string]string{"/etc/kubernetes/manifests/proxy.yaml": "{}"}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := wire.HostFacts{Cgroup: "v2"}
			membershipFacts(hostTree(t, tt.files), &f)
			if f.ControlPlane != tt.controlPlane || !slices.Equal(f.Servers, tt.servers) {
				t.Errorf("control plane %t, servers %q", f.ControlPlane, f.Servers)
			}
		})
	}
}

func TestTheUserlandIsThatOfTheShell(t *testing.T) {
	elf := func(class, order byte, machine ...byte) string {
		return string(append(append([]byte{0x7f, 'E', 'L', 'F', class, order, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0}, machine...), 0, 0))
	}
	for want, header := range map[string]string{
		"amd64": elf(2, 1, 62, 0), "arm64": elf(2, 1, 183, 0), "arm": elf(1, 1, 40, 0), "386": elf(1, 1, 3, 0),
		"riscv64": elf(2, 1, 243, 0), "s390x": elf(2, 2, 0, 22), "ppc64le": elf(2, 1, 21, 0), "": "#!/bin/true, not a program",
	} {
		f := wire.HostFacts{Cgroup: "v2"}
		membershipFacts(hostTree(t, map[string]string{"/bin/bash": header}), &f)
		if f.UserlandArch != want {
			t.Errorf("%q is not %q", f.UserlandArch, want)
		}
	}
	var f wire.HostFacts
	membershipFacts("", &f)
	if f.UserlandArch != runtime.GOARCH {
		t.Errorf("this host's is %q", f.UserlandArch)
	}
}

func TestTheKubeletSaysItsVersionWhereItMatters(t *testing.T) {
	files := map[string]string{"/usr/local/bin/kubelet": "#!/bin/sh\necho Kubernetes v1.35.4\n"}
	for cgroup, want := range map[string]string{"v1": "v1.35.4", "hybrid": "v1.35.4", "v2": ""} {
		f := wire.HostFacts{Cgroup: cgroup}
		membershipFacts(hostTree(t, files), &f)
		if f.KubeletVersion != want {
			t.Errorf("%s: %q", cgroup, f.KubeletVersion)
		}
	}
	for _, open := range []string{"/usr/local/bin/kubelet", "/usr/local/bin", "/usr/local"} {
		root := hostTree(t, files)
		if err := os.Chmod(root+open, 0o777); err != nil { //nolint:gosec // that it is not run is the test
			t.Fatal(err)
		}
		if version := kubeletVersion(root); version != "" {
			t.Errorf("a program was run that anybody who can write %s could have put there: %q", open, version)
		}
	}
	root := hostTree(t, map[string]string{"/opt/node/kubelet": files["/usr/local/bin/kubelet"], "/usr/local/bin/other": ""})
	if err := os.Symlink(root+"/opt/node/kubelet", root+"/usr/local/bin/kubelet"); err != nil {
		t.Fatal(err)
	}
	if version := kubeletVersion(root); version != "v1.35.4" {
		t.Errorf("of a link to a kubelet: %q", version)
	}
	if err := os.Chmod(root+"/opt/node", 0o777); err != nil { //nolint:gosec // that it is not run is the test
		t.Fatal(err)
	}
	if version := kubeletVersion(root); version != "" {
		t.Errorf("a link was followed to where anybody can write: %q", version)
	}
}
