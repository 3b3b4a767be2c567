package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/rotation"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/setup"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/truststate"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// How the new key comes into use.

func (r *rotator) switchWhat() string {
	if r.role == roleAuthor {
		return "have the new key sign the allowlist"
	}
	return "put the new key into " + r.dir.Manifest(setup.DispatchManifest)
}

// switchWritten says whether the folder's part of the switch is done.
func (r *rotator) switchWritten() (bool, error) {
	if r.role == roleAuthor {
		next := *r.set.Root
		next.Author.Keys = nil
		for _, key := range r.set.Root.Author.Keys {
			if !key.Equal(r.state.Old) {
				next.Author.Keys = append(next.Author.Keys, key)
			}
		}
		return r.set.AllowlistHolds(&next), nil
	}
	text, err := os.ReadFile(r.dir.Manifest(setup.DispatchManifest))
	if errors.Is(err, fs.ErrNotExist) {
		// It was applied and deleted, as it should be, or it is still to be made.
		return r.confirmed(stepSwitch) || r.pool != nil && r.pool.DispatchKey == r.state.New.String(), nil
	}
	if err != nil {
		return false, err
	}
	key, err := setup.ReadDispatchManifest(text)
	return key.Equal(r.state.New), err
}

// sight is what can be seen of the switch after the old dispatch key was dropped.
type sight int

const (
	switchUnseen sight = iota
	switchDone         // the controller signs with a key that the newest root lists
	switchOwed         // it signs, or would with the folder's manifest, with one that the root does not list
)

// switchSeen says whether the controller has the new dispatch key, as far as folder and cluster show it.
func (r *rotator) switchSeen(ctx context.Context, state rotation.State) (sight, error) {
	if r.confirmed(stepSwitch) {
		return switchDone, nil
	}
	if len(state.New.Public) == 0 {
		return switchUnseen, nil // it is in a key service
	}
	if unlisted, err := r.manifestUnlisted(); unlisted || err != nil {
		return switchOwed, err
	}
	if r.pool == nil && !r.offline {
		if err := r.look(ctx); err != nil {
			return switchUnseen, nil //nolint:nilerr // whoever goes on from here looks once more, and says so
		}
	}
	if r.pool == nil {
		return switchUnseen, nil
	}
	key, err := signing.ParseKey(r.pool.DispatchKey)
	switch {
	case err != nil:
		return switchUnseen, nil //nolint:nilerr // the Secret is not there, may not be read, or says no key
	case slices.ContainsFunc(r.set.Root.Dispatch.Keys, key.Equal):
		return switchDone, nil
	}
	return switchOwed, nil
}

// putAside keeps the old key, before the new one takes its place in the manifest at path.
func (r *rotator) putAside(text []byte, path string) error {
	old, err := setup.ReadDispatchManifest(text)
	if err != nil {
		return fmt.Errorf("reading %q: %w", path, err)
	}
	err = cli.CreateFile(r.dispatchFile(nameOf(r.dir, old)), text, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// manifestUnlisted says whether the Secret's manifest, where it is still there, has a key that the newest root does not list.
func (r *rotator) manifestUnlisted() (bool, error) {
	path := r.dir.Manifest(setup.DispatchManifest)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	key, err := setup.ReadDispatchManifest(text)
	if err != nil {
		return false, fmt.Errorf("reading %q: %w", path, err)
	}
	return !slices.ContainsFunc(r.set.Root.Dispatch.Keys, key.Equal), nil
}

// writeSwitch does the folder's part of the switch.
func (r *rotator) writeSwitch(ctx context.Context) (bool, error) {
	if r.role == roleAuthor {
		return r.signAllowlist(ctx)
	}
	path := r.dir.Manifest(setup.DispatchManifest)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil {
		if err := r.putAside(before, path); err != nil {
			return false, err
		}
	}
	file, err := r.fileOf(r.state.New)
	if err != nil {
		return false, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return false, err
	}
	if key, err := setup.ReadDispatchManifest(text); err != nil || !key.Equal(r.state.New) {
		return false, errors.Join(fmt.Errorf("%s does not hold the new key %s", file, r.state.New.ID()), err)
	}
	if err := cli.WriteFile(path, text, 0o600); err != nil {
		return false, err
	}
	r.env.Progress("%s holds the new dispatch key", path)
	return true, nil
}

// switched says whether the new key is in use.
func (r *rotator) switched(ctx context.Context) (bool, error) {
	if r.confirmed(stepSwitch) {
		return true, nil
	}
	if r.role == roleAuthor && r.set.Allowlist == nil {
		return true, nil
	}
	apply, look := r.dir.Manifest(setup.DispatchManifest), "SSHNodeClasses are Ready ('kubectl get sshnodeclasses')"
	if r.role == roleAuthor {
		apply = r.trustManifest()
		look = fmt.Sprintf("each host has allowlist %d or a later one ('kubectl -n %s get sshhosts -o custom-columns=HOST:.metadata.name,ALLOWLIST:.status.trust.allowlistVersion')",
			r.allowlistVersion(), r.dir.PoolNamespace)
	}
	if r.offline {
		r.note = fmt.Sprintf("have %s applied, see that %s, then add --confirm switch", apply, look)
		return false, nil
	}
	list, err := r.set.AllowlistRef()
	if err != nil {
		return false, err
	}
	return r.await(ctx, func(published *documents.Set) string {
		if r.role == roleDispatch {
			if r.pool.DispatchKey == r.state.New.String() {
				return ""
			}
			return fmt.Sprintf("the controller does not sign with %s yet: kubectl apply -f %s (where you may not read the Secret's metadata: --confirm switch)", nameOf(r.dir, r.state.New), apply)
		}
		if theirs, err := publishedList(published); err != nil || theirs != list {
			return fmt.Sprintf("allowlist %d is not in the cluster: kubectl apply -f %s", r.allowlistVersion(), apply)
		}
		return r.hostsBehind(func(has *v1beta1.HostTrust) bool { return !truststate.HasAllowlist(has, list) }, fmt.Sprintf("allowlist %d", r.allowlistVersion()))
	})
}

// publishedList names the allowlist that the cluster has; zero for none.
func publishedList(published *documents.Set) (signing.DocumentRef, error) {
	if published == nil {
		return signing.DocumentRef{}, nil
	}
	return published.AllowlistRef()
}
