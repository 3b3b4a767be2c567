package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
)

// bootDeadline bounds a boot on a machine that has other things to do; it takes about 8 s on one that has not.
const bootDeadline = 3 * time.Minute

// maxHosts is how many addresses the lab's subnet has for hosts.
const maxHosts = 200

var hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// HostOptions say what kind of host to add.
type HostOptions struct {
	// Name is the host name: a DNS label, unique in the lab.
	Name string
	// NoKubelet leaves out /usr/local/bin/kubelet: a host that is not pre-baked.
	NoKubelet bool
	// Suite is the Debian release; default DefaultSuite.
	Suite string
}

// Host is a pool host: a machine with its own systemd, sshd and containerd.
type Host struct {
	// Name is its host name, Address its IP address.
	Name, Address string

	lab      *Lab
	parts    hostParts
	programs []string // of Kubernetes, shown to it in /usr/local/bin
	index    int
	dir      string
	hostKey  ssh.PublicKey

	mu      sync.Mutex
	process *Process
	first   int  // its process 1, as seen from outside
	on      bool // whether it is meant to run: a reboot is then followed by a start
}

// AddHost makes a host and returns when it has booted. Hosts may be added side by side.
func (l *Lab) AddHost(ctx context.Context, opts HostOptions) (*Host, error) {
	h := &Host{Name: opts.Name, lab: l}
	if !opts.NoKubelet && !l.hostsOnly {
		h.programs = []string{"kubelet"}
	}
	err := l.add(ctx, h, opts.Suite, func() error {
		if len(l.hosts) == maxHosts {
			return fmt.Errorf("the lab has %d hosts, and no addresses for more", maxHosts)
		}
		l.hosts = append(l.hosts, h)
		h.index = len(l.hosts)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("adding host %q: %w", opts.Name, err) // Close removes what there is of it
	}
	return h, nil
}

// add makes and boots h, which has a name. enlist, called with l.mu held, lets the lab know of it and gives it its index.
func (l *Lab) add(ctx context.Context, h *Host, suite string, enlist func() error) (err error) {
	if !hostName.MatchString(h.Name) {
		return errors.New("the name is not a DNS label")
	}
	if suite == "" {
		suite = DefaultSuite
	}
	if h.parts, err = prepareHosts(ctx, l.site.log, suite); err != nil {
		return err
	}
	if err := l.enlist(h, enlist); err != nil {
		return err
	}
	done := cachedir.Step(l.site.log, nil, "booting host %s (%s)", h.Name, h.Address)
	err = h.create(ctx)
	done(err)
	return err
}

func (l *Lab) enlist(h *Host, enlist func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("the lab is closed")
	}
	for _, other := range l.machines() {
		if other.Name == h.Name {
			return errors.New("the lab has a host of that name")
		}
	}
	if err := enlist(); err != nil {
		return err
	}
	h.Address = fmt.Sprintf("10.77.0.%d", 10+h.index)
	h.dir = filepath.Join(l.site.dir, "hosts", h.Name)
	return nil
}

func (h *Host) create(ctx context.Context) error {
	if err := h.makeDisk(); err != nil {
		return err
	}
	if err := h.Start(ctx); err != nil {
		return err
	}
	return h.LoadImage(ctx, h.parts.image)
}

// HostKeyLine is the host's SSH host key as a public key line: "ssh-ed25519 AAAA…".
func (h *Host) HostKeyLine() string { return line(h.hostKey) }

// loadImage starts containerd only for as long as it takes, unless it runs already.
const loadImage = `set -eu
was=$(systemctl is-active containerd || true)
[ "$was" = active ] || systemctl start containerd
ctr --namespace k8s.io images import - >/dev/null
[ "$was" = active ] || systemctl stop containerd
`

// LoadImage gives the host the container image of a file, a docker-archive or an OCI tar, for pods with imagePullPolicy
// Never or IfNotPresent.
func (h *Host) LoadImage(ctx context.Context, archive string) error {
	tar, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("reading the image: %w", err)
	}
	defer func() { _ = tar.Close() }()
	_, err = h.ExecInput(ctx, tar, "sh", "-c", loadImage)
	return err
}

// WriteFile writes a file on the host, making its directory if need be. mode is octal, such as "0644".
func (h *Host) WriteFile(ctx context.Context, path, mode string, content []byte) error {
	const script = `set -eu
mkdir -p "$(dirname "$1")"
cat >"$1.new"
chmod "$2" "$1.new"
mv "$1.new" "$1"`
	_, err := h.ExecInput(ctx, bytes.NewReader(content), "sh", "-c", script, "sh", path, mode)
	return err
}

// BootID changes with every boot.
func (h *Host) BootID(ctx context.Context) (string, error) {
	out, err := h.Exec(ctx, "cat", "/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(out), err
}

// Reboot reboots the host in good order and returns when it is up again.
func (h *Host) Reboot(ctx context.Context) error {
	before, err := h.BootID(ctx)
	if err != nil {
		return err
	}
	// The connection may break before the answer comes.
	if _, err := h.Exec(ctx, "systemctl", "reboot"); err != nil && ctx.Err() != nil {
		return err
	}
	return h.waitBooted(ctx, before)
}

// waitBooted waits until the host has finished booting and is not in the boot called before.
func (h *Host) waitBooted(ctx context.Context, before string) error {
	ctx, cancel := context.WithTimeout(ctx, bootDeadline)
	defer cancel()
	err := until(ctx, h.Name+" to boot", func(ctx context.Context) error {
		attempt, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		// Also a host on which some unit failed has booted; tests make units fail.
		const script = `cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait || [ $? -eq 1 ]`
		out, err := h.Exec(attempt, "sh", "-c", script)
		if err != nil {
			return err
		}
		id, state, _ := strings.Cut(strings.TrimSpace(out), "\n")
		if id == before || (state != "running" && state != "degraded") {
			return fmt.Errorf("boot %s is %s", id, state)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w; end of its console: %s", err, tailFile(h.consolePath()))
	}
	return nil
}

// Logs are the console of every boot and, where the host answers, the journal of the last.
func (h *Host) Logs(ctx context.Context) string {
	console, err := os.ReadFile(h.consolePath())
	if err != nil {
		console = []byte(err.Error())
	}
	journal, err := h.Exec(ctx, "journalctl", "--boot", "--no-pager", "--lines", "2000")
	if err != nil {
		journal += err.Error()
	}
	return string(console) + "\n--- journal ---\n" + journal
}

func (h *Host) consolePath() string {
	return filepath.Join(h.lab.LogDir(), h.consoleName()+".log")
}

func (h *Host) consoleName() string { return "host-" + h.Name }
