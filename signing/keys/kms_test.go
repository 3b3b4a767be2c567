package keys

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys/keystest"
)

// services in memory, by scheme.
func servicesInMemory() map[string]func(*testing.T, string) (*keystest.Service, *ServiceKey) {
	return map[string]func(*testing.T, string) (*keystest.Service, *ServiceKey){
		"hashivault": vaultKey, "awskms": awsKey, "azurekms": azureKey, "gcpkms": gcpKey,
	}
}

func TestEveryListedServiceHasATest(t *testing.T) {
	tested := servicesInMemory()
	for _, scheme := range schemes() {
		if tested[scheme] == nil {
			t.Errorf("no test of %s", scheme)
		}
	}
}

// credentials that no error may show.
func credentials() []string {
	return []string{keystest.VaultToken, keystest.AWSAccessKeyID, keystest.AWSSecretAccessKey, keystest.AzureToken}
}

func TestAFaultOfAServiceIsNamedAndYieldsNoSignature(t *testing.T) {
	faults := map[keystest.Fault]struct {
		reason signing.Reason
		says   string
	}{
		keystest.Hang:     {ReasonKeyService, "no answer within"},
		keystest.Denied:   {ReasonKeyService, ""},
		keystest.Down:     {ReasonKeyService, ""},
		keystest.Gossip:   {ReasonKeyService, ""},
		keystest.Garbage:  {ReasonKeyService, ""},
		keystest.Hollow:   {"", ""}, // some clients take nothing for a signature, which is then another key's
		keystest.OtherKey: {ReasonKeyChanged, "rotated"},
	}
	for scheme, open := range servicesInMemory() {
		for fault, want := range faults {
			t.Run(scheme+", "+string(fault), func(t *testing.T) {
				server, k := open(t, keystest.P256)
				before, err := k.Key(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if fault == keystest.Hang {
					k.limit = 300 * time.Millisecond
				}
				server.Break(fault)
				sig, err := k.Sign(t.Context(), []byte("m"))
				if sig != nil {
					t.Errorf("signature %x", sig)
				}
				if got := signing.ReasonOf(err); got != want.reason && (want.reason != "" || got != ReasonKeyService && got != ReasonKeyChanged) {
					t.Errorf("got %v (reason %q), want reason %q", err, got, want.reason)
				}
				if err == nil || !strings.Contains(err.Error(), want.says) || !strings.Contains(err.Error(), k.ref) {
					t.Errorf("%v does not name the key and say %q", err, want.says)
				}
				checkQuiet(t, err)
				if !k.Public().Equal(before) {
					t.Error("the public half changed")
				}
				server.Break(keystest.None)
				k.limit = callTime
				if sig, err := k.Sign(t.Context(), []byte("m")); err != nil || !before.Verify([]byte("m"), sig) {
					t.Errorf("after it was mended: %v", err)
				}
			})
		}
	}
}

// checkQuiet: one line, no credentials.
func checkQuiet(t *testing.T, err error) {
	t.Helper()
	for _, secret := range credentials() {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error tells a credential: %v", err)
		}
	}
	if strings.ContainsAny(err.Error(), "\n\t") || len(err.Error()) > 1000 {
		t.Errorf("not one line: %q", err)
	}
}

func TestAServiceThatDoesNotTellItsKeyOpensNothing(t *testing.T) {
	for scheme, open := range servicesInMemory() {
		for _, fault := range []keystest.Fault{keystest.Hang, keystest.Denied, keystest.Down, keystest.Gossip, keystest.Garbage} {
			t.Run(scheme+", "+string(fault), func(t *testing.T) {
				server, k := open(t, keystest.P256)
				k.limit = 300 * time.Millisecond
				if fault != keystest.Hang {
					k.limit = callTime
				}
				server.Break(fault)
				_, err := k.Key(t.Context())
				wantReason(t, err, ReasonKeyService)
				if err != nil {
					checkQuiet(t, err)
				}
				if k.Public().Public != nil {
					t.Error("there is a public half")
				}
				server.Break(keystest.None)
				k.limit = callTime
				if sig, err := k.Sign(t.Context(), []byte("m")); err != nil || !k.Public().Verify([]byte("m"), sig) {
					t.Errorf("after it was mended: %v", err)
				}
			})
		}
	}
}

func TestKeysOfOtherKindsAreRefused(t *testing.T) {
	for scheme, open := range servicesInMemory() {
		for kind, says := range map[string]string{keystest.RSA2048: "RSA-2048", keystest.P384: "P-384", keystest.Ed25519: "ed25519"} {
			if scheme == "hashivault" && kind == keystest.Ed25519 || scheme == "azurekms" && kind == keystest.Ed25519 {
				continue // the one has and takes them, the other has none
			}
			t.Run(scheme+", "+kind, func(t *testing.T) {
				_, k := open(t, kind)
				_, err := k.Key(t.Context())
				if scheme == "gcpkms" && kind == keystest.Ed25519 { // its client does not know the kind and says so itself
					wantReason(t, err, ReasonKeyService)
					return
				}
				wantReason(t, err, ReasonUnsupportedKey)
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%v does not say %q", err, says)
				}
				if _, err := k.Sign(t.Context(), []byte("m")); err == nil {
					t.Error("it signs")
				}
			})
		}
	}
}

// A service that holds every call until 100 of them wait for it at once answers only those who do not stand in line.
func TestOrdersDoNotWaitForEachOther(t *testing.T) {
	const orders = 100
	for scheme, open := range servicesInMemory() {
		t.Run(scheme, func(t *testing.T) {
			server, k := open(t, keystest.P256)
			if _, err := k.Key(t.Context()); err != nil {
				t.Fatal(err)
			}
			server.Gather(orders)
			var all sync.WaitGroup
			for i := range orders {
				all.Go(func() {
					if _, err := k.Sign(t.Context(), []byte{byte(i)}); err != nil {
						t.Errorf("order %d: %v", i, err)
					}
				})
			}
			all.Wait()
		})
	}
}

// Only a digest goes to the services of the clouds, so that documents of every size can be signed there.
func TestAServiceIsGivenWhatItSignsInOnePiece(t *testing.T) {
	for scheme, open := range servicesInMemory() {
		t.Run(scheme, func(t *testing.T) {
			server, k := open(t, keystest.P256)
			if _, err := k.Sign(t.Context(), make([]byte, 64<<10)); err != nil {
				t.Fatal(err)
			}
			if calls, largest := server.Signed(); calls != 1 || largest != 32 {
				t.Errorf("%d calls, the largest with %d bytes", calls, largest)
			}
		})
	}
}

func TestWhoeverGivesUpNeedNotWaitForTheService(t *testing.T) {
	for scheme, open := range servicesInMemory() {
		t.Run(scheme, func(t *testing.T) {
			server, k := open(t, keystest.P256)
			if _, err := k.Key(t.Context()); err != nil {
				t.Fatal(err)
			}
			server.Break(keystest.Hang)
			k.limit = time.Hour
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := k.Sign(ctx, []byte("m")); !errors.Is(err, context.DeadlineExceeded) || signing.ReasonOf(err) != "" {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Calls that a service swallows are bounded; when it comes back, so do the places.
func TestAServiceThatSwallowsCallsDoesNotCollectThem(t *testing.T) {
	server, k := vaultKey(t, keystest.P256)
	if _, err := k.Key(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.calls = make(chan struct{}, 2)
	k.limit = 100 * time.Millisecond
	server.Break(keystest.Hang)
	for range 5 {
		_, err := k.Sign(t.Context(), []byte("m"))
		wantReason(t, err, ReasonKeyService)
	}
	if calls, _ := server.Signed(); calls != 2 {
		t.Errorf("%d calls got through", calls)
	}
}

func TestARenewedVaultTokenIsFoundInItsFile(t *testing.T) {
	v := keystest.NewVault(t, keystest.P256)
	home := t.TempDir()
	file := filepath.Join(home, ".vault-token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		v.SetToken(token)
	}
	t.Setenv("HOME", home)
	t.Setenv("VAULT_ADDR", v.URL)
	t.Setenv("VAULT_TOKEN", "")
	k := serviceKey(t, v.Ref)
	_, err := k.Key(t.Context())
	if err == nil || !strings.Contains(err.Error(), "VAULT_TOKEN") {
		t.Errorf("without a token: %v", err)
	}
	for _, token := range []string{"hvs.the-first", "hvs.the-second"} {
		write(token)
		if _, err := k.Sign(t.Context(), []byte("m")); err != nil {
			t.Errorf("with %s: %v", token, err)
		}
	}
	v.SetToken("hvs.revoked")
	_, err = k.Sign(t.Context(), []byte("m"))
	wantReason(t, err, ReasonKeyService)
	if err == nil || !strings.Contains(err.Error(), "permission denied") || strings.Contains(err.Error(), "hvs.") {
		t.Errorf("revoked: %v", err)
	}
}

// Vault's client would start the token helper that a file in the home directory names.
func TestNoTokenHelperIsStarted(t *testing.T) {
	v := keystest.NewVault(t, keystest.P256)
	home := t.TempDir()
	marker, helper := filepath.Join(home, "ran"), filepath.Join(home, "helper")
	for name, text := range map[string]string{
		helper: "#!/bin/sh\ntouch " + marker + "\necho " + keystest.VaultToken + "\n", filepath.Join(home, ".vault"): "token_helper = \"" + helper + "\"\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", home)
	t.Setenv("VAULT_ADDR", v.URL)
	t.Setenv("VAULT_TOKEN", "")
	if _, err := Open(t.Context(), v.Ref, nil); err == nil {
		t.Error("opened")
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the helper ran")
	}
}

func TestAnErrorHoldsNoCredentials(t *testing.T) {
	t.Setenv("AZURE_CLIENT_SECRET", "canary-of-azure")
	t.Setenv("VAULT_TOKEN", "canary-of-vault")
	err := errors.New("Put https://user:canary@vault:8200/v1: header canary-of-vault\n\t* canary-of-azure, Bearer canary, hvs.canary eyJcanary.canary.canary\x1b[2J " + strings.Repeat("é", 1000))
	got := explain(err)
	if strings.Contains(got, "canary") || strings.ContainsAny(got, "\n\t\x1b") || len(got) > maxExplained+len("…") {
		t.Errorf("got %q", got)
	}
	if !strings.HasPrefix(got, "Put https://***@vault:8200/v1: header *** * ***, ***, *** ***") {
		t.Errorf("got %q", got)
	}
}

func TestTheFormOfAReferenceIsChecked(t *testing.T) {
	for ref, want := range map[string]signing.Reason{
		"/etc/kpssh/key":    "",
		"key":               "",
		"":                  "",
		"awskms:///alias/x": "",
		"awskms://localhost:4566/1234abcd-12ab-34cd-56ef-1234567890ab":                "",
		"awskms:///arn:aws:kms:us-east-2:111122223333:alias/x":                        "",
		"gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1": "",
		"azurekms://v.vault.azure.net/k":                                              "",
		"hashivault://kpssh-dispatch":                                                 "",
		"awskms://":                                                                   ReasonKeyReference,
		"awskms:///not-an-id":                                                         ReasonKeyReference,
		"gcpkms://projects":                                                           ReasonKeyReference,
		"azurekms://v":                                                                ReasonKeyReference,
		"azurekms://user:canary@v/k":                                                  ReasonKeyReference,
		"hashivault://k/../../sys/raw":                                                ReasonKeyReference,
		"hashivault://k?token=canary":                                                 ReasonKeyReference,
		"hashivault://k\n":                                                            ReasonKeyReference,
		"awskms:///alias/a b":                                                         ReasonKeyReference,
		"awskms:///alias/" + strings.Repeat("a", maxReference):                        ReasonKeyReference,
		"evil://x":                   ReasonUnknownScheme,
		"fakekms://x":                ReasonUnknownScheme,
		"openbao://x":                ReasonUnknownScheme,
		"AWSKMS:///alias/x":          ReasonUnknownScheme,
		"awskms:///alias/x,evil://x": "",
		" awskms:///alias/x":         ReasonUnknownScheme,
		"file:///etc/key":            ReasonUnknownScheme,
		"://x":                       ReasonUnknownScheme,
		"../evil://x":                ReasonUnknownScheme,
	} {
		err := CheckReference(ref)
		if signing.ReasonOf(err) != want || (err == nil) != (want == "") {
			t.Errorf("%.60q: %v, want reason %q", ref, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: the error shows it: %v", ref, err)
		}
	}
}

// A key that an object of the cluster names is never looked for outside of that object.
func TestASecretThatHoldsAReferenceIsNoKey(t *testing.T) {
	v := keystest.NewVault(t, keystest.P256)
	t.Setenv("VAULT_ADDR", v.URL)
	t.Setenv("VAULT_TOKEN", keystest.VaultToken)
	_, err := FromSecret(map[string][]byte{SecretKey: []byte(v.Ref)})
	wantReason(t, err, ReasonUnsupportedKey)
}
