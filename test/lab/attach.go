package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/state"
)

// knownHost is the file in a host's directory that says how another process than the lab's reaches it: its line of
// known_hosts, with the address.
const knownHost = "known_host"

// LoadImage is [Host.LoadImage] for a host of a lab that another process runs, such as `kpssh-lab up`. id may be empty
// when one lab is up.
func LoadImage(ctx context.Context, id, host, archive string) error {
	h, err := attach(id, host)
	if err != nil {
		return fmt.Errorf("finding host %q: %w", host, err)
	}
	return h.LoadImage(ctx, archive)
}

// attach is a host to log in to, and nothing more.
func attach(id, name string) (*Host, error) {
	record, err := running(id)
	if err != nil {
		return nil, err
	}
	if !hostName.MatchString(name) {
		return nil, fmt.Errorf("%q is not a host name", name)
	}
	content, err := os.ReadFile(filepath.Join(record.Dir, "hosts", name, knownHost))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %s has no such host", record.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("reading its address: %w", err)
	}
	_, addresses, key, _, _, err := ssh.ParseKnownHosts(content)
	if err != nil {
		return nil, fmt.Errorf("reading its address: %w", err)
	}
	l := &Lab{site: &site{id: record.ID, dir: record.Dir}}
	private, err := os.ReadFile(l.AdminKeyPath())
	if err != nil {
		return nil, fmt.Errorf("reading the admin's SSH key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("reading the admin's SSH key: %w", err)
	}
	l.admin = &adminKey{signer: signer}
	return &Host{Name: name, Address: addresses[0], lab: l, hostKey: key}, nil
}

// running is the record of the lab called id, or of the only one that is up.
func running(id string) (state.Record, error) {
	dir, err := registryDir()
	if err != nil {
		return state.Record{}, err
	}
	registry, err := state.NewRegistry(dir)
	if err != nil {
		return state.Record{}, err
	}
	records, err := registry.Records()
	if err != nil {
		return state.Record{}, err
	}
	return choose(records, id)
}

func choose(records []state.Record, id string) (state.Record, error) {
	var ids []string
	var found state.Record
	for _, r := range records {
		// Without a namespace it is a lone API server.
		if r.Netns == "" || !r.Owner.Alive() {
			continue
		}
		ids = append(ids, r.ID)
		if id == "" || r.ID == id {
			found = r
		}
	}
	switch {
	case len(ids) == 0:
		return state.Record{}, errors.New("no lab is up: start one with `kpssh-lab up` or `make demo KEEP=1`")
	case id == "" && len(ids) > 1:
		return state.Record{}, fmt.Errorf("several labs are up: name one of %s", strings.Join(ids, ", "))
	case found.ID == "":
		return state.Record{}, fmt.Errorf("lab %q is not up; these are: %s", id, strings.Join(ids, ", "))
	}
	return found, nil
}
