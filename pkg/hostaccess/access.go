// Package hostaccess makes of an SSHHost what it takes to reach it: address, login key, host key pin and, in Verified
// mode, the identity from enrolment.
//
// What is wrong with that is somebody's configuration and never the host's fault, so it is a *dispatch.Error of class
// Config whose reason is one of this package or of v1beta1. Errors of the API server are returned as they are. No
// error holds key material.
package hostaccess

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Reasons beside v1beta1's SSHKeyMissing, SSHKeyInvalid, HostNotEnrolled and RawExecDisabled.
const (
	ReasonHostKeyInvalid    = "HostKeyInvalid"
	ReasonHostKeyUnpinned   = "HostKeyUnpinned"
	ReasonReceiptKeyInvalid = "ReceiptKeyInvalid"
)

// Access finds out how to reach hosts. It is safe for concurrent use.
type Access struct {
	reader    client.Reader
	namespace string
	allowRaw  bool

	mu     sync.Mutex
	logins map[string]parsedLogin // by name of the Secret
}

// parsedLogin saves parsing a Secret again for each probe of each host that shares it.
type parsedLogin struct {
	uid     types.UID
	version string
	login   *Login
}

// New makes an Access that reads Secrets of the namespace with reader. Hosts in Raw mode are refused unless allowRaw.
func New(reader client.Reader, namespace string, allowRaw bool) *Access {
	return &Access{reader: reader, namespace: namespace, allowRaw: allowRaw, logins: map[string]parsedLogin{}}
}

// Host returns where and how to reach host.
func (a *Access) Host(ctx context.Context, host *v1beta1.SSHHost) (dispatch.Host, error) {
	if host.Raw() && !a.allowRaw {
		return dispatch.Host{}, refuse(host, v1beta1.ReasonRawExecDisabled, "spec.execMode is Raw, which the controller was not started with --allow-raw-exec for")
	}
	out := dispatch.Host{Name: host.Name, Mode: dispatch.Raw}
	if !host.Raw() {
		out.Mode = dispatch.Verified
		if err := identify(host, &out); err != nil {
			return dispatch.Host{}, err
		}
	}
	login, secret, err := a.login(ctx, host.Spec.SSHKeySecretRef.Name)
	if err != nil {
		return dispatch.Host{}, refusal(host, "spec.sshKeySecretRef", err)
	}
	policy, err := hostKey(host, secret)
	if err != nil {
		return dispatch.Host{}, err
	}
	out.Target = remote.Target{
		Address: host.Spec.Address, Port: host.SSHPort(), User: host.LoginUser(), Keys: login.Keys, HostKey: policy,
	}
	out.Target.Via, err = a.jumps(ctx, host)
	return out, err
}

// jumps is the last jump host before the host, with those before it; nil without any.
func (a *Access) jumps(ctx context.Context, host *v1beta1.SSHHost) (*remote.Target, error) {
	var via *remote.Target
	for i, jump := range host.Spec.Jumps {
		field := fmt.Sprintf("spec.jumps[%d].sshKeySecretRef", i)
		login, secret, err := a.login(ctx, jump.SSHKeySecretRef.Name)
		if err != nil {
			return nil, refusal(host, field, err)
		}
		if !login.Pinned {
			return nil, refuse(host, ReasonHostKeyUnpinned, "%s: Secret %q has no %s, and a jump host is never pinned by first use", field, secret.Name, KeyKnownHost)
		}
		policy, err := remote.Pin(string(secret.Data[KeyKnownHost]))
		if err != nil {
			return nil, refuse(host, ReasonHostKeyInvalid, "%s: %v", field, err)
		}
		port := int(jump.Port)
		via = &remote.Target{Address: jump.Address, Port: port, User: jump.User, Keys: login.Keys, HostKey: policy, Via: via}
	}
	return via, nil
}

// Login is what the Secret of that name holds to log in with. An error is a *LoginError, or the API server's.
func (a *Access) Login(ctx context.Context, secret string) (*Login, error) {
	login, _, err := a.login(ctx, secret)
	return login, err
}

func (a *Access) login(ctx context.Context, name string) (*Login, *corev1.Secret, error) {
	if name == "" {
		return nil, nil, unusable(v1beta1.ReasonSSHKeyMissing, "it names no Secret")
	}
	secret := &corev1.Secret{}
	if err := a.reader.Get(ctx, client.ObjectKey{Namespace: a.namespace, Name: name}, secret); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil, unusable(v1beta1.ReasonSSHKeyMissing, "there is no Secret %q in namespace %q", name, a.namespace)
		}
		return nil, nil, fmt.Errorf("reading Secret %q: %w", name, err)
	}
	a.mu.Lock()
	known, ok := a.logins[name]
	a.mu.Unlock()
	if !ok || known.uid != secret.UID || known.version != secret.ResourceVersion {
		login, err := ParseLogin(secret)
		if err != nil {
			return nil, nil, err
		}
		known = parsedLogin{uid: secret.UID, version: secret.ResourceVersion, login: login}
		a.mu.Lock()
		a.logins[name] = known
		a.mu.Unlock()
	}
	if err := known.login.Check(time.Now()); err != nil {
		return nil, nil, err
	}
	return known.login, secret, nil
}

// refusal makes a *LoginError the host's.
func refusal(host *v1beta1.SSHHost, field string, err error) error {
	var bad *LoginError
	if errors.As(err, &bad) {
		return refuse(host, bad.Reason, "%s: %s", field, bad.Detail)
	}
	return err
}

func refuse(host *v1beta1.SSHHost, reason, format string, args ...any) error {
	return &dispatch.Error{Class: dispatch.Config, Reason: reason, Host: host.Name, Detail: fmt.Sprintf(format, args...)}
}

func identify(host *v1beta1.SSHHost, out *dispatch.Host) error {
	shim := host.Spec.Shim
	if shim == nil || shim.HostID == "" || shim.ReceiptKey == "" {
		return refuse(host, v1beta1.ReasonHostNotEnrolled, "spec.shim is missing: run \"kpssh host enroll\"")
	}
	key, err := signing.ParseKey(shim.ReceiptKey)
	if err != nil {
		return refuse(host, ReasonReceiptKeyInvalid, "spec.shim.receiptKey: %v: take the one that \"kpssh host enroll\" prints", err)
	}
	out.HostID, out.ReceiptKey = shim.HostID, key
	return nil
}

// hostKey is which key the host must prove to hold: what the operator pinned, else what an earlier probe saw. Only in
// Raw mode, and only for a probe, which is sent nothing, it is any.
func hostKey(host *v1beta1.SSHHost, secret *corev1.Secret) (remote.HostKeyPolicy, error) {
	if pin := secret.Data[KeyKnownHost]; len(pin) > 0 {
		policy, err := remote.Pin(string(pin))
		if err != nil {
			return remote.HostKeyPolicy{}, refuse(host, ReasonHostKeyInvalid, "%s of Secret %q: %v", KeyKnownHost, secret.Name, err)
		}
		return policy, nil
	}
	if seen := host.Status.HostKeyFingerprint; seen != "" {
		policy, err := remote.Pin(seen)
		if err != nil {
			return remote.HostKeyPolicy{}, refuse(host, ReasonHostKeyInvalid, "status.hostKeyFingerprint: %v", err)
		}
		return policy, nil
	}
	if !host.Raw() {
		return remote.HostKeyPolicy{}, refuse(host, ReasonHostKeyUnpinned, "Secret %q has no %s: \"kpssh host enroll\" writes one", secret.Name, KeyKnownHost)
	}
	if joining(host) {
		return remote.HostKeyPolicy{}, refuse(host, ReasonHostKeyUnpinned, "no host key is pinned, so that secrets could reach another host: the next probe of the free host pins one")
	}
	return remote.FirstUse(func(string) error { return nil }), nil
}

func joining(host *v1beta1.SSHHost) bool {
	for i := range host.Status.Conditions {
		if c := &host.Status.Conditions[i]; c.Type == v1beta1.ConditionLeaveRequested && c.IsTrue() {
			return false
		}
	}
	return host.Status.State == v1beta1.HostClaimed
}
