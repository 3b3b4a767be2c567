package keys

import (
	"bytes"
	"os"
)

// PassFunc gives a passphrase. confirm is true when a key is about to be encrypted with it, so
// that a person is asked twice.
type PassFunc func(confirm bool) ([]byte, error)

// Static gives always the same passphrase.
func Static(passphrase []byte) PassFunc {
	return func(bool) ([]byte, error) { return passphrase, nil }
}

// FromFile reads the passphrase from a file, without its final line break. An empty one opens keys,
// as cosign makes such, and never closes one.
func FromFile(path string) PassFunc {
	return func(confirm bool) ([]byte, error) {
		b, err := readBounded(path)
		if err != nil {
			return nil, err
		}
		b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		if len(b) == 0 && confirm {
			return nil, refuse(ReasonPassphrase, "passphrase file %q is empty", path)
		}
		return b, nil
	}
}

// FromEnv reads the passphrase from an environment variable, which must be set. An empty one is for
// opening keys only, as with FromFile.
func FromEnv(name string) PassFunc {
	return func(confirm bool) ([]byte, error) {
		v, found := os.LookupEnv(name)
		if !found || v == "" && confirm {
			return nil, refuse(ReasonPassphrase, "environment variable %s is not set, or empty", name)
		}
		return []byte(v), nil
	}
}
