package operator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/pkg/operator/options"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

// serviceDoubt is how long after a failure a key service is left alone before a signature is tried again.
const serviceDoubt = time.Minute

// dispatchKeySecret is the Secret with the key that signs orders; zero when that is a file's or a key service's.
func dispatchKeySecret(opts *options.Options) types.NamespacedName {
	if opts.DispatchKey != "" {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: opts.Namespace, Name: opts.DispatchKeySecret}
}

// dispatchKey returns what signs orders, and how to find out the public half of it. What can only be mended by
// starting again is an error; a key service that is out of reach is not.
func dispatchKey(ctx context.Context, opts *options.Options, reader client.Reader) (signing.Signer, func() (signing.Key, error), error) {
	if opts.DispatchKey == "" {
		key := &secretKey{reader: reader, name: dispatchKeySecret(opts)}
		return key, key.key, nil
	}
	if keys.IsReference(opts.DispatchKey) {
		key, err := newServiceKey(ctx, opts.DispatchKey)
		if err != nil {
			return nil, nil, err
		}
		return key, key.key, nil
	}
	pass := keys.FromEnv(options.PassphraseEnv)
	if opts.DispatchKeyPassphraseFile != "" {
		pass = keys.FromFile(opts.DispatchKeyPassphraseFile)
	}
	signer, err := keys.Open(ctx, opts.DispatchKey, pass)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the dispatch key: %w", err)
	}
	return signer, func() (signing.Key, error) { return signer.Public(), nil }, nil
}

// serviceKey signs orders with a key of a key service. Once that has failed, node classes are not Ready, so that no new
// host is claimed for orders that nobody signs, until a signature holds again: a service that was mended is not told
// from one that was not by anything less.
type serviceKey struct {
	*keys.ServiceKey
	clock clock.PassiveClock
	log   logr.Logger

	trying sync.Mutex // one trial at a time

	mu     sync.Mutex
	failed error
	at     time.Time
}

func newServiceKey(ctx context.Context, ref string) (*serviceKey, error) {
	key, err := keys.NewServiceKey(ref)
	if err != nil {
		return nil, fmt.Errorf("opening the dispatch key: %w", err)
	}
	switch _, err := key.Key(ctx); {
	case signing.ReasonOf(err) == keys.ReasonUnsupportedKey:
		return nil, fmt.Errorf("opening the dispatch key: %w", err)
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		log.FromContext(ctx).Error(err, "the dispatch key is out of reach; no node class is ready until its service answers")
	}
	return &serviceKey{ServiceKey: key, clock: clock.RealClock{}, log: log.FromContext(ctx)}, nil
}

// Sign implements signing.Signer.
func (k *serviceKey) Sign(ctx context.Context, pae []byte) ([]byte, error) {
	signature, err := k.ServiceKey.Sign(ctx, pae)
	if err == nil || ctx.Err() == nil { // else it says nothing about the service
		k.note(err)
	}
	return signature, err
}

// note remembers whether the service signs, and says so when that changes.
func (k *serviceKey) note(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil && (k.failed == nil || signing.ReasonOf(err) != signing.ReasonOf(k.failed)):
		k.log.Error(err, "the dispatch key does not sign; no node class is ready until it does", "reason", signing.ReasonOf(err))
	case err == nil && k.failed != nil:
		k.log.Info("the dispatch key signs again")
	}
	k.failed, k.at = err, k.clock.Now()
}

// failure is why the last signature failed, nil when it did not, and whether it is time to try another one.
func (k *serviceKey) failure() (err error, due bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed, k.failed != nil && k.clock.Since(k.at) >= serviceDoubt
}

// trial is what is signed to find out whether the service does. It is no envelope's message, which begins with
// "DSSEv1", so that its signature is worth nothing to anybody.
const trial = Name + " tries its dispatch key"

// key is the public half, or why there is none or why nothing can be signed with it.
func (k *serviceKey) key() (signing.Key, error) {
	if _, due := k.failure(); due && k.trying.TryLock() {
		defer k.trying.Unlock()
		if _, due := k.failure(); due { // else another trial has ended meanwhile
			_, _ = k.Sign(context.Background(), []byte(trial)) // bounded by the key; what came of it is noted
		}
	}
	if err, _ := k.failure(); err != nil {
		return signing.Key{}, err
	}
	return k.Key(context.Background())
}

// secretKey signs orders with the key of a Secret, as it is at that moment, so that a new key counts at once.
type secretKey struct {
	reader client.Reader
	name   types.NamespacedName

	mu      sync.Mutex
	uid     types.UID
	version string
	signer  signing.Signer
}

var _ signing.Signer = (*secretKey)(nil)

func (k *secretKey) current(ctx context.Context) (signing.Signer, error) {
	secret := &corev1.Secret{}
	if err := k.reader.Get(ctx, k.name, secret); err != nil {
		return nil, fmt.Errorf("reading the dispatch key in Secret %q: %w", k.name, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.signer != nil && k.uid == secret.UID && k.version == secret.ResourceVersion {
		return k.signer, nil
	}
	signer, err := keys.FromSecret(secret.Data)
	if err != nil {
		return nil, fmt.Errorf("reading the dispatch key in Secret %q: %w", k.name, err)
	}
	k.uid, k.version, k.signer = secret.UID, secret.ResourceVersion, signer
	return signer, nil
}

// Sign implements signing.Signer.
func (k *secretKey) Sign(ctx context.Context, pae []byte) ([]byte, error) {
	signer, err := k.current(ctx)
	if err != nil {
		return nil, err
	}
	return signer.Sign(ctx, pae)
}

// Public implements signing.Signer; it is the zero Key while there is none.
func (k *secretKey) Public() signing.Key {
	key, err := k.key()
	if err != nil {
		return signing.Key{}
	}
	return key
}

// key is the public half, or why there is none.
func (k *secretKey) key() (signing.Key, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	signer, err := k.current(ctx)
	if err != nil {
		return signing.Key{}, err
	}
	return signer.Public(), nil
}
