// Package keyfile is signing/keys with what a command line adds: files that are whole or not there,
// passphrases that are asked for only when a file needs one, and public keys given in any form.
package keyfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

// Create makes a private key file that must not exist yet. A crash leaves all of it or nothing, so
// that whoever finds it may use it.
func Create(path, algorithm string, pass keys.PassFunc) (signing.Signer, error) {
	if cli.Exists(path) { // before the costly part; CreateFile checks again
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	private, err := keys.Make(algorithm)
	if err != nil {
		return nil, err
	}
	text, err := keys.Encode(private, pass)
	if err != nil {
		return nil, err
	}
	if err := cli.CreateFile(path, text, 0o600); err != nil {
		return nil, err
	}
	return signing.NewSigner(private)
}

// WritePublic writes the one line form of a public key.
func WritePublic(path string, key signing.Key) error {
	return cli.WriteFile(path, []byte(key.String()+"\n"), 0o644)
}

// Open opens a private key file or a key service's reference, asking for a passphrase if needed.
func Open(ctx context.Context, env *cli.Env, ref string, passphrase *cli.Passphrase) (signing.Signer, error) {
	signer, err := keys.Open(ctx, ref, func(bool) ([]byte, error) { return passphrase.Open(env, ref) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, cli.Hint(err, "if it is on its offline medium, name it there")
	case signing.ReasonOf(err) == keys.ReasonPassphrase:
		return nil, passphrase.Wrong(env, ref)
	case signing.ReasonOf(err) == keys.ReasonUnsupportedKey && !keys.IsReference(ref):
		return nil, notPrivate(env, ref, err)
	}
	return signer, err
}

// notPrivate says of what was given as a private key what it is instead, where that is plain.
func notPrivate(env *cli.Env, path string, err error) error {
	data, readErr := env.Read(path)
	if readErr != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return fmt.Errorf("reading key %q: it is empty", path)
	}
	if _, publicErr := keys.ParsePublic(data); publicErr == nil {
		return cli.Hint(fmt.Errorf("reading key %q: it is a public key, which signs nothing", path), "name its private half")
	}
	return err
}

// Public is the key that text means: "ALGORITHM:BASE64" itself, a file that holds a public key, or a
// key service's reference.
func Public(env *cli.Env, text string) (signing.Key, error) {
	if key, err := signing.ParseKey(text); err == nil {
		return key, nil
	}
	if keys.IsReference(text) {
		signer, err := keys.Open(context.Background(), text, nil) // which has a deadline of its own
		if err != nil {
			return signing.Key{}, err
		}
		return signer.Public(), nil
	}
	data, err := env.Read(text)
	if err != nil {
		return signing.Key{}, err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return signing.Key{}, fmt.Errorf("reading public key %q: it is empty", text)
	}
	key, err := keys.ParsePublic(data)
	if err != nil && bytes.Contains(data, []byte("PRIVATE KEY-----")) {
		return signing.Key{}, cli.Hint(fmt.Errorf("reading public key %q: it is a private key: %w", text, err), "name its public half: the file that ends in .pub")
	}
	if err != nil {
		return signing.Key{}, fmt.Errorf("reading public key %q: %w", text, err)
	}
	return key, nil
}

// PublicHalf is Public for a private key file too, which is opened for it.
func PublicHalf(ctx context.Context, env *cli.Env, text string, passphrase *cli.Passphrase) (signing.Key, error) {
	key, err := Public(env, text)
	if signing.ReasonOf(err) != keys.ReasonUnsupportedKey || keys.IsReference(text) {
		return key, err
	}
	signer, failed := Open(ctx, env, text, passphrase)
	if failed != nil {
		return signing.Key{}, failed
	}
	return signer.Public(), nil
}
