// Package state remembers what labs make on a machine, so that what a killed lab leaves can be found and removed
// without touching anything else. A lab records a thing before it makes it; removing is idempotent, so a record may
// name things that were never made or are gone.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Record is what one lab made.
type Record struct {
	ID    string  `json:"id"`
	Owner Process `json:"owner"`
	// Dir is the lab's directory: everything below it, and every mount below it, is the lab's.
	Dir string `json:"dir"`
	// KeepLogs leaves Dir/logs in place, for someone to read.
	KeepLogs bool `json:"keepLogs,omitempty"`
	// Netns is the name of its network namespace, if it has one. Every process in it is the lab's.
	Netns string `json:"netns,omitempty"`
	// Processes that may be outside Netns.
	Processes []Process `json:"processes,omitempty"`
	// Cgroups are directories; every process in them and below is the lab's.
	Cgroups []string `json:"cgroups,omitempty"`
	// Paths are other files and directories.
	Paths []string `json:"paths,omitempty"`
}

// Registry holds one file for each lab in a directory.
type Registry struct{ dir string }

// NewRegistry keeps records in dir, which it makes if need be.
func NewRegistry(dir string) (Registry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Registry{}, fmt.Errorf("making the directory of labs: %w", err)
	}
	return Registry{dir: dir}, nil
}

// Entry is the record of a lab that this process owns.
type Entry struct {
	mu       sync.Mutex
	registry Registry
	record   Record
}

// Create records a lab whose owner is this process.
func (r Registry) Create(id, dir string) (*Entry, error) {
	owner, err := Identify(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("recording lab %q: %w", id, err)
	}
	if _, err := os.Lstat(r.path(id)); err == nil {
		return nil, fmt.Errorf("recording lab %q: %w", id, os.ErrExist)
	}
	e := &Entry{registry: r, record: Record{ID: id, Owner: owner, Dir: dir}}
	return e, e.Update(func(*Record) {})
}

// Update changes the record and has it on disk when it returns.
func (e *Entry) Update(change func(*Record)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.record)
	content, err := json.MarshalIndent(e.record, "", "  ")
	if err != nil {
		return fmt.Errorf("recording lab %q: %w", e.record.ID, err)
	}
	tmp := e.registry.path(e.record.ID) + ".tmp"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return fmt.Errorf("recording lab %q: %w", e.record.ID, err)
	}
	if err := os.Rename(tmp, e.registry.path(e.record.ID)); err != nil {
		return fmt.Errorf("recording lab %q: %w", e.record.ID, err)
	}
	return nil
}

// AddProcess records a process that was just started.
func (e *Entry) AddProcess(pid int) error {
	p, err := Identify(pid)
	if errors.Is(err, os.ErrNotExist) {
		return nil // ended already
	}
	if err != nil {
		return err
	}
	return e.Update(func(r *Record) {
		alive := r.Processes[:0:0]
		for _, old := range r.Processes {
			if old.Alive() {
				alive = append(alive, old)
			}
		}
		r.Processes = append(alive, p)
	})
}

// Remove removes everything that the record names, and then the record.
func (e *Entry) Remove() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.registry.remove(e.record)
}

// Records are the labs of this machine, dead or alive. Unreadable ones are reported and left alone.
func (r Registry) Records() ([]Record, error) {
	paths, err := filepath.Glob(filepath.Join(r.dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("listing labs: %w", err)
	}
	var records []Record
	var errs []error
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed by its owner meanwhile
		}
		var record Record
		if err == nil {
			err = json.Unmarshal(content, &record)
		}
		if err == nil {
			err = record.validate(strings.TrimSuffix(filepath.Base(path), ".json"))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reading lab record %q: %w", path, err))
			continue
		}
		records = append(records, record)
	}
	return records, errors.Join(errs...)
}

// nspawnLock is where systemd-nspawn keeps the lock of a directory, by device and inode.
var nspawnLock = regexp.MustCompile(`^/run/systemd/nspawn/locks/inode-[0-9]+:[0-9]+$`)

// validate keeps a damaged record from naming the whole machine.
func (r Record) validate(id string) error {
	if r.ID != id {
		return fmt.Errorf("it is called %q inside", r.ID)
	}
	if r.Owner.PID <= 0 || r.Owner.Boot == "" {
		return errors.New("it has no owner")
	}
	for _, path := range append([]string{r.Dir}, r.Paths...) {
		if nspawnLock.MatchString(path) {
			continue
		}
		if !strings.Contains(path, id) || !filepath.IsAbs(path) {
			return fmt.Errorf("it names %q, which does not carry the lab's id", path)
		}
	}
	for _, path := range r.Cgroups {
		if !strings.HasPrefix(filepath.Base(path), "kpssh-"+id) {
			return fmt.Errorf("it names control group %q, which does not carry the lab's id", path)
		}
	}
	if r.Netns != "" && r.Netns != "kpssh-"+id {
		return fmt.Errorf("it names network namespace %q, which does not carry the lab's id", r.Netns)
	}
	return nil
}

func (r Registry) path(id string) string { return filepath.Join(r.dir, id+".json") }
