package keys

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const passphrase = "correct horse"

func wantReason(t *testing.T, err error, want signing.Reason) {
	t.Helper()
	if got := signing.ReasonOf(err); got != want || (err == nil) != (want == "") {
		t.Errorf("got %v (reason %q), want reason %q", err, got, want)
	}
}

// signs tells whether the signer's signature verifies under the key.
func signs(t *testing.T, s signing.Signer, k signing.Key) bool {
	t.Helper()
	sig, err := s.Sign(context.Background(), []byte("message"))
	if err != nil {
		t.Fatal(err)
	}
	return k.Verify([]byte("message"), sig)
}

// Every kind of key file, through every way in: one suite, so that no way is different.
func TestKeyFiles(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pf := cryptoutils.StaticPasswordFunc([]byte(passphrase))
	text := func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	cosignKey, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), pf)
	if err != nil {
		t.Fatal(err)
	}
	emptyWord, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), cryptoutils.StaticPasswordFunc([]byte{}))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := FromSecret(map[string][]byte{"cosign.key": emptyWord}); err != nil || !signs(t, s, s.Public()) {
		t.Errorf("a cosign key with the empty passphrase: %v", err)
	}
	for name, c := range map[string]struct {
		text      []byte
		encrypted bool
		public    crypto.PublicKey
	}{
		"ed25519":                        {text(Encode(ed, nil)), false, ed.Public()},
		"ed25519, empty passphrase":      {text(Encode(ed, Static(nil))), false, ed.Public()},
		"ed25519, encrypted":             {text(Encode(ed, Static([]byte(passphrase)))), true, ed.Public()},
		"P-256":                          {text(Encode(ec, nil)), false, ec.Public()},
		"P-256, encrypted":               {text(Encode(ec, Static([]byte(passphrase)))), true, ec.Public()},
		"P-256, SEC 1":                   {block("EC PRIVATE KEY", text(x509.MarshalECPrivateKey(ec))), false, ec.Public()},
		"cosign, as sigstore writes it":  {cosignKey, true, nil},
		"cosign, as older cosigns wrote": {bytes.ReplaceAll(cosignKey, []byte("SIGSTORE"), []byte("COSIGN")), true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key")
			if err := WriteNew(path, c.text, 0o600); err != nil {
				t.Fatal(err)
			}
			ways := map[string]func(PassFunc, []byte) (signing.Signer, error){
				"file":      func(pass PassFunc, _ []byte) (signing.Signer, error) { return Read(path, pass) },
				"reference": func(pass PassFunc, _ []byte) (signing.Signer, error) { return Open(context.Background(), path, pass) },
				"text":      func(pass PassFunc, _ []byte) (signing.Signer, error) { return Parse(c.text, pass) },
				"secret": func(_ PassFunc, word []byte) (signing.Signer, error) {
					return FromSecret(map[string][]byte{SecretKey: c.text, SecretPassphrase: word})
				},
				"cosign's secret": func(_ PassFunc, word []byte) (signing.Signer, error) {
					return FromSecret(map[string][]byte{"cosign.key": c.text, "cosign.password": word})
				},
			}
			if c.encrypted && !strings.Contains(name, "as sigstore") {
				// Each costs a run of scrypt, which is slow on purpose: one file goes through all.
				ways = map[string]func(PassFunc, []byte) (signing.Signer, error){"file": ways["file"]}
			}
			for way, open := range ways {
				word := []byte(passphrase)
				s, err := open(Static(word), word)
				if err != nil {
					t.Errorf("%s: %v", way, err)
					continue
				}
				if !signs(t, s, s.Public()) {
					t.Errorf("%s: the signature does not verify", way)
				}
				if c.public != nil {
					if want, err := signing.KeyOf(c.public); err != nil || !s.Public().Equal(want) {
						t.Errorf("%s: another key, %v", way, err)
					}
				}
				if !c.encrypted || way != "file" && way != "secret" {
					continue
				}
				for what, wrong := range map[string][]byte{"empty": {}, "no": nil} {
					if _, err := open(Static(wrong), wrong); signing.ReasonOf(err) != ReasonPassphrase {
						t.Errorf("%s: %s passphrase: %v", way, what, err)
					}
				}
			}
			if c.encrypted {
				_, err := Read(path, nil)
				wantReason(t, err, ReasonPassphrase)
				_, err = Read(path, Static([]byte("wrong")))
				wantReason(t, err, ReasonPassphrase)
				if bytes.Contains(c.text, []byte("BEGIN PRIVATE KEY")) {
					t.Error("the key is not encrypted")
				}
			}
		})
	}
}

func TestFilesThatHoldNoKeyOfOurs(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8Text := func(private any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	good, err := Make("")
	if err != nil {
		t.Fatal(err)
	}
	one := pkcs8Text(good)
	public, err := signing.KeyOf(good.Public())
	if err != nil {
		t.Fatal(err)
	}
	sshKey, err := MakeSSH("x")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text []byte
		want signing.Reason
	}{
		"nothing":                       {nil, ReasonUnsupportedKey},
		"text":                          {[]byte("key"), ReasonUnsupportedKey},
		"RSA":                           {pkcs8Text(rsaKey), ReasonUnsupportedKey},
		"P-384":                         {pkcs8Text(p384), ReasonUnsupportedKey},
		"a public key":                  {EncodePublic(public), ReasonUnsupportedKey},
		"an SSH key":                    {sshKey.Private, ReasonUnsupportedKey},
		"two keys":                      {append(slices.Clone(one), one...), ReasonUnsupportedKey},
		"a key and more":                {append(slices.Clone(one), "more"...), ReasonUnsupportedKey},
		"a key cut short":               {one[:len(one)/2], ReasonUnsupportedKey},
		"broken DER":                    {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), ReasonUnsupportedKey},
		"broken encrypted":              {pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: []byte("x")}), ReasonPassphrase},
		"dear scrypt":                   {pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: []byte(`{"kdf":{"name":"scrypt","params":{"N":1073741824,"r":8,"p":1},"salt":"AAAA"},"cipher":{"name":"nacl/secretbox","nonce":"AAAA"},"ciphertext":"AAAA"}`)}), ReasonPassphrase},
		"encrypted PKCS #8":             {pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte{0x30, 0x80}}), ReasonUnsupportedKey},
		"encrypted as OpenSSL once did": {pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}, Bytes: []byte{0x30, 0x80}}), ReasonUnsupportedKey},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.text, Static([]byte(passphrase)))
			wantReason(t, err, c.want)
			_, err = FromSecret(map[string][]byte{SecretKey: c.text, SecretPassphrase: []byte(passphrase)})
			wantReason(t, err, c.want)
		})
	}
	_, err = FromSecret(nil)
	wantReason(t, err, ReasonUnsupportedKey)
	_, err = FromSecret(map[string][]byte{SecretKey: make([]byte, maxFile+1)})
	wantReason(t, err, ReasonUnsupportedKey)
	_, err = Make("rsa")
	wantReason(t, err, ReasonUnsupportedKey)
	_, err = Encode(rsaKey, nil)
	wantReason(t, err, ReasonUnsupportedKey)
}

// sigstore executes sigstore-kms-X from PATH for a scheme that it does not know.
func TestReferencesOfOtherSchemesAreRefusedBeforeSigstore(t *testing.T) {
	dir := t.TempDir()
	marker := filepath.Join(dir, "ran")
	plugin := "#!/bin/sh\ntouch " + marker + "\n"
	if err := os.WriteFile(filepath.Join(dir, "sigstore-kms-evil"), []byte(plugin), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	// With the plugin in PATH, sigstore's own way in would run it.
	for _, ref := range []string{"evil://x", "evil://x?awskms:///alias/x", "../evil://x", "evil:///awskms://alias/x"} {
		_, err := Open(context.Background(), ref, nil)
		wantReason(t, err, ReasonUnknownScheme)
	}
	if _, err := os.Stat(marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the plugin ran: %v", err)
	}
	if _, err := Open(context.Background(), filepath.Join(dir, "missing"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Open(cancelled, marker, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestCreateNeverOverwrites(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "root.key")
	k, err := Create(path, ECDSAP256, Static([]byte(passphrase)))
	if err != nil {
		t.Fatal(err)
	}
	if k.Algorithm != signing.AlgorithmECDSAP256 {
		t.Errorf("made a key of %s", k.Algorithm)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{path: 0o600, path + ".pub": 0o644} {
		info, err := os.Stat(name)
		if err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	if got, err := ReadPublic(path + ".pub"); err != nil || !got.Equal(k) {
		t.Errorf("public half: %v, %v", got, err)
	}
	if s, err := Read(path, Static([]byte(passphrase))); err != nil || !s.Public().Equal(k) {
		t.Errorf("private half: %v", err)
	}

	t.Run("a second time", func(t *testing.T) {
		if _, err := Create(path, "", nil); !errors.Is(err, fs.ErrExist) {
			t.Errorf("got %v", err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the key changed: %v", err)
		}
	})
	t.Run("through a symlink", func(t *testing.T) {
		link := filepath.Join(dir, "link.key")
		if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
			t.Fatal(err)
		}
		if _, err := Create(link, "", nil); !errors.Is(err, fs.ErrExist) {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "target")); !errors.Is(err, fs.ErrNotExist) {
			t.Error("the target was written")
		}
	})
	t.Run("where the public half is taken", func(t *testing.T) {
		other := filepath.Join(dir, "other.key")
		if err := os.WriteFile(other+".pub", []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Create(other, "", nil); !errors.Is(err, fs.ErrExist) {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(other); !errors.Is(err, fs.ErrNotExist) {
			t.Error("half a pair is left behind")
		}
		if text, err := os.ReadFile(other + ".pub"); err != nil || string(text) != "mine" {
			t.Errorf("the other file changed: %q, %v", text, err)
		}
	})
	t.Run("in a folder that is not there", func(t *testing.T) {
		if _, err := Create(filepath.Join(dir, "no", "key"), "", nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("when no passphrase is to be had", func(t *testing.T) {
		refused := errors.New("no")
		_, err := Create(filepath.Join(dir, "z.key"), "", func(bool) ([]byte, error) { return nil, refused })
		if !errors.Is(err, refused) {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "z.key")); !errors.Is(err, fs.ErrNotExist) {
			t.Error("a key is left behind")
		}
	})
	t.Run("with an algorithm that is not ours", func(t *testing.T) {
		_, err := Create(filepath.Join(dir, "y.key"), "rsa", nil)
		wantReason(t, err, ReasonUnsupportedKey)
	})
}

func TestPublicKeys(t *testing.T) {
	private, err := Make(Ed25519)
	if err != nil {
		t.Fatal(err)
	}
	k, err := signing.KeyOf(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(EncodePublic(k)), k.String(), k.String() + "\n", "\n" + string(EncodePublic(k)) + "\n"} {
		if got, err := ParsePublic([]byte(text)); err != nil || !got.Equal(k) {
			t.Errorf("%q: %v", text, err)
		}
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(p384.Public())
	if err != nil {
		t.Fatal(err)
	}
	text, err := Encode(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"nothing":         nil,
		"a private key":   text,
		"P-384":           pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
		"broken DER":      pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}),
		"two keys":        append(EncodePublic(k), EncodePublic(k)...),
		"half a line":     []byte(k.String()[:20]),
		"a small order":   []byte("ed25519:MCowBQYDK2VwAyEAAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
		"another's words": []byte("ssh-ed25519 AAAA"),
	} {
		if got, err := ParsePublic(bad); err == nil {
			t.Errorf("%s: read as %v", name, got)
		}
	}
	path := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(path, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = ReadPublic(path)
	wantReason(t, err, ReasonUnsupportedKey)
	_, err = Read(path, nil)
	wantReason(t, err, ReasonUnsupportedKey)
}

func TestPassphrases(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("KPSSH_TEST_PASSPHRASE", passphrase)
	t.Setenv("KPSSH_TEST_EMPTY", "")
	for name, c := range map[string]struct {
		pass PassFunc
		want string
	}{
		"a file":                   {FromFile(write("a", passphrase)), passphrase},
		"a file with a line break": {FromFile(write("b", passphrase+"\n")), passphrase},
		"a file of Windows":        {FromFile(write("c", passphrase+"\r\n")), passphrase},
		"a file with spaces":       {FromFile(write("d", " "+passphrase+" \n")), " " + passphrase + " "},
		"a file with two lines":    {FromFile(write("e", "one\ntwo\n")), "one\ntwo"},
		"an empty file":            {FromFile(write("f", "\n")), ""},
		"no file":                  {FromFile(filepath.Join(dir, "none")), ""},
		"the environment":          {FromEnv("KPSSH_TEST_PASSPHRASE"), passphrase},
		"an empty variable":        {FromEnv("KPSSH_TEST_EMPTY"), ""},
		"no variable":              {FromEnv("KPSSH_TEST_NONE"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.pass(true)
			if string(got) != c.want || (err == nil) != (c.want != "") {
				t.Errorf("got %q, %v", got, err)
			}
			if err != nil && strings.Contains(err.Error(), passphrase) {
				t.Errorf("the error tells the passphrase: %v", err)
			}
		})
	}
}

// cosign encrypts with the empty passphrase when it is given one.
func TestAnEmptyPassphraseOpensAndNeverCloses(t *testing.T) {
	text, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), cryptoutils.StaticPasswordFunc([]byte{}))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KPSSH_TEST_EMPTY", "")
	for name, pass := range map[string]PassFunc{"a file": FromFile(path), "the environment": FromEnv("KPSSH_TEST_EMPTY")} {
		if s, err := Parse(text, pass); err != nil || !signs(t, s, s.Public()) {
			t.Errorf("%s: %v", name, err)
		}
		private, err := Make(Ed25519)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Encode(private, pass)
		wantReason(t, err, ReasonPassphrase)
	}
	_, err = Parse(text, FromEnv("KPSSH_TEST_NONE"))
	wantReason(t, err, ReasonPassphrase)
	_, err = Parse(text, Static([]byte("wrong")))
	wantReason(t, err, ReasonPassphrase)
	if err == nil || !strings.Contains(err.Error(), "the passphrase does not open it") {
		t.Errorf("got %v", err)
	}
}

func TestSSHKey(t *testing.T) {
	k, err := MakeSSH("kpssh controller")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.ParsePrivateKey(k.Private)
	if err != nil {
		t.Fatal(err)
	}
	public, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(k.Authorized))
	if err != nil || comment != "kpssh controller" || len(options)+len(rest) > 0 {
		t.Errorf("authorized_keys line %q: %q %v %q %v", k.Authorized, comment, options, rest, err)
	}
	if !bytes.Equal(public.Marshal(), s.PublicKey().Marshal()) || public.Type() != ssh.KeyAlgoED25519 {
		t.Error("the two halves differ")
	}
	if k.Fingerprint != ssh.FingerprintSHA256(public) || strings.Contains(k.Authorized, "\n") {
		t.Errorf("%+v", k)
	}
	if bare, err := MakeSSH(""); err != nil || len(strings.Fields(bare.Authorized)) != 2 {
		t.Errorf("without a comment: %+v, %v", bare, err)
	}
	for _, comment := range []string{"a\nb", "a\x00", "\x1b[2J", strings.Repeat("a", 300)} {
		_, err := MakeSSH(comment)
		wantReason(t, err, ReasonUnsupportedKey)
	}
}

func FuzzParse(f *testing.F) {
	private, err := Make("")
	if err != nil {
		f.Fatal(err)
	}
	text, err := Encode(private, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	f.Add([]byte("-----BEGIN EC PRIVATE KEY-----\nDEK-Info: AES-256-CBC,00\n\nMAA=\n-----END EC PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text, Static([]byte(passphrase)))
		if err == nil {
			s.Public().ID()
		}
		if k, err := ParsePublic(text); err == nil {
			k.Verify(nil, nil)
		}
	})
}
