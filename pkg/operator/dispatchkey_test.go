package operator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/operator/options"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys/keystest"
)

// vault starts a key service in memory and returns the options that name its key.
func vault(t *testing.T, kind string) (*keystest.Vault, *options.Options) {
	v := keystest.NewVault(t, kind)
	t.Setenv("VAULT_ADDR", v.URL)
	t.Setenv("VAULT_TOKEN", keystest.VaultToken)
	return v, &options.Options{Namespace: "n", DispatchKeySecret: "unused", DispatchKey: v.Ref}
}

func TestADispatchKeyInAKMSSignsOrders(t *testing.T) {
	_, opts := vault(t, keystest.P256)
	signer, key, err := dispatchKey(t.Context(), opts, fake.NewClientBuilder().Build())
	if err != nil {
		t.Fatal(err)
	}
	public, err := key()
	if err != nil || public.Algorithm != signing.AlgorithmECDSAP256 {
		t.Fatalf("%v, %v", public, err)
	}
	world := worldOf(t, signer)
	if err := leave(t, world, world.NewHost("host-1")); err != nil {
		t.Error(err)
	}
	if name := dispatchKeySecret(opts); name.Name != "" {
		t.Errorf("Secret %s is read all the same", name)
	}
	for object, by := range cacheOptions(opts).ByObject {
		if _, isSecret := object.(*corev1.Secret); !isSecret {
			continue
		}
		if _, cached := by.Namespaces[opts.Namespace]; cached {
			t.Error("Secrets of the controller's namespace are watched all the same")
		}
	}
}

const leaveScript = "echo leave\n"

// worldOf is a cluster whose dispatch key is the signer's, with one script.
func worldOf(t *testing.T, signer signing.Signer) *dispatchtest.World {
	t.Helper()
	world := dispatchtest.NewWorld(t)
	world.Rotate(func(r *signing.Root) { r.Dispatch.Keys = []signing.Key{signer.Public()} })
	world.SetSigner(signer)
	world.Allow(dispatchtest.Script("p", "1", signing.PhaseLeave, []byte(leaveScript)))
	return world
}

// leave orders one run.
func leave(t *testing.T, world *dispatchtest.World, host *dispatchtest.Host) error {
	t.Helper()
	_, err := world.Dispatcher().Run(t.Context(), host.Dispatch(), dispatch.Request{
		Phase: signing.PhaseLeave, Profile: "p", Version: "1", Script: []byte(leaveScript), Claim: "7d0f", Fence: 1, Timeout: 5 * time.Second,
	})
	return err
}

// Whatever is wrong with the key service, it is no host's fault: configuration neither parks a host nor counts as its absence.
func TestAKeyServiceOutOfReachBlamesNoHost(t *testing.T) {
	for fault, reason := range map[keystest.Fault]signing.Reason{
		keystest.Denied: keys.ReasonKeyService, keystest.Down: keys.ReasonKeyService, keystest.OtherKey: keys.ReasonKeyChanged,
	} {
		t.Run(string(fault), func(t *testing.T) {
			v, opts := vault(t, keystest.Ed25519)
			signer, key, err := dispatchKey(t.Context(), opts, nil)
			if err != nil {
				t.Fatal(err)
			}
			clock := clocktesting.NewFakePassiveClock(time.Now())
			service := signer.(*serviceKey)
			service.clock = clock
			var said []string
			service.log = funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{})
			world := worldOf(t, signer)
			host := world.NewHost("host-1")

			v.Break(fault)
			var failure *dispatch.Error
			if err := leave(t, world, host); !errors.As(err, &failure) || !failure.IsConfiguration() || failure.Reason != string(reason) {
				t.Errorf("got %v", err)
			}
			if strings.Contains(failure.Error(), keystest.VaultToken) || !strings.Contains(failure.Error(), v.Ref) {
				t.Errorf("got %v", failure)
			}
			if len(host.Orders()) != 0 {
				t.Error("the host ran something")
			}
			if _, err := key(); signing.ReasonOf(err) != reason {
				t.Errorf("node classes are told %v", err)
			}
			// However long it lasts: no order comes meanwhile, since no host is claimed.
			tried, _ := v.Signed()
			for range 3 {
				clock.SetTime(clock.Now().Add(serviceDoubt))
				for range 2 {
					if _, err := key(); signing.ReasonOf(err) != reason {
						t.Errorf("node classes are told %v before it was mended", err)
					}
				}
			}
			if now, _ := v.Signed(); now > tried+3 {
				t.Errorf("%d signatures were tried in three minutes", now-tried)
			}
			if len(said) != 1 || !strings.Contains(said[0], string(reason)) {
				t.Errorf("said %q", said)
			}
			v.Break(keystest.None)
			if _, err := key(); err == nil {
				t.Error("nobody has tried, and it is good again")
			}
			clock.SetTime(clock.Now().Add(serviceDoubt))
			if _, err := key(); err != nil {
				t.Errorf("after it was mended: %v", err)
			}
			if len(said) != 2 || !strings.Contains(said[1], "signs again") {
				t.Errorf("said %q", said)
			}
			if err := leave(t, world, host); err != nil {
				t.Errorf("after it was mended: %v", err)
			}
		})
	}
}

// A leave does not ask whether node classes are ready: it is an order that finds out sooner.
func TestAnOrderThatIsSignedEndsTheDoubt(t *testing.T) {
	v, opts := vault(t, keystest.P256)
	signer, key, err := dispatchKey(t.Context(), opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	world := worldOf(t, signer)
	host := world.NewHost("host-1")
	v.Break(keystest.OtherKey)
	if err := leave(t, world, host); err == nil {
		t.Fatal("signed with another key")
	}
	v.Break(keystest.None)
	if err := leave(t, world, host); err != nil {
		t.Fatal(err)
	}
	if _, err := key(); err != nil {
		t.Errorf("node classes are told %v", err)
	}
}

func TestTheControllerStartsWithoutItsKeyService(t *testing.T) {
	v, opts := vault(t, keystest.P256)
	v.Break(keystest.Down)
	signer, key, err := dispatchKey(t.Context(), opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := key(); signing.ReasonOf(err) != keys.ReasonKeyService || signer.Public().Public != nil {
		t.Errorf("got %v", err)
	}
	v.Break(keystest.None)
	if public, err := key(); err != nil || !public.Equal(signer.Public()) {
		t.Errorf("after it was mended: %v", err)
	}
}

func TestWhatOnlyANewStartMendsIsAStartUpError(t *testing.T) {
	_, rsa := vault(t, keystest.RSA2048)
	missing := filepath.Join(t.TempDir(), "none.key")
	for name, c := range map[string]struct{ ref, says string }{
		"a key of another kind": {rsa.DispatchKey, "RSA-2048"},
		"another scheme":        {"evil://x", "unknown-key-scheme"},
		"a broken reference":    {"awskms:///x", "key-reference"},
		"no such file":          {missing, "none.key"},
	} {
		_, _, err := dispatchKey(t.Context(), &options.Options{DispatchKey: c.ref}, nil)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestADispatchKeyFileIsOpenedWithThePassphraseFile(t *testing.T) {
	dir := t.TempDir()
	path, word := filepath.Join(dir, "dispatch.key"), filepath.Join(dir, "word")
	want, err := keys.Create(path, keys.Ed25519, keys.Static([]byte("correct horse")))
	if err != nil {
		t.Fatal(err)
	}
	open := func(text string) (signing.Signer, error) {
		if err := os.WriteFile(word, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		signer, _, err := dispatchKey(t.Context(), &options.Options{DispatchKey: path, DispatchKeyPassphraseFile: word}, nil)
		return signer, err
	}
	if signer, err := open("correct horse\n"); err != nil || !signer.Public().Equal(want) {
		t.Errorf("got %v", err)
	}
	if _, err := open("canary\n"); signing.ReasonOf(err) != keys.ReasonPassphrase || strings.Contains(err.Error(), "canary") {
		t.Errorf("with another passphrase: %v", err)
	}
}

// Many orders through one key: the service sees them all at once, or answers none.
func TestOrdersAreSignedSideBySide(t *testing.T) {
	const orders = 100
	v, opts := vault(t, keystest.P256)
	signer, _, err := dispatchKey(t.Context(), opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	v.Gather(orders)
	var all sync.WaitGroup
	for range orders {
		all.Go(func() {
			if _, err := signer.Sign(context.Background(), []byte("m")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
