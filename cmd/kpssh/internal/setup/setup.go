// Package setup makes the keys, documents and manifests of a new trust folder, one step after the
// other, each of which is skipped when an earlier attempt has done it.
package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

// Manifests, named so that kubectl applies them in the right order.
const (
	NamespacesManifest = "00-namespaces.yaml"
	TrustManifest      = "10-trust.yaml"
	DispatchManifest   = "20-dispatch-key.secret.yaml"
	SSHManifest        = "20-ssh-key.secret.yaml"
)

const readmeFile = "README.txt"

// ErrOtherPassphrase says that keys of an interrupted attempt are under another passphrase.
var ErrOtherPassphrase = errors.New("the keys of the interrupted init are under another passphrase")

// Made is what Make has made.
type Made struct {
	Expires time.Time
}

// Make brings a folder from wherever it is to a finished first root document. One that was signed before is kept: hosts
// may believe it, and no other in its place.
func Make(ctx context.Context, d *trustdir.Dir, passphrase []byte, now time.Time) (*Made, error) {
	var pass keys.PassFunc
	if passphrase != nil {
		pass = keys.Static(passphrase)
	}
	envelope, err := signedBefore(d)
	switch {
	case err != nil:
		return nil, err
	case envelope == nil:
		envelope, err = sign(ctx, d, pass, now)
	default:
		err = reopen(d, pass)
	}
	if err != nil {
		return nil, err
	}
	root, err := signing.OpenFirstRoot(envelope)
	if err != nil {
		return nil, fmt.Errorf("opening the root document: %w", err)
	}
	if err := documents(d, envelope); err != nil {
		return nil, err
	}
	return &Made{Expires: root.Expires}, nil
}

// signedBefore is the first root of an earlier attempt, which its manifest holds too; nil when none was signed. It refuses
// a folder that was in use and has lost more than that document.
func signedBefore(d *trustdir.Dir) ([]byte, error) {
	path := d.Manifest(TrustManifest)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && cli.Exists(d.At(readmeFile)):
		return nil, cli.Hint(fmt.Errorf("%q has had a first root: %s comes after it, and neither %s nor %s is there", d.Path, readmeFile, d.RootDocument(1), path),
			"bring it back from a backup, or from the cluster: kubectl -n %s get configmap %s -o yaml; remove the folder if no host ever believed it", d.ControllerNamespace, manifest.TrustName)
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	chain, allowlist, err := manifest.ReadTrust(text)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	if len(chain) != 1 || len(allowlist) > 0 {
		return nil, cli.Hint(fmt.Errorf("%q has lost its documents: %s holds %d roots, and %s is not there", d.Path, path, len(chain), d.RootDocument(1)),
			"put the entries of that manifest's data, each under its name, into %s", d.At("public"))
	}
	return chain[0], nil
}

// reopen holds the passphrase against the keys of an earlier attempt that are still here, so that nobody takes theirs for
// that of this call.
func reopen(d *trustdir.Dir, pass keys.PassFunc) error {
	for _, role := range []string{"root", "author"} {
		paths, err := d.OfflineKeys(role)
		if err != nil {
			return err
		}
		for _, path := range paths {
			if _, err := readKey(path, pass); err != nil {
				return err
			}
		}
	}
	return nil
}

func readKey(path string, pass keys.PassFunc) (signing.Signer, error) {
	signer, err := keys.Read(path, pass)
	if signing.ReasonOf(err) == keys.ReasonPassphrase {
		return nil, ErrOtherPassphrase
	}
	if err != nil {
		return nil, fmt.Errorf("reading key %q: %w", path, err)
	}
	return signer, nil
}

// sign makes the keys that are not there yet, and signs the first root with them.
func sign(ctx context.Context, d *trustdir.Dir, pass keys.PassFunc, now time.Time) ([]byte, error) {
	root := &signing.Root{
		Version: 1, Issued: now, Expires: now.Add(time.Duration(d.ValidSeconds) * time.Second),
		Root:   signing.RoleKeys{Threshold: d.RootThreshold},
		Author: signing.RoleKeys{Threshold: 1}, Dispatch: signing.RoleKeys{Threshold: 1},
	}
	var signers []signing.Signer
	for n := 1; n <= d.RootKeys; n++ {
		signer, err := key(d, d.RootKey(n), fmt.Sprintf("root-%d", n), pass)
		if err != nil {
			return nil, err
		}
		signers = append(signers, signer)
		root.Root.Keys = append(root.Root.Keys, signer.Public())
	}
	author, err := key(d, d.AuthorKey(), "author", pass)
	if err != nil {
		return nil, err
	}
	root.Author.Keys = []signing.Key{author.Public()}
	dispatch, err := dispatchKey(d)
	if err != nil {
		return nil, err
	}
	root.Dispatch.Keys = []signing.Key{dispatch}
	if err := sshKey(d); err != nil {
		return nil, err
	}
	envelope, err := signing.Sign(ctx, root, signers...)
	if err != nil {
		return nil, fmt.Errorf("signing the root document: %w", err)
	}
	return envelope, nil
}

// key makes a key file, or opens the one that an earlier attempt made.
func key(d *trustdir.Dir, path, name string, pass keys.PassFunc) (signing.Signer, error) {
	signer, err := keyfile.Create(path, d.Algorithm, pass)
	if errors.Is(err, fs.ErrExist) {
		signer, err = readKey(path, pass)
	}
	if errors.Is(err, ErrOtherPassphrase) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("making key %q: %w", path, err)
	}
	return signer, keyfile.WritePublic(d.PublicKey(name), signer.Public())
}

// dispatchKey exists in its manifest only: one copy fewer to forget.
func dispatchKey(d *trustdir.Dir) (signing.Key, error) {
	path := d.Manifest(DispatchManifest)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = NewDispatchManifest(d); err == nil {
			err = cli.CreateFile(path, text, 0o600)
		}
	}
	if err != nil {
		return signing.Key{}, fmt.Errorf("making the dispatch key: %w", err)
	}
	public, err := ReadDispatchManifest(text)
	if err != nil {
		return signing.Key{}, fmt.Errorf("reading %q: %w", path, err)
	}
	return public, keyfile.WritePublic(d.PublicKey("dispatch"), public)
}

// ReadDispatchManifest is the public half of the key in a Secret's manifest.
func ReadDispatchManifest(text []byte) (signing.Key, error) {
	data, err := manifest.ReadSecret(text)
	if err != nil {
		return signing.Key{}, err
	}
	signer, err := keys.FromSecret(data)
	if err != nil {
		return signing.Key{}, err
	}
	return signer.Public(), nil
}

// NewDispatchManifest makes a dispatch key, in the Secret that it is to be.
func NewDispatchManifest(d *trustdir.Dir) ([]byte, error) {
	private, err := keys.Make(d.Algorithm)
	if err != nil {
		return nil, err
	}
	text, err := keys.Encode(private, nil)
	if err != nil {
		return nil, err
	}
	public, err := signing.KeyOf(private.Public())
	if err != nil {
		return nil, err
	}
	return manifest.Dispatch(d.ControllerNamespace, text, public)
}

func sshKey(d *trustdir.Dir) error {
	private, err := os.ReadFile(d.SSHKey())
	if errors.Is(err, fs.ErrNotExist) {
		made, err := keys.MakeSSH("kpssh")
		if err != nil {
			return err
		}
		private = made.Private
		if err := cli.CreateFile(d.SSHKey(), private, 0o600); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		return fmt.Errorf("reading %q: %w", d.SSHKey(), err)
	}
	if err := cli.WriteFile(d.SSHKey()+".pub", ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o644); err != nil {
		return err
	}
	text, err := manifest.SSH(d.PoolNamespace, manifest.SSHName, private, "")
	if err != nil {
		return err
	}
	return cli.WriteFile(d.Manifest(SSHManifest), text, 0o600)
}

// documents writes what is signed. The manifest that holds it comes before all else, and root.1.json last: it says that
// all else is done.
func documents(d *trustdir.Dir, envelope []byte) error {
	namespaces, err := manifest.Namespaces(d.ControllerNamespace, d.PoolNamespace)
	if err != nil {
		return err
	}
	trust, err := manifest.Trust(d.ControllerNamespace, [][]byte{envelope}, nil)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		path string
		data []byte
	}{
		{d.Manifest(TrustManifest), trust},
		{d.Manifest(NamespacesManifest), namespaces},
		{d.At(readmeFile), []byte(readme)},
		{d.At(".gitignore"), []byte("/offline/\n/online/\n*.secret.yaml\n")},
	} {
		if err := cli.WriteFile(file.path, file.data, 0o644); err != nil {
			return err
		}
	}
	return cli.CreateFile(d.RootDocument(1), envelope, 0o644)
}

const readme = `What is in this folder

  offline/    Private root and author keys. Move them to offline media and remove them here.
              A root key may replace every other key; the author key allows scripts.
  online/     The SSH client key of the controller. It reaches hosts and runs nothing by itself.
              Beside it dispatch keys that a rotation made or put aside: secret, too.
  public/     Documents that the offline keys signed, and public keys. Nothing here is secret.
  manifests/  For kubectl apply. Files named *.secret.yaml hold private keys: never commit them.

Only public/ and the manifests that are not *.secret.yaml belong into version control; .gitignore
keeps the rest out.
`
