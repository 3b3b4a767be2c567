package hostaccess_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const namespace = "kpssh-system"

func privateKey(t *testing.T, passphrase string) (text []byte, public ssh.PublicKey) {
	t.Helper()
	text, key := remotetest.LoginKey(t, passphrase)
	return text, key.PublicKey()
}

func receiptKey(t *testing.T) signing.Key {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.KeyOf(public)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newSecret(data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keys", UID: "u"}, Data: data}
}

func newHost(shim *v1beta1.ShimIdentity) *v1beta1.SSHHost {
	return &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "host-a"},
		Spec:       v1beta1.SSHHostSpec{Address: "192.0.2.7", SSHKeySecretRef: v1beta1.SecretRef{Name: "keys"}, Shim: shim},
	}
}

func raw(h *v1beta1.SSHHost) { h.Spec.ExecMode, h.Spec.Shim = v1beta1.ExecModeRaw, nil }

func TestHost(t *testing.T) {
	login, _ := privateKey(t, "")
	_, hostKey := privateKey(t, "")
	receipt := receiptKey(t)
	pin := []byte(ssh.FingerprintSHA256(hostKey))
	enrolled := &v1beta1.ShimIdentity{HostID: "0123456789abcdef", ReceiptKey: receipt.String()}
	good := map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyKnownHost: pin}

	for name, tc := range map[string]struct {
		secret   map[string][]byte // nil: none
		host     func(*v1beta1.SSHHost)
		allowRaw bool
		reason   string // empty: reachable
	}{
		"an enrolled host with a pin":              {secret: good},
		"a missing Secret":                         {reason: v1beta1.ReasonSSHKeyMissing},
		"a Secret without a key":                   {secret: map[string][]byte{"other": login}, reason: v1beta1.ReasonSSHKeyMissing},
		"a reference to nothing":                   {secret: good, host: func(h *v1beta1.SSHHost) { h.Spec.SSHKeySecretRef.Name = "" }, reason: v1beta1.ReasonSSHKeyMissing},
		"a key that is none":                       {secret: map[string][]byte{hostaccess.KeyPrivate: []byte("nonsense")}, reason: v1beta1.ReasonSSHKeyInvalid},
		"a pin that is none":                       {secret: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyKnownHost: []byte("SHA256:short")}, reason: hostaccess.ReasonHostKeyInvalid},
		"a pin of first use that is none":          {secret: map[string][]byte{hostaccess.KeyPrivate: login}, host: func(h *v1beta1.SSHHost) { h.Status.HostKeyFingerprint = "x" }, reason: hostaccess.ReasonHostKeyInvalid},
		"a host without enrolment":                 {secret: good, host: func(h *v1beta1.SSHHost) { h.Spec.Shim = nil }, reason: v1beta1.ReasonHostNotEnrolled},
		"a receipt key that is none":               {secret: good, host: func(h *v1beta1.SSHHost) { h.Spec.Shim.ReceiptKey = "ed25519:AAAA" }, reason: hostaccess.ReasonReceiptKeyInvalid},
		"a Raw host that is not allowed":           {secret: good, host: func(h *v1beta1.SSHHost) { h.Spec.ExecMode = v1beta1.ExecModeRaw }, reason: v1beta1.ReasonRawExecDisabled},
		"a Raw host that is allowed, without shim": {secret: good, allowRaw: true, host: func(h *v1beta1.SSHHost) { h.Spec.ExecMode, h.Spec.Shim = v1beta1.ExecModeRaw, nil }},
		"an enrolled host without any pin":         {secret: map[string][]byte{hostaccess.KeyPrivate: login}, reason: hostaccess.ReasonHostKeyUnpinned},
		"an enrolled host that an earlier version has pinned by its first probe": {
			secret: map[string][]byte{hostaccess.KeyPrivate: login}, host: func(h *v1beta1.SSHHost) { h.Status.HostKeyFingerprint = string(pin) }},
		"a free Raw host that was never seen, for a probe": {secret: map[string][]byte{hostaccess.KeyPrivate: login}, allowRaw: true, host: raw},
		"a claimed Raw host without any pin, for a join": {
			secret: map[string][]byte{hostaccess.KeyPrivate: login}, allowRaw: true,
			host: func(h *v1beta1.SSHHost) { raw(h); h.Status.State = v1beta1.HostClaimed }, reason: hostaccess.ReasonHostKeyUnpinned,
		},
		"a claimed Raw host without any pin, to leave": {
			secret: map[string][]byte{hostaccess.KeyPrivate: login}, allowRaw: true,
			host: func(h *v1beta1.SSHHost) {
				raw(h)
				h.Status.State = v1beta1.HostClaimed
				h.Status.Conditions = []status.Condition{{Type: v1beta1.ConditionLeaveRequested, Status: metav1.ConditionTrue}}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder()
			if tc.secret != nil {
				builder.WithObjects(newSecret(tc.secret))
			}
			shim := *enrolled
			host := newHost(&shim)
			if tc.host != nil {
				tc.host(host)
			}
			got, err := hostaccess.New(builder.Build(), namespace, tc.allowRaw).Host(context.Background(), host)
			if tc.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				if got.Name != "host-a" || got.Target.Address != "192.0.2.7" || got.Target.Port != 22 || len(got.Target.Keys) != 1 {
					t.Errorf("got %+v", got)
				}
				if verified := !host.Raw(); verified != (got.Mode == dispatch.Verified) || verified && (got.HostID != shim.HostID || !got.ReceiptKey.Equal(receipt)) {
					t.Errorf("mode %s, host id %q", got.Mode, got.HostID)
				}
				if want := map[bool]string{true: "root", false: "kpssh"}[host.Raw()]; got.Target.User != want {
					t.Errorf("logs in as %q, want %q", got.Target.User, want)
				}
				return
			}
			var refused *dispatch.Error
			if !errors.As(err, &refused) || refused.Reason != tc.reason || !refused.IsConfiguration() || refused.Host != "host-a" {
				t.Fatalf("got %v, want %s", err, tc.reason)
			}
			for secret := range tc.secret {
				if text := string(tc.secret[secret]); len(text) > 12 && strings.Contains(err.Error(), text) {
					t.Errorf("the error holds %s", secret)
				}
			}
		})
	}
}

func TestTheOperatorsPinIsStrongerThanTheOneOfFirstUse(t *testing.T) {
	login, _ := privateKey(t, "")
	_, pinned := privateKey(t, "")
	server := remotetest.New(t, remotetest.Config{})
	secret := newSecret(map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyKnownHost: ssh.MarshalAuthorizedKey(pinned)})
	host := newHost(&v1beta1.ShimIdentity{HostID: "0123456789abcdef", ReceiptKey: receiptKey(t).String()})
	host.Status.HostKeyFingerprint = server.Fingerprint()
	got, err := hostaccess.New(fake.NewClientBuilder().WithObjects(secret).Build(), namespace, false).Host(context.Background(), host)
	if err != nil {
		t.Fatal(err)
	}
	got.Target.Address, got.Target.Port = server.Target().Address, server.Target().Port
	_, err = remote.Dial(context.Background(), got.Target)
	var mismatch *remote.HostKeyMismatch
	if !errors.As(err, &mismatch) {
		t.Fatalf("got %v", err)
	}
}

func TestAReplacedSecretCountsAtOnceAndAnotherReadErrorIsNoConfiguration(t *testing.T) {
	ctx := context.Background()
	first, firstPublic := privateKey(t, "")
	second, secondPublic := privateKey(t, "")
	fail := false
	reader := fake.NewClientBuilder().WithObjects(newSecret(map[string][]byte{hostaccess.KeyPrivate: first, hostaccess.KeyKnownHost: ssh.MarshalAuthorizedKey(firstPublic)})).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if fail {
				return errors.New("connection refused")
			}
			return c.Get(ctx, key, obj, opts...)
		}}).Build()
	access := hostaccess.New(reader, namespace, false)
	host := newHost(&v1beta1.ShimIdentity{HostID: "0123456789abcdef", ReceiptKey: receiptKey(t).String()})
	loginKey := func() string {
		t.Helper()
		got, err := access.Host(ctx, host)
		if err != nil {
			t.Fatal(err)
		}
		return ssh.FingerprintSHA256(got.Target.Keys[0].PublicKey())
	}
	for range 2 {
		if loginKey() != ssh.FingerprintSHA256(firstPublic) {
			t.Fatal("not the first key")
		}
	}
	secret := &corev1.Secret{}
	if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "keys"}, secret); err != nil {
		t.Fatal(err)
	}
	secret.Data[hostaccess.KeyPrivate] = second
	if err := reader.Update(ctx, secret); err != nil {
		t.Fatal(err)
	}
	if loginKey() != ssh.FingerprintSHA256(secondPublic) {
		t.Error("still the first key")
	}
	fail = true
	var refused *dispatch.Error
	if _, err := access.Host(ctx, host); err == nil || errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
}
