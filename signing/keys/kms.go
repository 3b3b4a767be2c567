package keys

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	// callTime is how long a key service may take for one answer. A session with a host waits for
	// it, and a host waits two minutes for the whole of a session.
	callTime = 10 * time.Second
	// maxCalls bounds the calls that wait for one key's service. Some clients cannot be called off,
	// so that a service which accepts calls and never answers would collect them without end.
	maxCalls = 256
)

// IsReference tells whether ref names a key service rather than a file.
func IsReference(ref string) bool { return strings.Contains(ref, "://") }

// CheckReference says what is wrong with the form of a reference, without asking any service. Paths
// are good.
func CheckReference(ref string) error {
	if !IsReference(ref) {
		return nil
	}
	_, err := serviceOf(ref)
	return err
}

// ServiceKey signs with a key that never leaves its service. It is one key for as long as it lives:
// the public half counts as it was read first, and no signature is handed out that does not verify
// under it.
type ServiceKey struct {
	service service
	ref     string
	limit   time.Duration
	calls   chan struct{}
	client  atomic.Pointer[client]
	public  atomic.Pointer[signing.Key]
}

var _ signing.Signer = (*ServiceKey)(nil)

// NewServiceKey is Open for a program that must start while the key service is out of reach: only the
// form of the reference is checked.
func NewServiceKey(ref string) (*ServiceKey, error) {
	s, err := serviceOf(ref)
	if err != nil {
		return nil, err
	}
	return newServiceKey(s, ref), nil
}

func newServiceKey(s service, ref string) *ServiceKey {
	return &ServiceKey{service: s, ref: ref, limit: callTime, calls: make(chan struct{}, maxCalls)}
}

// Key is the public half. The service is asked for it until it has answered once, for callTime at
// most each time.
func (k *ServiceKey) Key(ctx context.Context) (signing.Key, error) {
	if known := k.public.Load(); known != nil {
		return *known, nil
	}
	public, err := ask(ctx, k, "reading the public half of", func(ctx context.Context, c client) (crypto.PublicKey, error) {
		return c.PublicKey(options.WithContext(ctx))
	})
	if err != nil {
		return signing.Key{}, err
	}
	key, err := signing.KeyOf(public)
	if err != nil || !slices.Contains(k.service.algorithms, key.Algorithm) {
		return signing.Key{}, refuse(ReasonUnsupportedKey, "key %q is of the kind %s; of %s, only %s can be used", k.ref, kind(public), k.service.scheme, strings.Join(k.service.algorithms, " and "))
	}
	k.public.CompareAndSwap(nil, &key)
	return *k.public.Load(), nil
}

// Public implements signing.Signer; it is the zero Key while the service has not told it.
func (k *ServiceKey) Public() signing.Key {
	if known := k.public.Load(); known != nil {
		return *known
	}
	return signing.Key{}
}

// Sign implements signing.Signer. It takes callTime at most, once the public half is known.
func (k *ServiceKey) Sign(ctx context.Context, pae []byte) ([]byte, error) {
	public, err := k.Key(ctx)
	if err != nil {
		return nil, err
	}
	sig, err := ask(ctx, k, "signing with", func(ctx context.Context, c client) ([]byte, error) {
		return c.SignMessage(bytes.NewReader(pae), options.WithContext(ctx))
	})
	if err != nil {
		return nil, err
	}
	if !public.Verify(pae, sig) {
		return nil, refuse(ReasonKeyChanged, "the signature of %q is not one of %s, the key that it was at first: if it was rotated, list the new key in a root document and start again", k.ref, public.ID())
	}
	return sig, nil
}

// kind names a key's algorithm for people.
func kind(public crypto.PublicKey) string {
	switch k := public.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA-%d", k.Size()*8)
	case *ecdsa.PublicKey:
		return "ECDSA " + k.Curve.Params().Name
	}
	if k, err := signing.KeyOf(public); err == nil {
		return k.Algorithm
	}
	return fmt.Sprintf("%T", public)
}

// ask makes one call, with a new client where the one at hand has credentials that do not hold.
func ask[T any](ctx context.Context, k *ServiceKey, doing string, call func(context.Context, client) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, k.limit)
	defer cancel()
	answer, err := within(limited, k.calls, func() (answer T, err error) {
		old := k.client.Load()
		answer, err = withClient(limited, k, old, call)
		if err != nil && old != nil && k.service.renews != nil && k.service.renews(err) && limited.Err() == nil {
			answer, err = withClient(limited, k, nil, call)
		}
		return answer, err
	})
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return answer, fmt.Errorf("%s %q: %w", doing, k.ref, context.Cause(ctx))
	case limited.Err() != nil:
		return answer, refuse(ReasonKeyService, "%s %q: no answer within %s", doing, k.ref, k.limit)
	}
	return answer, refuse(ReasonKeyService, "%s %q: %s", doing, k.ref, explain(err))
}

func withClient[T any](ctx context.Context, k *ServiceKey, c *client, call func(context.Context, client) (T, error)) (answer T, err error) {
	if c == nil {
		loaded, err := k.service.load(ctx, k.ref)
		if err != nil {
			return answer, err
		}
		c = &loaded
		k.client.Store(c)
	}
	return call(ctx, *c)
}

// within runs a call that may not heed ctx, and leaves it behind when ctx ends first.
func within[T any](ctx context.Context, calls chan struct{}, call func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	select {
	case calls <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		defer func() { <-calls }()
		defer func() {
			// The clients take some answers apart without looking: an empty one must not end the program.
			if p := recover(); p != nil {
				done <- answer{err: fmt.Errorf("its answer could not be read: %v", p)}
			}
		}()
		value, err := call()
		done <- answer{value, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
