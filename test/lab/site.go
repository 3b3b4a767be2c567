package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/state"
)

// registryDir is where this user's labs are recorded: /run is emptied by a reboot, as are most things that a lab of
// root makes.
func registryDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/run/kpssh-lab", nil
	}
	cache, err := cachedir.Default()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "labs"), nil
}

// CollectGarbage removes the labs of this user whose owner is dead: their processes, mounts, control groups,
// namespaces and files. It may run at any time, and touches nothing that a lab did not record.
func CollectGarbage(log func(format string, args ...any)) error {
	dir, err := registryDir()
	if err != nil {
		return err
	}
	registry, err := state.NewRegistry(dir)
	if err != nil {
		return err
	}
	collected, err := registry.Collect()
	removeEmptyDefault()
	if len(collected) > 0 {
		cachedir.Logf(log).Printf("removed what killed labs had left: %s", strings.Join(collected, ", "))
	}
	if err != nil {
		return fmt.Errorf("collecting what killed labs left: %w", err)
	}
	return nil
}

// newSite makes and records the directory of a lab under parent.
func newSite(parent string, log cachedir.Logf) (*site, error) {
	id, err := newID()
	if err != nil {
		return nil, err
	}
	registryPath, err := registryDir()
	if err != nil {
		return nil, err
	}
	registry, err := state.NewRegistry(registryPath)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(parent, "kpssh-lab-"+id)
	entry, err := registry.Create(id, dir)
	if err != nil {
		return nil, err
	}
	err = os.MkdirAll(filepath.Join(dir, "logs"), 0o755)
	if errors.Is(err, os.ErrNotExist) { // a lab that closed took the empty parent with it just now
		err = os.MkdirAll(filepath.Join(dir, "logs"), 0o755)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the lab's directory: %w", err), entry.Remove())
	}
	return &site{id: id, dir: dir, log: log, entry: entry, spawner: newSpawner()}, nil
}

// removeEmptyDefault removes the directory in which labs are made by default, if no lab is left in it.
func removeEmptyDefault() { _ = os.Remove(defaultDir) }

// newID is short, because network interfaces carry it, and long enough that labs of one machine differ.
func newID() (string, error) {
	b := make([]byte, 3)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("choosing a lab id: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// close ends everything and removes all traces.
func (s *site) close() error {
	s.killAll()
	s.spawner.close()
	err := s.entry.Remove()
	removeEmptyDefault()
	return err
}
