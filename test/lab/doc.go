// Package lab runs a real Kubernetes control plane and real pool hosts on one Linux machine, for the demo, the
// end-to-end tests and the benches. Nothing in it is a stand-in: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kubelet, containerd, runc, systemd and sshd are the ones a user runs.
//
// # Shape
//
// Everything of a lab lives in a network namespace of its own, kpssh-<id>: a bridge, the control plane, whatever
// [Lab.Command] starts (the controller under test), and the host side of each pool host's cable. It has no default
// route, so nothing leaves it, and two labs use the same addresses side by side:
//
//	10.77.0.1        control plane (API server on :6443) and everything started with Lab.Command
//	10.77.0.10       the control plane's own node, where a test has one
//	10.77.0.11 …     pool hosts, in the order in which they were added
//	10.88.N.0/24     pods on 10.77.0.(10+N)
//	10.96.0.1        the API server, for pods on the control plane's own node
//
// A pool host is a systemd-nspawn machine: an overlay over a cached Debian root file system, booted by its own
// systemd. Code outside the namespace dials in with [Lab.DialContext], talks to the API server with
// [Lab.RESTConfig], and people with the file named by [Lab.ForwardedKubeconfig].
//
//	l, err := lab.Start(ctx, lab.Options{Log: t.Logf})
//	defer l.Close()
//	h, err := l.AddHost(ctx, lab.HostOptions{Name: "host-a"})
//	out, err := h.Exec(ctx, "systemctl", "is-system-running")
//
// [Lab.StartNode] gives the cluster a node that is no pool host, to run the controller as a Pod; [Host.LoadImage] brings
// its image there. [Lab.Audit] says which requests the API server has had, in a lab with [Options.AuditLog]:
//
//	node, err := l.StartNode(ctx, lab.NodeOptions{})
//	err = node.LoadImage(ctx, "dist/image/karpenter-provider-ssh-linux-amd64.tar")
//
// [StartAPIServer] is the small sibling for suites that need an API server and nothing else: plain processes on
// 127.0.0.1, no root, no namespace.
//
// # What a host has
//
// The root file system plays a pre-baked host. It has, before anything of ours is installed:
//
//   - Debian 12 with systemd, openssh-server, sudo, iptables, conntrack, ethtool, socat, containerd, runc and the CNI
//     plugins in /usr/lib/cni; no cloud tools, no kubectl, no way to the internet.
//   - sshd enabled, root login with the lab's admin key ([Lab.AdminKeyPath]), UseDNS no, its own name in /etc/hosts.
//   - /usr/local/bin/kubelet (read-only; left out with [HostOptions.NoKubelet]). No kubelet.service: that is
//     for the join profile to write.
//   - containerd.service present, disabled and stopped. /etc/containerd/config.toml suits this kind of machine (cgroupfs,
//     sandbox image [SandboxImage], CNI in /usr/lib/cni and /etc/cni/net.d, restrict_oom_score_adj).
//   - /etc/cni/net.d/10-kpssh-lab.conflist: bridge + host-local, one pod subnet for each host.
//   - /etc/kubernetes/kubelet.conf.d/10-lab.conf: the part of a KubeletConfiguration that only this kind of machine
//     needs (cgroupDriver, failCgroupV1 …), a drop-in for kubelet's --config-dir, where tls-bootstrap looks by default.
//   - The image [SandboxImage], which is a static program that sleeps until it is told to stop: the pause of every
//     sandbox and, with imagePullPolicy Never, the workload of a demo.
//   - The kernel settings that a kubelet insists on. Those that are the whole machine's are shown to it as files of the
//     host's own, so that the machine keeps its.
//
// # Cleaning up
//
// [Lab.Close] removes processes, mounts, control groups, the namespace and the directory. Every lab also records
// what it makes, with the process that owns it, before it makes it; [CollectGarbage] removes what a dead owner left
// and is called by every Start. Nothing that was not recorded is touched.
package lab
