package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cgroup"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/netns"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/state"
)

// exitReboot is how systemd-nspawn says that its machine wants to start again.
const exitReboot = 133

// machine is unique on this machine, and short: the name of a network interface is made of it.
func (h *Host) machine() string { return fmt.Sprintf("k%s-h%d", h.lab.site.id, h.index) }

// cable is the lab's end of the host's network cable.
func (h *Host) cable() string { return "vb-" + h.machine() }

func (h *Host) path(name string) string { return filepath.Join(h.dir, name) }

// Start boots a host that is off, and returns when it is up. One that is on is left alone.
func (h *Host) Start(ctx context.Context) error {
	h.mu.Lock()
	if h.process != nil {
		select {
		case <-h.process.done:
		default:
			h.mu.Unlock()
			return nil
		}
	}
	h.on = true
	err := h.launch(ctx)
	h.mu.Unlock()
	if err != nil {
		return fmt.Errorf("starting host %s: %w", h.Name, err)
	}
	return h.waitBooted(ctx, "")
}

// launch starts systemd-nspawn. h.mu is held.
func (h *Host) launch(ctx context.Context) error {
	layout, err := cgroup.Read()
	if err != nil {
		return err
	}
	name := "kpssh-" + h.machineGroup()
	groups := layout.Children(name)
	if layout.V2Only {
		groups = nil // systemd makes and removes the scope
	}
	leftovers, err := h.leftovers()
	if err != nil {
		return err
	}
	err = h.lab.site.entry.Update(func(r *state.Record) {
		r.Cgroups = union(r.Cgroups, groups)
		r.Paths = union(r.Paths, leftovers)
	})
	if err != nil {
		return err
	}
	if err := h.unplug(ctx); err != nil {
		return err
	}
	if err := cgroup.Make(groups); err != nil {
		return err
	}
	nspawn, err := h.nspawn(layout.V2Only)
	if err != nil {
		return err
	}
	argv := inGroups(groups, append(netns.Enter(h.lab.site.netns), nspawn...))
	if layout.V2Only {
		argv = append([]string{"systemd-run", "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--unit=" + name, "--"}, argv...)
	}
	process, err := h.lab.site.startArgv(ProcessSpec{Name: h.consoleName(), Env: []string{"SYSTEMD_LOG_LEVEL=warning"}}, argv)
	if err != nil {
		return err
	}
	h.process = process
	h.first, err = h.leader(ctx, process)
	if err != nil {
		process.Kill9()
		return err
	}
	go h.supervise(process)
	return nil
}

// leftovers are what systemd-nspawn leaves under /run when it is killed.
func (h *Host) leftovers() ([]string, error) {
	const run = "/run/systemd/nspawn/"
	var root unix.Stat_t
	if err := unix.Stat(h.path("root"), &root); err != nil {
		return nil, fmt.Errorf("looking at the disk: %w", err)
	}
	return []string{
		run + "propagate/" + h.machine(),
		run + "unix-export/" + h.machine(),
		fmt.Sprintf(run+"locks/inode-%d:%d", root.Dev, root.Ino),
	}, nil
}

func (h *Host) machineGroup() string { return fmt.Sprintf("%s-h%d", h.lab.site.id, h.index) }

// supervise starts the machine again when it has rebooted.
func (h *Host) supervise(process *Process) {
	if process.exitCode() != exitReboot {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.on || h.process != process {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootDeadline)
	defer cancel()
	if err := h.launch(ctx); err != nil {
		h.lab.site.log.Printf("host %s rebooted and did not start again: %v", h.Name, err)
	}
}

// unplug removes what a machine that was cut off left of its cable: the kernel does so too, but later.
func (h *Host) unplug(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return until(ctx, "the old cable of "+h.Name+" to go", func(ctx context.Context) error {
		links, err := h.lab.Run(ctx, "ip", "-o", "link", "show")
		if err != nil || !strings.Contains(links, h.cable()) {
			return err
		}
		_, err = h.lab.Run(ctx, "ip", "link", "delete", h.cable())
		return err
	})
}

// nspawn is the command line of the machine.
func (h *Host) nspawn(v2Only bool) ([]string, error) {
	argv := []string{
		"systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe",
		"--directory=" + h.path("root"), "--machine=" + h.machine(), "--hostname=" + h.Name,
		"--network-bridge=" + bridge,
		"--capability=all", "--system-call-filter=@known", "--bind=/dev/kmsg",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no",
		"--bind=" + h.path("containerd") + ":/var/lib/containerd",
		"--bind=" + h.path("kubelet") + ":/var/lib/kubelet",
	}
	for _, name := range h.programs {
		program, err := h.lab.programPath(name)
		if err != nil {
			return nil, err
		}
		argv = append(argv, "--bind-ro="+program+":/usr/local/bin/"+name)
	}
	if !v2Only { // arguments of the machine's systemd: newer ones insist on being asked twice
		argv = append(argv, "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1", "systemd.unified_cgroup_hierarchy=0")
	}
	return argv, nil
}

// inGroups is a command line that moves itself into control groups before it becomes argv.
func inGroups(groups, argv []string) []string {
	if len(groups) == 0 {
		return argv
	}
	const script = `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"`
	return append(append([]string{"sh", "-c", script, "sh"}, append(groups, "--")...), argv...)
}

// PowerCut ends the host as a power cut would: nothing is told, nothing is written. Start boots it again.
func (h *Host) PowerCut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = false
	if h.process == nil {
		return
	}
	select {
	case <-h.process.done: // it is off, and its id may be another's by now
	default:
		_ = syscall.Kill(h.first, syscall.SIGKILL) // the kernel ends everything in the machine with its first process
		h.process.Kill9()
	}
}

// Stop shuts the host down in good order.
func (h *Host) Stop(ctx context.Context) error {
	h.mu.Lock()
	h.on = false
	process := h.process
	h.mu.Unlock()
	if process == nil {
		return nil
	}
	if _, err := h.Exec(ctx, "systemctl", "poweroff"); err != nil && ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bootDeadline)
	defer cancel()
	select {
	case <-process.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stopping host %s: %w", h.Name, ctx.Err())
	}
}

// CutNetwork makes packets from and to the host vanish. Its cable stays plugged in, so that nobody is told.
func (h *Host) CutNetwork(ctx context.Context) error {
	_, err := h.lab.Run(ctx, "ip", "link", "set", h.cable(), "nomaster")
	return err
}

// RestoreNetwork undoes CutNetwork.
func (h *Host) RestoreNetwork(ctx context.Context) error {
	_, err := h.lab.Run(ctx, "ip", "link", "set", h.cable(), "master", bridge)
	return err
}

// union is a and what of b is not in it.
func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
