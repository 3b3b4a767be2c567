package sshsig

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestVerifyAcceptsWhatSSHKeygenSigned(t *testing.T) {
	for _, kind := range []string{"ed25519", "ed25519-sha256", "ecdsa", "ecdsa-p384", "ecdsa-p521", "rsa", "rsa-sha256"} {
		t.Run(kind, func(t *testing.T) {
			key, err := Verify(read(t, kind+".sig"), "kpssh-test", read(t, "message"))
			if err != nil {
				t.Fatal(err)
			}
			want, _, _, _, err := ssh.ParseAuthorizedKey(read(t, kind+".pub"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(key.Marshal(), want.Marshal()) {
				t.Errorf("got key %s, want %s", ssh.FingerprintSHA256(key), ssh.FingerprintSHA256(want))
			}
		})
	}
}

func TestVerifyRefuses(t *testing.T) {
	good := read(t, "ed25519.sig")
	cases := map[string]struct {
		armored   []byte
		namespace string
		message   []byte
	}{
		// Good signatures, all three, of a namespace that git and others use.
		"ed25519 of namespace file": {read(t, "ed25519-file.sig"), "kpssh-test", read(t, "message")},
		"ecdsa of namespace file":   {read(t, "ecdsa-file.sig"), "kpssh-test", read(t, "message")},
		"rsa of namespace file":     {read(t, "rsa-file.sig"), "kpssh-test", read(t, "message")},
		"a namespace that is empty": {good, "", read(t, "message")},
		"a namespace cut short":     {good, "kpssh-tes", read(t, "message")},
		"another namespace":         {good, "file", read(t, "message")},
		"another message":           {good, "kpssh-test", []byte("another statement\n")},
		"nothing":                   {nil, "kpssh-test", read(t, "message")},
		"data after it":             {append(bytes.Clone(good), "more"...), "kpssh-test", read(t, "message")},
		"more than a signature":     {bytes.Repeat(good, 100), "kpssh-test", read(t, "message")},
		"another kind of armour":    {bytes.ReplaceAll(good, []byte("SSH SIGNATURE"), []byte("CERTIFICATE")), "kpssh-test", read(t, "message")},
	}
	for _, kind := range []string{"ed25519-file", "ecdsa-file", "rsa-file"} {
		if _, err := Verify(read(t, kind+".sig"), "file", read(t, "message")); err != nil {
			t.Errorf("%s is no good signature in its own namespace: %v", kind, err)
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Verify(c.armored, c.namespace, c.message); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// Every byte of the armour is changed once; what still verifies must be the same signature.
func TestVerifyRefusesEveryChangedByte(t *testing.T) {
	good, message := read(t, "ed25519.sig"), read(t, "message")
	want, err := Verify(good, "kpssh-test", message)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if key, err := Verify(bad, "kpssh-test", message); err == nil && !bytes.Equal(key.Marshal(), want.Marshal()) {
			t.Errorf("byte %d changed: accepted for another key", i)
		}
	}
}

func FuzzVerify(f *testing.F) {
	for _, kind := range []string{"ed25519.sig", "ecdsa.sig", "rsa.sig"} {
		data, err := os.ReadFile(filepath.Join("testdata", kind))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	message := []byte("not what was signed")
	f.Fuzz(func(t *testing.T, armored []byte) {
		if _, err := Verify(armored, "kpssh-test", message); err == nil {
			t.Error("verified a message that nobody signed")
		}
	})
}
