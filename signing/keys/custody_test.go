package keys

import (
	"bytes"
	"context"
	"crypto"
	"crypto/elliptic"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/kms/fake"
	"github.com/sigstore/sigstore/pkg/signature/kms/gcp"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys/keystest"
)

// certificates are trusted by all of this test's process.
var certificates *keystest.Certificates

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "keys")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	certificates, err = keystest.NewCertificates()
	if err != nil {
		panic(err)
	}
	trusted := filepath.Join(dir, "ca.pem")
	if err := certificates.Write(trusted); err != nil {
		panic(err)
	}
	for name, value := range map[string]string{
		"SSL_CERT_FILE": trusted, "AWS_CA_BUNDLE": trusted, "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_REGION": "eu-central-1", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": keystest.AWSAccessKeyID, "AWS_SECRET_ACCESS_KEY": keystest.AWSSecretAccessKey,
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	return m.Run()
}

// The services, in memory. Each opens the key of a server through the client that is linked.

func vaultKey(t *testing.T, kind string) (*keystest.Service, *ServiceKey) {
	v := keystest.NewVault(t, kind)
	t.Setenv("VAULT_ADDR", v.URL)
	t.Setenv("VAULT_TOKEN", keystest.VaultToken)
	return v.Service, serviceKey(t, v.Ref)
}

func awsKey(t *testing.T, kind string) (*keystest.Service, *ServiceKey) {
	a := keystest.NewAWS(t, certificates, kind)
	return a.Service, serviceKey(t, a.Ref)
}

func azureKey(t *testing.T, kind string) (*keystest.Service, *ServiceKey) {
	a := keystest.NewAzure(t, certificates, kind)
	for name, value := range a.Environment {
		t.Setenv(name, value)
	}
	return a.Service, serviceKey(t, a.Ref)
}

func gcpKey(t *testing.T, kind string) (*keystest.Service, *ServiceKey) {
	g := keystest.NewGCP(t, kind)
	k := serviceKey(t, g.Ref)
	// The client takes no other address from its environment.
	k.service.load = func(ctx context.Context, ref string) (client, error) {
		return gcp.LoadSignerVerifier(unbound(ctx), ref, option.WithEndpoint(g.Address), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	}
	return g.Service, k
}

func serviceKey(t *testing.T, ref string) *ServiceKey {
	t.Helper()
	k, err := NewServiceKey(ref)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// fakeKMS is sigstore's own test double, which its registry does not offer to us.
func fakeKMS(t *testing.T, algorithm string) *ServiceKey {
	t.Helper()
	private, err := Make(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	k := newServiceKey(service{
		scheme: "fakekms", algorithms: []string{signing.AlgorithmEd25519, signing.AlgorithmECDSAP256},
		load: func(ctx context.Context, _ string) (client, error) {
			return fake.LoadSignerVerifier(context.WithValue(ctx, fake.KmsCtxKey{}, crypto.PrivateKey(private)), crypto.SHA256)
		},
	}, fake.ReferenceScheme+"key")
	if _, err := k.Key(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k
}

// custodians are all the places where a key may live, each with how to open it.
func custodians() map[string]func(*testing.T) signing.Signer {
	file := func(algorithm string, pass PassFunc) func(*testing.T) signing.Signer {
		return func(t *testing.T) signing.Signer {
			path := filepath.Join(t.TempDir(), "key")
			if _, err := Create(path, algorithm, pass); err != nil {
				t.Fatal(err)
			}
			return opened(t, path, pass)
		}
	}
	inService := func(open func(*testing.T, string) (*keystest.Service, *ServiceKey), kind string) func(*testing.T) signing.Signer {
		return func(t *testing.T) signing.Signer {
			_, k := open(t, kind)
			if _, err := k.Key(t.Context()); err != nil {
				t.Fatal(err)
			}
			return k
		}
	}
	return map[string]func(*testing.T) signing.Signer{
		"a file, ed25519":              file(Ed25519, nil),
		"a file, P-256":                file(ECDSAP256, nil),
		"an encrypted file, ed25519":   file(Ed25519, Static([]byte(passphrase))),
		"an encrypted file, P-256":     file(ECDSAP256, Static([]byte(passphrase))),
		"a file of cosign":             cosignFile,
		"a Secret":                     inSecret,
		"sigstore's fake KMS, ed25519": func(t *testing.T) signing.Signer { return fakeKMS(t, Ed25519) },
		"sigstore's fake KMS, P-256":   func(t *testing.T) signing.Signer { return fakeKMS(t, ECDSAP256) },
		"Vault in memory, ed25519":     inService(vaultKey, keystest.Ed25519),
		"Vault in memory, P-256":       inService(vaultKey, keystest.P256),
		"AWS KMS in memory":            inService(awsKey, keystest.P256),
		"Azure Key Vault in memory":    inService(azureKey, keystest.P256),
		"Cloud KMS in memory":          inService(gcpKey, keystest.P256),
	}
}

func opened(t *testing.T, ref string, pass PassFunc) signing.Signer {
	t.Helper()
	s, err := Open(t.Context(), ref, pass)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// cosignFile is a pair as `cosign generate-key-pair` writes it, by the code that it uses for that.
func cosignFile(t *testing.T) signing.Signer {
	private, public, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), cryptoutils.StaticPasswordFunc([]byte(passphrase)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{"cosign.key": private, "cosign.pub": public} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("COSIGN_PASSWORD", passphrase)
	s := opened(t, filepath.Join(dir, "cosign.key"), FromEnv("COSIGN_PASSWORD"))
	if k, err := ReadPublic(filepath.Join(dir, "cosign.pub")); err != nil || !k.Equal(s.Public()) {
		t.Errorf("cosign.pub is not the other half: %v", err)
	}
	return s
}

func inSecret(t *testing.T) signing.Signer {
	private, err := Make(Ed25519)
	if err != nil {
		t.Fatal(err)
	}
	text, err := Encode(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := FromSecret(map[string][]byte{SecretKey: text})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryCustodianSignsAlike(t *testing.T) {
	for name, open := range custodians() {
		t.Run(name, func(t *testing.T) { checkCustodian(t, open(t)) })
	}
}

// checkCustodian is what holds of a key wherever it lives.
func checkCustodian(t *testing.T, s signing.Signer) {
	t.Run("every document that it may sign is accepted", func(t *testing.T) { checkDocuments(t, s) })
	t.Run("messages of every size are signed as they are", func(t *testing.T) {
		for _, size := range []int{0, 1, 4096, 64 << 10} {
			message := bytes.Repeat([]byte{'m'}, size)
			sig, err := s.Sign(t.Context(), message)
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if !s.Public().Verify(message, sig) {
				t.Errorf("%d bytes: the signature does not verify", size)
			}
			if s.Public().Verify(append(message, 'x'), sig) {
				t.Errorf("%d bytes: the signature fits another message", size)
			}
		}
	})
	t.Run("the public half goes through its one line and does not change", func(t *testing.T) {
		k, err := signing.ParseKey(s.Public().String())
		if err != nil || !k.Equal(s.Public()) {
			t.Errorf("%v: %v", s.Public(), err)
		}
	})
	t.Run("many sign at once", func(t *testing.T) {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				message := []byte{byte(i)}
				if sig, err := s.Sign(t.Context(), message); err != nil || !s.Public().Verify(message, sig) {
					t.Errorf("message %d: %v", i, err)
				}
			})
		}
		all.Wait()
	})
	t.Run("whoever gives up gets no signature", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if sig, err := s.Sign(ctx, []byte("m")); !errors.Is(err, context.Canceled) || sig != nil {
			t.Errorf("%x, %v", sig, err)
		}
	})
}

// checkDocuments lets the key be root, author and dispatch at once.
func checkDocuments(t *testing.T, s signing.Signer) {
	issued := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	role := signing.RoleKeys{Keys: []signing.Key{s.Public()}, Threshold: 1}
	envelope, err := signing.Sign(t.Context(), &signing.Root{Version: 1, Issued: issued, Expires: issued.AddDate(1, 0, 0), Root: role, Author: role, Dispatch: role}, s)
	if err != nil {
		t.Fatal(err)
	}
	root, err := signing.OpenFirstRoot(envelope)
	if err != nil {
		t.Fatal(err)
	}
	script := signing.Digest([]byte("#!/bin/bash\n"))
	envelope, err = signing.Sign(t.Context(), &signing.Allowlist{
		Version: 1, Issued: issued, Expires: issued.AddDate(0, 3, 0),
		Scripts: []signing.AllowedScript{{Profile: "p", Version: "1", Phase: signing.PhaseLeave, Digest: script}},
	}, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signing.OpenAllowlist(envelope, root); err != nil {
		t.Error(err)
	}
	// As large as an order gets: beyond what AWS KMS signs in one piece, were it not for the digest.
	order := &signing.Order{
		HostID: "host-1", Challenge: bytes.Repeat([]byte{1}, signing.ChallengeSize), Allowlist: script, Profile: "p", Version: "1",
		Phase: signing.PhaseLeave, Script: script, Claim: "7d0f", Fence: 1, Parameters: script, TimeoutSeconds: 60, Secrets: map[string]string{},
	}
	for name := 'A'; name <= 'Z'; name++ {
		order.Secrets["KPSSH_SECRET_"+string(name)] = script
	}
	envelope, err = signing.Sign(t.Context(), order, s)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := signing.OpenOrder(envelope, root); err != nil || got.Script != script {
		t.Errorf("%+v, %v", got, err)
	}
}
