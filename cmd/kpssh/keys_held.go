package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/rotation"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/setup"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// The keys that a rotation has at hand, and how it makes another.

// held are the keys of the role that the folder knows, by their public halves: the private ones of listed keys may be on
// their media. One that no root ever listed counts only with its private half, or whoever can write a file into public/
// would choose the successor. A public half that an interruption kept from being written is made up for.
func (r *rotator) held() ([]signing.Key, error) {
	if !r.dryRun {
		if err := r.publish(); err != nil {
			return nil, err
		}
	}
	paths, err := filepath.Glob(r.dir.PublicKey(r.role + "*"))
	if err != nil {
		return nil, err
	}
	var held []signing.Key
	for _, path := range paths {
		key, err := keyfile.Public(r.env, path)
		if err != nil {
			return nil, err
		}
		if !rotation.EverListed(r.set.Roots, key) {
			if ours, err := r.fresh(key, path); err != nil || !ours {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		if !slices.ContainsFunc(held, key.Equal) {
			held = append(held, key)
		}
	}
	return r.onlyNamed(held), nil
}

// fresh says whether the private half of a key that no root ever listed is at hand, and warns when it is not.
func (r *rotator) fresh(key signing.Key, public string) (bool, error) {
	file, known := r.private[key.String()]
	if !known {
		var err error
		if file, err = r.privateHalf(key); err != nil {
			return false, err
		}
		r.remember(key, file)
	}
	if file == "" && !known {
		r.env.Warnf("%s is ignored: no root document ever listed that key, and its private half is not at hand; remove the file if nobody here made it, or name the new author key: --new FILE", public)
	}
	return file != "", nil
}

func (r *rotator) remember(key signing.Key, file string) {
	if r.private == nil {
		r.private = map[string]string{}
	}
	r.private[key.String()] = file
}

// onlyNamed leaves out, of the keys that no root ever listed, all but the one of --new, if that is among them.
func (r *rotator) onlyNamed(held []signing.Key) []signing.Key {
	ofNamed := func(key signing.Key) bool { return r.newKey != "" && r.private[key.String()] == r.newKey }
	if !slices.ContainsFunc(held, ofNamed) {
		return held
	}
	return slices.DeleteFunc(held, func(key signing.Key) bool {
		return !ofNamed(key) && !rotation.EverListed(r.set.Roots, key)
	})
}

// privateHalf is the file that holds the private half of a key, which is looked into for it: what lies beside a file
// proves nothing. None is no error, one that cannot be opened is.
func (r *rotator) privateHalf(key signing.Key) (string, error) {
	if r.role == roleDispatch {
		paths, err := r.dir.DispatchKeys()
		if err != nil {
			return "", err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			have, err := setup.ReadDispatchManifest(text)
			if err != nil {
				return "", fmt.Errorf("reading %q: %w", path, err)
			}
			if have.Equal(key) {
				return path, nil
			}
		}
		return "", nil
	}
	path, err := r.fileOf(key)
	if err != nil {
		return "", nil //nolint:nilerr // it is nowhere
	}
	signer, err := keyfile.Open(context.Background(), r.env, path, &r.passphrase)
	if err != nil {
		return "", fmt.Errorf("seeing that %q is the private half of the new key: %w", path, err)
	}
	if !signer.Public().Equal(key) {
		return "", nil
	}
	return path, nil
}

// publish writes the public half of every private key of the role in the folder that has none.
func (r *rotator) publish() error {
	private, open := r.dir.DispatchKeys, func(path string) (signing.Key, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return signing.Key{}, err
		}
		return setup.ReadDispatchManifest(text)
	}
	if r.role == roleAuthor {
		private = func() ([]string, error) { return r.dir.OfflineKeys(roleAuthor) }
		open = func(path string) (signing.Key, error) {
			if key, err := publicHalf(r.dir, path); err == nil {
				return key, nil
			}
			signer, err := keyfile.Open(context.Background(), r.env, path, &r.passphrase)
			if err != nil {
				return signing.Key{}, err
			}
			return signer.Public(), nil
		}
	}
	paths, err := private()
	if err != nil {
		return err
	}
	for _, path := range paths {
		public := r.dir.PublicKey(r.nameFor(path))
		if cli.Exists(public) {
			continue
		}
		key, err := open(path)
		if err != nil {
			return fmt.Errorf("reading %q: %w", path, err)
		}
		if err := keyfile.WritePublic(public, key); err != nil {
			return err
		}
	}
	return nil
}

// nameFor is what the folder calls the key in a file: all names of a role begin with it.
func (r *rotator) nameFor(path string) string {
	name := strings.TrimSuffix(keyName(path), ".secret.yaml")
	if !strings.HasPrefix(name, r.role) {
		name = r.role + "-" + name
	}
	return name
}

// makeKey makes the successor.
func (r *rotator) makeKey() (bool, error) {
	name := ""
	for n := 2; name == ""; n++ {
		candidate := fmt.Sprintf("%s-%d", r.role, n)
		if !cli.Exists(r.dir.PublicKey(candidate)) && !cli.Exists(r.authorFile(candidate)) && !cli.Exists(r.dispatchFile(candidate)) {
			name = candidate
		}
	}
	if r.role == roleDispatch {
		return true, r.makeDispatchKey(name)
	}
	path := r.authorFile(name)
	if r.newKey != "" {
		path, name = r.newKey, r.nameFor(r.newKey)
	}
	key, err := r.makeOrProve(path)
	if err != nil {
		return false, err
	}
	if rotation.EverListed(r.set.Roots, key) {
		return false, cli.Hint(fmt.Errorf("the key in %s is no new one: a root document lists it or has listed it", path), "name a file that is not there yet")
	}
	r.remember(key, path)
	return true, keyfile.WritePublic(r.dir.PublicKey(name), key)
}

// makeOrProve makes a key file, or opens the one that is there: the public half beside it may be of another key.
func (r *rotator) makeOrProve(path string) (signing.Key, error) {
	if !cli.Exists(path) {
		return makeOrOpen(r.env, r.dir, path, r.dir.Algorithm, &r.passphrase)
	}
	signer, err := keyfile.Open(context.Background(), r.env, path, &r.passphrase)
	if err != nil {
		return signing.Key{}, err
	}
	return signer.Public(), nil
}

func (r *rotator) authorFile(name string) string { return r.dir.At("offline", "author", name+".key") }

func (r *rotator) dispatchFile(name string) string {
	return r.dir.At("online", "dispatch", name+".secret.yaml")
}

func (r *rotator) makeDispatchKey(name string) error {
	text, err := setup.NewDispatchManifest(r.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.dispatchFile(name)), 0o700); err != nil {
		return err
	}
	if err := cli.CreateFile(r.dispatchFile(name), text, 0o600); err != nil {
		return err
	}
	key, err := setup.ReadDispatchManifest(text)
	if err != nil {
		return err
	}
	r.env.Progress("made %s", r.dispatchFile(name))
	return keyfile.WritePublic(r.dir.PublicKey(name), key)
}

// fileOf is the private key file of a key, if it is in the folder or was named.
func (r *rotator) fileOf(key signing.Key) (string, error) {
	paths, err := r.dir.DispatchKeys()
	if r.role == roleAuthor {
		paths, err = r.dir.OfflineKeys(roleAuthor)
		if r.newKey != "" {
			paths = append(paths, r.newKey)
		}
	}
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		for _, public := range []string{r.dir.PublicKey(r.nameFor(path)), path + ".pub"} {
			if have, err := keyfile.Public(r.env, public); err == nil && have.Equal(key) {
				return path, nil
			}
		}
	}
	return "", cli.Hint(fmt.Errorf("the private half of %s is not in the folder", nameOf(r.dir, key)), "name it on its medium: --new FILE")
}

// signer opens the new author key.
func (r *rotator) signer(ctx context.Context) (signing.Signer, error) {
	file, err := r.fileOf(r.state.New)
	if err != nil {
		return nil, err
	}
	signer, err := keyfile.Open(ctx, r.env, file, &r.passphrase)
	if err == nil && !signer.Public().Equal(r.state.New) {
		return nil, fmt.Errorf("%s does not hold the new key %s", file, r.state.New.ID())
	}
	return signer, err
}
