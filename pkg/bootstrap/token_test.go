package bootstrap_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newClient(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func readSecret(t *testing.T, c client.Client, id string) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	err := c.Get(context.Background(), client.ObjectKey{Namespace: "kube-system", Name: "bootstrap-token-" + id}, secret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func TestEnsureMakesASecretThatTheAPIServerTakesForABootstrapToken(t *testing.T) {
	c, clk := newClient(t), clocktesting.NewFakePassiveClock(start)
	tokens := bootstrap.NewTokens(c, c, clk)
	id := bootstrap.NewTokenID()

	token, err := tokens.Ensure(context.Background(), id, bootstrap.Owner{Name: "pool-x7", UID: "uid-1"}, 10*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(token) || !strings.HasPrefix(token, id+".") {
		t.Errorf("token %q has not the form that the API server parses", token)
	}
	secret := readSecret(t, c, id)
	if secret == nil {
		t.Fatal("no Secret was made")
	}
	got := map[string]string{"type": string(secret.Type)}
	for k, v := range secret.Data {
		if k != "token-secret" {
			got[k] = string(v)
		}
	}
	want := map[string]string{
		"type":                           "bootstrap.kubernetes.io/token",
		"token-id":                       id,
		"expiration":                     "2026-03-01T13:00:00Z",
		"usage-bootstrap-authentication": "true",
		"auth-extra-groups":              "system:bootstrappers:kpssh",
		"description":                    "karpenter-provider-ssh nodeclaim pool-x7",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Secret (-want +got):\n%s", diff)
	}
	if got := id + "." + string(secret.Data["token-secret"]); got != token {
		t.Errorf("Secret holds another token than the one returned")
	}
}

func TestEnsureAfterACrash(t *testing.T) {
	owner := bootstrap.Owner{Name: "pool-x7", UID: "uid-1"}
	tests := map[string]struct {
		elapsed  time.Duration
		owner    bootstrap.Owner
		wantSame bool
		wantErr  error
	}{
		"goes on with a token that lives long enough":                         {elapsed: 30 * time.Minute, owner: owner, wantSame: true},
		"makes a new one when a join could outlive it (AKSFlexNode#273, R51)": {elapsed: 55 * time.Minute, owner: owner},
		"makes a new one when it has expired":                                 {elapsed: 2 * time.Hour, owner: owner},
		"never hands out another claim's token":                               {owner: bootstrap.Owner{Name: "pool-x7", UID: "uid-2"}, wantErr: bootstrap.ErrForeign},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, clk := newClient(t), clocktesting.NewFakePassiveClock(start)
			tokens := bootstrap.NewTokens(c, c, clk)
			first, err := tokens.Ensure(context.Background(), "abc123", owner, 10*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			clk.SetTime(start.Add(tt.elapsed))
			second, err := tokens.Ensure(context.Background(), "abc123", tt.owner, 10*time.Minute)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error = %v, want %v", err, tt.wantErr)
			}
			if tt.wantErr != nil {
				return
			}
			if (first == second) != tt.wantSame {
				t.Errorf("same token = %t, want %t", first == second, tt.wantSame)
			}
			if got := "abc123." + string(readSecret(t, c, "abc123").Data["token-secret"]); got != second {
				t.Error("the Secret is not the token that was returned")
			}
		})
	}
}

func TestForeignSecretsAreLeftAlone(t *testing.T) {
	foreign := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abc123", CreationTimestamp: metav1.NewTime(start.Add(-48 * time.Hour))},
		Type:       corev1.SecretTypeBootstrapToken,
		Data:       map[string][]byte{"token-id": []byte("abc123"), "token-secret": []byte("0123456789abcdef")},
	}
	labelled := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "some-secret", CreationTimestamp: metav1.NewTime(start.Add(-48 * time.Hour)),
			Labels: map[string]string{bootstrap.ManagedByLabel: bootstrap.ManagedByValue},
		},
	}
	c := newClient(t, foreign, labelled)
	tokens := bootstrap.NewTokens(c, c, clocktesting.NewFakePassiveClock(start))
	ctx := context.Background()

	if _, err := tokens.Ensure(ctx, "abc123", bootstrap.Owner{Name: "n", UID: "u"}, time.Minute); !errors.Is(err, bootstrap.ErrForeign) {
		t.Errorf("Ensure: error = %v, want ErrForeign", err)
	}
	if err := tokens.Delete(ctx, "abc123"); err != nil {
		t.Errorf("Delete: %v", err)
	}
	none := func(context.Context) (map[string]bool, error) { return nil, nil }
	if n, err := tokens.Sweep(ctx, time.Minute, none); n != 0 || err != nil {
		t.Errorf("Sweep = %d, %v", n, err)
	}
	if readSecret(t, c, "abc123") == nil {
		t.Error("the foreign token is gone")
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(labelled), &corev1.Secret{}); err != nil {
		t.Errorf("the Secret that is no token: %v", err)
	}
}

func TestSweepDeletesOnlyOldTokensThatNoHostNames(t *testing.T) {
	token := func(id string, age time.Duration) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: "bootstrap-token-" + id,
				CreationTimestamp: metav1.NewTime(start.Add(-age)),
				Labels:            map[string]string{bootstrap.ManagedByLabel: bootstrap.ManagedByValue},
			},
			Type: corev1.SecretTypeBootstrapToken,
		}
	}
	c := newClient(t, token("orphan", 10*time.Minute), token("inuse0", 10*time.Minute), token("young0", time.Minute))
	tokens := bootstrap.NewTokens(c, c, clocktesting.NewFakePassiveClock(start))
	inUse := func(context.Context) (map[string]bool, error) { return map[string]bool{"inuse0": true}, nil }

	n, err := tokens.Sweep(context.Background(), 5*time.Minute, inUse)
	if n != 1 || err != nil {
		t.Errorf("Sweep = %d, %v, want 1", n, err)
	}
	for id, want := range map[string]bool{"orphan": false, "inuse0": true, "young0": true} {
		if got := readSecret(t, c, id) != nil; got != want {
			t.Errorf("token %s exists = %t, want %t", id, got, want)
		}
	}
	// When the ids in use cannot be told, nothing is deleted.
	boom := errors.New("cache is cold")
	if n, err := tokens.Sweep(context.Background(), 0, func(context.Context) (map[string]bool, error) { return nil, boom }); n != 0 || !errors.Is(err, boom) {
		t.Errorf("Sweep with no list = %d, %v", n, err)
	}
}

func TestDeleteIsIdempotent(t *testing.T) {
	c := newClient(t)
	tokens := bootstrap.NewTokens(c, c, clocktesting.NewFakePassiveClock(start))
	ctx := context.Background()
	if _, err := tokens.Ensure(ctx, "abc123", bootstrap.Owner{Name: "n", UID: "u"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := tokens.Delete(ctx, "abc123"); err != nil {
			t.Fatal(err)
		}
	}
	if err := tokens.Delete(ctx, ""); err != nil {
		t.Errorf("no id: %v", err)
	}
	if readSecret(t, c, "abc123") != nil {
		t.Error("token is still there")
	}
}

func TestTwoControllersMakeOneToken(t *testing.T) {
	// The other controller creates between our read and our write.
	inner := newClient(t)
	owner := bootstrap.Owner{Name: "n", UID: "u"}
	clk := clocktesting.NewFakePassiveClock(start)
	raced := false
	var other string
	c := interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if !raced {
				raced = true
				var err error
				if other, err = bootstrap.NewTokens(inner, inner, clk).Ensure(ctx, "abc123", owner, time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			return w.Create(ctx, obj, opts...)
		},
	})
	tokens := bootstrap.NewTokens(c, c, clk)
	if _, err := tokens.Ensure(context.Background(), "abc123", owner, time.Minute); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("first attempt: %v, want AlreadyExists", err)
	}
	token, err := tokens.Ensure(context.Background(), "abc123", owner, time.Minute)
	if err != nil || token != other {
		t.Errorf("second attempt: same token = %t, error %v", token == other, err)
	}
}

func TestTokenIDsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := bootstrap.NewTokenID()
		if !regexp.MustCompile(`^[a-z0-9]{6}$`).MatchString(id) {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
	if len(seen) < 990 {
		t.Errorf("only %d ids of 1000 differ", len(seen))
	}
}

func TestErrorsHoldNoSecret(t *testing.T) {
	inner := newClient(t)
	var minted string
	c := interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
			minted = string(obj.(*corev1.Secret).Data["token-secret"])
			return errors.New("webhook said no")
		},
	})
	_, err := bootstrap.NewTokens(c, c, clocktesting.NewFakePassiveClock(start)).
		Ensure(context.Background(), "abc123", bootstrap.Owner{Name: "n", UID: "u"}, time.Minute)
	if err == nil || minted == "" || strings.Contains(err.Error(), minted) {
		t.Errorf("error = %v", err)
	}
}
