// Package trustdir is the folder that an operator's keys, documents and manifests live in:
//
//	trust/
//	  kpssh.json           settings of this folder
//	  offline/root/        root keys     → to a medium that is not this machine
//	  offline/author/      author key    → to where the reviewer of join profiles signs
//	  online/ssh/          client key of the controller's SSH logins
//	  online/dispatch/     dispatch keys that a rotation made or put aside
//	  public/              root.N.json, allowlist.json and public keys: nothing here is secret.
//	                       allowlist.N.json and scripts/ are what was signed before, for reviews
//	  manifests/           what kubectl applies; *.secret.yaml holds private keys
//
// Every step that makes something writes it whole or not at all, and root.1.json last, so that an
// interrupted init goes on where it stopped and a finished one is never repeated. A folder that has lost root.1.json looks
// like an interrupted init: what the first root was, or that there was one, is seen from what is written beside it.
package trustdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

// DefaultPath is the folder that verbs use when neither --dir nor KPSSH_DIR says another.
const DefaultPath = "trust"

const settingsFile = "kpssh.json"

// Settings are what later verbs must know of an init.
type Settings struct {
	Format int `json:"format"`
	// ControllerNamespace holds the trust documents and the dispatch key.
	ControllerNamespace string `json:"controllerNamespace"`
	// PoolNamespace holds the SSHHosts and their SSH keys.
	PoolNamespace string `json:"poolNamespace"`
	Algorithm     string `json:"algorithm"`
	RootKeys      int    `json:"rootKeys"`
	RootThreshold int    `json:"rootThreshold"`
	// Encrypted says that offline keys are under a passphrase.
	Encrypted bool `json:"encrypted"`
	// ValidSeconds is how long the first root document holds.
	ValidSeconds int64 `json:"validSeconds"`
}

// Dir is an opened trust folder.
type Dir struct {
	Path string
	Settings
}

// Locate decides which folder a verb means.
func Locate(env *cli.Env, flag string) string {
	for _, p := range []string{flag, env.Getenv("KPSSH_DIR")} {
		if p != "" {
			return p
		}
	}
	return DefaultPath
}

// Open opens a folder that init has finished.
func Open(env *cli.Env, flag string) (*Dir, error) {
	d := &Dir{Path: Locate(env, flag)}
	if err := d.readSettings(); errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Hint(fmt.Errorf("%q is not a folder that '%s init' made", d.Path, env.Prog),
			"run '%s init --dir %s' once, or point --dir at the folder that it made", env.Prog, d.Path)
	} else if err != nil {
		return nil, err
	}
	if err := d.lostFirst(); err != nil {
		return nil, err
	}
	if !d.Finished() {
		return nil, cli.Hint(fmt.Errorf("%q holds an init that was interrupted", d.Path),
			"run '%s init --dir %s' again; it goes on where it stopped", env.Prog, d.Path)
	}
	return d, nil
}

// lostFirst refuses a folder that has lost its first root. It looks like an interrupted init, which would make another
// first root, that no host believes.
func (d *Dir) lostFirst() error {
	if d.Finished() {
		return nil
	}
	for _, later := range []string{"root.*.json", "allowlist*.json"} {
		found, err := filepath.Glob(d.At("public", later))
		if err != nil {
			return err
		}
		if len(found) > 0 {
			return cli.Hint(fmt.Errorf("%q holds signed documents, and not %s, which comes before them", d.Path, d.RootDocument(1)),
				"bring it back from a backup, or from the cluster: kubectl -n %s get configmap kpssh-trust -o yaml", d.ControllerNamespace)
		}
	}
	return nil
}

func (d *Dir) readSettings() error {
	data, err := os.ReadFile(d.At(settingsFile))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &d.Settings); err != nil {
		return fmt.Errorf("reading %q: %w", d.At(settingsFile), err)
	}
	if d.Format != 1 {
		return fmt.Errorf("%q has format %d, which this kpssh does not know", d.At(settingsFile), d.Format)
	}
	return nil
}

// Begin makes the folder, or opens the one that an interrupted init left. The returned function
// releases the lock that keeps two inits apart.
func Begin(path string, want Settings) (d *Dir, resumed bool, unlock func(), err error) {
	d = &Dir{Path: path, Settings: want}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, false, nil, err
	}
	unlock, err = lock(path)
	if err != nil {
		return nil, false, nil, err
	}
	resumed, err = d.begin(want)
	if err != nil {
		unlock()
		return nil, false, nil, err
	}
	return d, resumed, unlock, nil
}

func (d *Dir) begin(want Settings) (resumed bool, err error) {
	err = d.readSettings()
	switch {
	case err == nil && d.Finished():
		return true, nil
	case err == nil && d.Settings != want:
		return false, cli.Hint(fmt.Errorf("%q holds an interrupted init with other settings than these flags", d.Path),
			"use the same flags again, as %s has them; or, if nothing of it was ever applied, remove %s and start over", d.At(settingsFile), d.Path)
	case err == nil:
		if err := d.lostFirst(); err != nil {
			return false, err
		}
		return true, d.layout()
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".kpssh-tmp-") {
			return false, cli.Hint(fmt.Errorf("%q is not empty and was not made by init", d.Path), "choose an empty folder with --dir")
		}
	}
	data, err := json.MarshalIndent(want, "", "  ")
	if err != nil {
		return false, err
	}
	if err := cli.CreateFile(d.At(settingsFile), append(data, '\n'), 0o644); err != nil {
		return false, err
	}
	return false, d.layout()
}

func (d *Dir) layout() error {
	for _, sub := range folders() {
		if err := os.MkdirAll(d.At(sub), 0o700); err != nil {
			return err
		}
	}
	return d.Sweep()
}

func folders() []string {
	return []string{"offline/root", "offline/author", "online/ssh", "online/dispatch", "public", "manifests"}
}

// Sweep removes what a crash left half written: a private key in the worst case.
func (d *Dir) Sweep() error {
	for _, sub := range folders() {
		leftovers, err := filepath.Glob(d.At(sub, ".kpssh-tmp-*"))
		if err != nil {
			return err
		}
		for _, l := range leftovers {
			if err := os.Remove(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func lock(path string) (func(), error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another kpssh works in %q", path)
	}
	return func() { f.Close() }, nil
}

// Lock keeps other verbs from writing the folder's documents until the returned function is called.
func (d *Dir) Lock() (func(), error) { return lock(d.Path) }

// At is a path in the folder.
func (d *Dir) At(parts ...string) string { return filepath.Join(append([]string{d.Path}, parts...)...) }

// Finished says whether init has come to its end: the first root document is its last step.
func (d *Dir) Finished() bool { return cli.Exists(d.RootDocument(1)) }

// RootKey is the path of root key n, from 1.
func (d *Dir) RootKey(n int) string { return d.At("offline", "root", fmt.Sprintf("root-%d.key", n)) }

// AuthorKey is the path of the author key that init makes.
func (d *Dir) AuthorKey() string { return d.At("offline", "author", "author.key") }

// OfflineKeys are the key files of a role, root or author, that are in the folder, in order of their names.
func (d *Dir) OfflineKeys(role string) ([]string, error) {
	return filepath.Glob(d.At("offline", role, "*.key"))
}

// DispatchKeys are the manifests of dispatch keys that a rotation made or put aside, in order of their names.
func (d *Dir) DispatchKeys() ([]string, error) {
	return filepath.Glob(d.At("online", "dispatch", "*.secret.yaml"))
}

// SSHKey is the path of the client key.
func (d *Dir) SSHKey() string { return d.At("online", "ssh", "id_ed25519") }

// PublicKey is the path of the public half of a key.
func (d *Dir) PublicKey(name string) string { return d.At("public", name+".pub") }

// RootDocument is the path of root version n.
func (d *Dir) RootDocument(n int64) string { return d.At("public", fmt.Sprintf("root.%d.json", n)) }

// PendingRoot is the path of root version n while it misses signatures.
func (d *Dir) PendingRoot(n int64) string {
	return d.At("public", fmt.Sprintf("root.%d.pending.json", n))
}

// Allowlist is the path of the current allowlist.
func (d *Dir) Allowlist() string { return d.At("public", "allowlist.json") }

// PendingAllowlist is the path of an allowlist that still misses signatures.
func (d *Dir) PendingAllowlist() string { return d.At("public", "allowlist.pending.json") }

// AllowlistVersion is the path at which allowlist version n is kept for reviews.
func (d *Dir) AllowlistVersion(n int64) string {
	return d.At("public", fmt.Sprintf("allowlist.%d.json", n))
}

// AllowlistVersions are the versions that are kept, in their order.
func (d *Dir) AllowlistVersions() ([]int64, error) {
	paths, err := filepath.Glob(d.At("public", "allowlist.*.json"))
	if err != nil {
		return nil, err
	}
	var versions []int64
	for _, p := range paths {
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(p), "allowlist."), ".json"), 10, 64)
		if err == nil && n > 0 {
			versions = append(versions, n)
		}
	}
	slices.Sort(versions)
	return versions, nil
}

// Scripts is the folder with the rendered scripts that were signed, each named for its digest.
func (d *Dir) Scripts() string { return d.At("public", "scripts") }

// Manifest is the path of a manifest.
func (d *Dir) Manifest(name string) string { return d.At("manifests", name) }

// RootDocuments returns the root envelopes in order of version, from 1 without a gap.
func (d *Dir) RootDocuments() ([][]byte, error) {
	var chain [][]byte
	for n := int64(1); ; n++ {
		data, err := os.ReadFile(d.RootDocument(n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, err
		}
		chain = append(chain, data)
	}
	stray, err := filepath.Glob(d.At("public", "root.*.json"))
	if err != nil {
		return nil, err
	}
	for _, s := range stray {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(s), "root."), ".json"))
		if err == nil && n > len(chain) {
			return nil, fmt.Errorf("%q is there, but root.%d.json before it is not", s, len(chain)+1)
		}
	}
	return chain, nil
}
