package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// makeDisk lays the host's own file system over the shared one. containerd's and kubelet's directories are plain
// ones, because an overlay cannot be laid over an overlay.
func (h *Host) makeDisk() error {
	for _, name := range []string{"upper", "work", "root", "containerd", "kubelet"} {
		if err := os.MkdirAll(h.path(name), 0o755); err != nil {
			return fmt.Errorf("making the disk: %w", err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", h.parts.root, h.path("upper"), h.path("work"))
	if err := unix.Mount("overlay", h.path("root"), "overlay", 0, options); err != nil {
		return fmt.Errorf("mounting the disk: %w", err)
	}
	signer, private, err := newSSHKey("root@" + h.Name)
	if err != nil {
		return err
	}
	h.hostKey = signer.PublicKey()
	if err := os.WriteFile(h.path(knownHost), []byte(h.Address+" "+line(h.hostKey)+"\n"), 0o644); err != nil {
		return fmt.Errorf("writing down the address: %w", err)
	}
	machineID, err := newMachineID()
	if err != nil {
		return err
	}
	files := []struct {
		path, content string
		mode          os.FileMode
	}{
		{"etc/hostname", h.Name + "\n", 0o644},
		// Left to itself, systemd takes the one that D-Bus got when the shared file system was made.
		{"etc/machine-id", machineID + "\n", 0o444},
		{"var/lib/dbus/machine-id", machineID + "\n", 0o644},
		{"etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", h.Address, h.Name), 0o644},
		{"etc/ssh/ssh_host_ed25519_key", string(private), 0o600},
		{"etc/ssh/ssh_host_ed25519_key.pub", line(h.hostKey) + "\n", 0o644},
		{"root/.ssh/authorized_keys", line(h.lab.admin.signer.PublicKey()) + "\n", 0o600},
		{"etc/systemd/network/10-host0.network", fmt.Sprintf(hostNetwork, h.Address), 0o644},
		{"etc/cni/net.d/10-kpssh-lab.conflist", fmt.Sprintf(podNetwork, h.podSubnet()), 0o644},
	}
	for _, f := range files {
		path := filepath.Join(h.path("root"), f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("writing the disk: %w", err)
		}
		if err := os.WriteFile(path, []byte(f.content), f.mode); err != nil {
			return fmt.Errorf("writing the disk: %w", err)
		}
	}
	return os.Chmod(filepath.Join(h.path("root"), "root/.ssh"), 0o700)
}

// newMachineID is an id as machine-id(5) wants it.
func newMachineID() (string, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("choosing a machine id: %w", err)
	}
	return strings.ReplaceAll(id.String(), "-", ""), nil
}

// podSubnet has the addresses of the pods on the host.
func (h *Host) podSubnet() string { return fmt.Sprintf("10.88.%d.0/24", h.index) }

const hostNetwork = `[Match]
Name=host0
[Network]
Address=%s/24
LinkLocalAddressing=no
IPv6AcceptRA=no
`

const podNetwork = `{
  "cniVersion": "0.4.0",
  "name": "kpssh-lab",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "ipMasq": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "%s"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    }
  ]
}
`
