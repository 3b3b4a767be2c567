package bootstrap

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
)

const (
	// Group is what a token's bearer belongs to. RBAC gives it the making of a client CSR, and
	// nothing else.
	Group = apis.BootstrapGroup
	// UserPrefix is what a token's bearer is called, before the token's id (Kubernetes' bootstrap token authenticator).
	UserPrefix = "system:bootstrap:"
	// Namespace is where the API server looks for bootstrap tokens.
	Namespace = metav1.NamespaceSystem
	// TTL is how long a token lives when nobody deletes it.
	TTL = time.Hour

	// ManagedByLabel marks the Secrets that we made.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedByValue is the value of ManagedByLabel.
	ManagedByValue = "karpenter-provider-ssh"

	secretType        = corev1.SecretTypeBootstrapToken
	secretPrefix      = "bootstrap-token-"
	descriptionPrefix = "karpenter-provider-ssh nodeclaim "
	claimAnnotation   = apis.Group + "/nodeclaim-uid"
	alphabet          = "abcdefghijklmnopqrstuvwxyz0123456789"
	idLength          = 6
	secretLength      = 16
)

// ErrForeign says that a token id is in use by a Secret that is not ours, or not for this claim.
// The caller chooses and records another id.
var ErrForeign = errors.New("bootstrap token id belongs to somebody else")

// Owner is the NodeClaim that a token is made for.
type Owner struct {
	Name string
	UID  string
}

// Tokens makes and deletes bootstrap tokens. Its reads are live: a cache could show a token that is
// gone, or hide one that exists.
type Tokens struct {
	writer client.Writer
	reader client.Reader
	clock  clock.PassiveClock
}

// NewTokens returns Tokens that write with one client and read with another, uncached one.
func NewTokens(writer client.Writer, live client.Reader, clk clock.PassiveClock) *Tokens {
	return &Tokens{writer: writer, reader: live, clock: clk}
}

// NewTokenID returns a random token id.
func NewTokenID() string { return randomText(idLength) }

// Ensure returns the token of that id for that owner, "id.secret". It makes the Secret when there
// is none, and replaces it when less than remaining is left of its life, so that a token never
// expires under a join that was given it.
func (t *Tokens) Ensure(ctx context.Context, id string, owner Owner, remaining time.Duration) (string, error) {
	existing := &corev1.Secret{}
	err := t.reader.Get(ctx, key(id), existing)
	switch {
	case apierrors.IsNotFound(err):
		return t.create(ctx, id, owner)
	case err != nil:
		return "", fmt.Errorf("reading bootstrap token %q: %w", id, err)
	case !ours(existing) || existing.Annotations[claimAnnotation] != owner.UID:
		return "", fmt.Errorf("bootstrap token %q: %w", id, ErrForeign)
	}
	if token, ok := t.usable(existing, remaining); ok {
		return token, nil
	}
	if err := t.remove(ctx, existing); err != nil {
		return "", err
	}
	return t.create(ctx, id, owner)
}

func (t *Tokens) create(ctx context.Context, id string, owner Owner) (string, error) {
	secret := randomText(secretLength)
	err := t.writer.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   Namespace,
			Name:        secretPrefix + id,
			Labels:      map[string]string{ManagedByLabel: ManagedByValue},
			Annotations: map[string]string{claimAnnotation: owner.UID},
		},
		Type: secretType,
		Data: map[string][]byte{
			"token-id":                       []byte(id),
			"token-secret":                   []byte(secret),
			"expiration":                     []byte(t.clock.Now().Add(TTL).UTC().Format(time.RFC3339)),
			"usage-bootstrap-authentication": []byte("true"),
			"auth-extra-groups":              []byte(Group),
			"description":                    []byte(descriptionPrefix + owner.Name),
		},
	})
	if err != nil {
		// AlreadyExists is another controller's doing; the next attempt finds its Secret.
		return "", fmt.Errorf("creating bootstrap token %q: %w", id, err)
	}
	return id + "." + secret, nil
}

// Owner is the uid of the NodeClaim that the token of that id was made for; empty when there is no such token of ours.
func (t *Tokens) Owner(ctx context.Context, id string) (string, error) {
	secret := &corev1.Secret{}
	if err := t.reader.Get(ctx, key(id), secret); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("reading bootstrap token %q: %w", id, err)
	}
	if !ours(secret) {
		return "", nil
	}
	return secret.Annotations[claimAnnotation], nil
}

// Delete removes the token of that id, if it is ours. A token that is gone is no error.
func (t *Tokens) Delete(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	existing := &corev1.Secret{}
	if err := t.reader.Get(ctx, key(id), existing); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading bootstrap token %q: %w", id, err)
	}
	if !ours(existing) {
		return nil
	}
	return t.remove(ctx, existing)
}

// Sweep deletes the tokens of ours that are older than age and whose id inUse does not know, and
// returns how many those were. List before asking for the ids in use: a token is recorded before it
// is made, so one that this list shows is on record by then, if it is anybody's.
func (t *Tokens) Sweep(ctx context.Context, age time.Duration, inUse func(context.Context) (map[string]bool, error)) (int, error) {
	list := &corev1.SecretList{}
	if err := t.reader.List(ctx, list, client.InNamespace(Namespace), client.MatchingLabels{ManagedByLabel: ManagedByValue}); err != nil {
		return 0, fmt.Errorf("listing bootstrap tokens: %w", err)
	}
	candidates := list.Items[:0]
	for i := range list.Items {
		if ours(&list.Items[i]) && t.clock.Since(list.Items[i].CreationTimestamp.Time) > age {
			candidates = append(candidates, list.Items[i])
		}
	}
	if len(candidates) == 0 {
		return 0, nil
	}
	ids, err := inUse(ctx)
	if err != nil {
		return 0, fmt.Errorf("listing bootstrap tokens in use: %w", err)
	}
	deleted := 0
	for i := range candidates {
		if ids[strings.TrimPrefix(candidates[i].Name, secretPrefix)] {
			continue
		}
		if err := t.remove(ctx, &candidates[i]); err != nil {
			return deleted, err
		}
		deleted++
	}
	return deleted, nil
}

// remove deletes exactly the Secret that was read, not a successor of the same name.
func (t *Tokens) remove(ctx context.Context, secret *corev1.Secret) error {
	err := t.writer.Delete(ctx, secret, client.Preconditions{UID: &secret.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting bootstrap token %q: %w", strings.TrimPrefix(secret.Name, secretPrefix), err)
	}
	return nil
}

func (t *Tokens) usable(secret *corev1.Secret, remaining time.Duration) (string, bool) {
	expires, err := time.Parse(time.RFC3339, string(secret.Data["expiration"]))
	if err != nil || expires.Sub(t.clock.Now()) < remaining || !secret.DeletionTimestamp.IsZero() {
		return "", false
	}
	id, value := string(secret.Data["token-id"]), string(secret.Data["token-secret"])
	if id == "" || len(value) != secretLength {
		return "", false
	}
	return id + "." + value, true
}

func ours(secret *corev1.Secret) bool {
	return secret.Type == secretType &&
		secret.Labels[ManagedByLabel] == ManagedByValue &&
		strings.HasPrefix(secret.Name, secretPrefix)
}

func key(id string) client.ObjectKey {
	return client.ObjectKey{Namespace: Namespace, Name: secretPrefix + id}
}

// randomText draws evenly from the alphabet that bootstrap tokens are made of.
func randomText(length int) string {
	const even = 256 - 256%len(alphabet)
	text := make([]byte, 0, length)
	buffer := make([]byte, 2*length)
	for len(text) < length {
		rand.Read(buffer) // never fails, says crypto/rand
		for _, b := range buffer {
			if int(b) < even && len(text) < length {
				text = append(text, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return string(text)
}
