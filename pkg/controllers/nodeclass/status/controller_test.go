package status_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/status"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

type documents func() (map[int64][]byte, []byte, error)

func (d documents) Documents() (map[int64][]byte, []byte, error) { return d() }

// signed publishes the scripts of the usual profile, with their built-in schema.
func signed(t *testing.T) *dispatchtest.World {
	t.Helper()
	world := dispatchtest.NewWorld(t)
	scripts := controllertest.Profile().Spec.Scripts
	for phase, script := range map[profile.Phase]string{profile.Install: scripts.Install, profile.Join: scripts.Join, profile.Leave: scripts.Leave} {
		var parameters []signing.Parameter
		for _, p := range profile.Schema(phase) {
			parameters = append(parameters, signing.Parameter{Name: p.Name, Type: signing.ParamType(p.Type), Optional: p.Optional, Secret: p.Secret})
		}
		world.Allow(dispatchtest.Script(controllertest.ProfileName, "1", signing.Phase(phase), []byte(script), parameters...))
	}
	return world
}

// publicOf is a dispatch key that can be read.
func publicOf(s signing.Signer) func() (signing.Key, error) {
	return func() (signing.Key, error) { return s.Public(), nil }
}

// loginKey is a private key as a Secret holds it.
func loginKey(t *testing.T, passphrase string) []byte {
	t.Helper()
	text, _ := remotetest.LoginKey(t, passphrase)
	return text
}

// certified is a key with a certificate that ends at a time.
func certified(t *testing.T, until time.Time) map[string][]byte {
	t.Helper()
	text, key := remotetest.LoginKey(t, "")
	c := &ssh.Certificate{Key: key.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"kpssh"}, ValidBefore: uint64(until.Unix())}
	if err := c.SignCert(rand.Reader, key); err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{hostaccess.KeyPrivate: text, hostaccess.KeyCertificate: ssh.MarshalAuthorizedKey(c)}
}

func secret(data map[string][]byte) client.Object {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "ssh-key"}, Data: data}
}

func windows(schedule string) func(*v1beta1.SSHNodeClass) {
	return func(c *v1beta1.SSHNodeClass) {
		c.Spec.MaintenanceWindows = []v1beta1.MaintenanceWindow{{Schedule: schedule, Duration: metav1.Duration{Duration: 2 * time.Hour}, TimeZone: "UTC"}}
	}
}

func TestReasons(t *testing.T) {
	world := signed(t)
	key := publicOf(world.Signer())
	bare := func(c *v1beta1.SSHNodeClass) { c.Spec.Vars = nil }
	badSelector := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: "Like", Values: []string{"1"}}}}
	sshKey := func() client.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "ssh-key"}, Data: map[string][]byte{hostaccess.KeyPrivate: loginKey(t, "")}}
	}
	tests := map[string]struct {
		class    func(*v1beta1.SSHNodeClass)
		host     func(*v1beta1.SSHHost)
		objects  []client.Object
		trust    status.Trust
		key      func() (signing.Key, error)
		allowRaw bool
		want     string
		says     string
	}{
		"all is well": {objects: []client.Object{sshKey()}, want: v1beta1.ReasonReady},
		"hostSelector cannot be read": {
			class: func(c *v1beta1.SSHNodeClass) { c.Spec.HostSelector = badSelector }, want: v1beta1.ReasonSelectorError, says: "hostSelector"},
		"a gate's selector cannot be read": {
			class: func(c *v1beta1.SSHNodeClass) {
				c.Spec.StartupTaintGates = []v1beta1.StartupTaintGate{{TaintKey: "a/b", RemoveWhen: v1beta1.RemoveWhen{PodsReady: &v1beta1.PodsReady{Namespace: "x", Selector: badSelector}}}}
			}, want: v1beta1.ReasonSelectorError, says: `"a/b"`},
		"two vars make one variable": {
			class: func(c *v1beta1.SSHNodeClass) { c.Spec.Vars = map[string]string{"a": "1", "A": "2"} }, want: v1beta1.ReasonVarsInvalid, says: "KPSSH_VAR_A"},
		"a var holds what no variable can": {
			class: func(c *v1beta1.SSHNodeClass) { c.Spec.Vars = map[string]string{"a": "1\n2"} }, want: v1beta1.ReasonVarsInvalid, says: "KPSSH_VAR_A"},
		"a var is not declared": {
			class: func(c *v1beta1.SSHNodeClass) { c.Spec.Vars = map[string]string{"a": "1"} }, want: status.ReasonParameterNotAllowed, says: "KPSSH_VAR_A"},
		"the documents cannot be read": {
			trust: documents(func() (map[int64][]byte, []byte, error) { return nil, nil, errors.New("no such ConfigMap") }), want: v1beta1.ReasonTrustNotFound, says: "no such ConfigMap"},
		"there are no documents": {
			trust: documents(func() (map[int64][]byte, []byte, error) { return nil, nil, nil }), want: v1beta1.ReasonTrustNotFound, says: "kpssh init"},
		"the root is garbage": {
			trust: documents(func() (map[int64][]byte, []byte, error) { return map[int64][]byte{1: []byte("{")}, []byte("{}"), nil }), want: v1beta1.ReasonTrustInvalid, says: "root document 1"},
		"the allowlist is another author's": {
			trust: documents(func() (map[int64][]byte, []byte, error) {
				roots, _, err := world.Documents()
				_, list, _ := signed(t).Documents()
				return roots, list, err
			}), want: v1beta1.ReasonTrustInvalid, says: "allowlist"},
		"there is no dispatch key": {
			key: func() (signing.Key, error) { return signing.Key{}, errors.New("no such Secret") }, want: v1beta1.ReasonDispatchKeyMissing, says: "no such Secret"},
		"the dispatch key is not listed": {
			key: publicOf(dispatchtest.NewSigner(t)), want: v1beta1.ReasonDispatchKeyUnknown, says: "root document 1"},
		"all hosts are in Raw, which is not allowed": {host: controllertest.Raw, want: v1beta1.ReasonRawExecDisabled, says: "--allow-raw-exec"},
		"all hosts are in Raw, which needs no signatures": {
			host: controllertest.Raw, allowRaw: true, objects: []client.Object{sshKey()},
			trust: documents(func() (map[int64][]byte, []byte, error) { return nil, nil, errors.New("no such ConfigMap") }), want: v1beta1.ReasonReady},
		"the hosts' key is missing": {want: v1beta1.ReasonSSHKeyNotFound, says: "kpssh-system/ssh-key"},
		"the hosts' Secret has no key": {
			objects: []client.Object{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "ssh-key"}}}, want: v1beta1.ReasonSSHKeyNotFound, says: "privateKey"},
		// Field reports R8 (rke#2224 and others) and R6 (pulumi-command#824 and others).
		"R8: the hosts' key has a passphrase that nobody gave": {
			objects: []client.Object{secret(map[string][]byte{hostaccess.KeyPrivate: loginKey(t, "correct horse")})}, want: v1beta1.ReasonKeyEncrypted, says: `"passphrase"`},
		"R8: the hosts' key has another passphrase": {
			objects: []client.Object{secret(map[string][]byte{hostaccess.KeyPrivate: loginKey(t, "correct horse"), hostaccess.KeyPassphrase: []byte("battery staple")})}, want: v1beta1.ReasonWrongPassphrase, says: "passphrase"},
		"R8: the hosts' key has the passphrase": {
			objects: []client.Object{secret(map[string][]byte{hostaccess.KeyPrivate: loginKey(t, "correct horse"), hostaccess.KeyPassphrase: []byte("correct horse")})}, want: v1beta1.ReasonReady},
		"R6: the hosts' certificate has expired": {
			objects: []client.Object{secret(certified(t, time.Now().Add(-time.Minute)))}, want: v1beta1.ReasonSSHCertificateExpired, says: "put a new one in"},
		"R6: the hosts' certificate holds": {
			objects: []client.Object{secret(certified(t, time.Now().Add(time.Minute)))}, want: v1beta1.ReasonReady},
		"the Secret of a jump host pins nothing": {
			host: func(h *v1beta1.SSHHost) {
				h.Spec.Jumps = []v1beta1.JumpHost{{Address: "192.0.2.9", User: "ops", SSHKeySecretRef: v1beta1.SecretRef{Name: "ssh-key"}}}
			},
			objects: []client.Object{sshKey()}, want: hostaccess.ReasonHostKeyUnpinned, says: "jump host"},
		"a maintenance window is open": {
			objects: []client.Object{sshKey()}, want: v1beta1.ReasonMaintenanceWindow, says: "2026-03-01T13:00:00Z",
			class: windows("0 11 * * 0")},
		"a maintenance window is closed": {
			objects: []client.Object{sshKey()}, want: v1beta1.ReasonReady, class: windows("0 11 * * 1")},
		"a maintenance window cannot be read": {
			objects: []client.Object{sshKey()}, want: v1beta1.ReasonMaintenanceWindowInvalid, says: "maintenanceWindows", class: windows("0 25 * * 0")},
		"no host is selected": {
			class: func(c *v1beta1.SSHNodeClass) { c.Spec.HostSelector.MatchLabels = map[string]string{"rack": "9"} }, want: v1beta1.ReasonNoHosts, says: "kpssh-system"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			changes := []func(*v1beta1.SSHNodeClass){bare}
			if tt.class != nil {
				changes = append(changes, tt.class)
			}
			host := controllertest.Host("host-a", "10.0.0.1")
			if tt.host != nil {
				tt.host(host)
			}
			env := controllertest.New(t, append(tt.objects, controllertest.Class(changes...), controllertest.Profile(), controllertest.ClusterInfo(t), host)...)
			options := status.Options{
				Client: env.Client, Live: env.Client, Hosts: env.Pool, Access: hostaccess.New(env.Client, controllertest.Namespace, true), Environment: env.Phases(controllertest.NewMachines()), Trust: world, DispatchKey: key,
				AllowRaw: tt.allowRaw, Clock: env.Clock, Namespace: controllertest.Namespace, TrustConfigMap: types.NamespacedName{Namespace: "kpssh", Name: "kpssh-trust"},
			}
			if tt.trust != nil {
				options.Trust = tt.trust
			}
			if tt.key != nil {
				options.DispatchKey = tt.key
			}
			for range 2 { // the second must find it as it is
				result, err := status.NewController(options).Reconcile(context.Background(), env.Class(controllertest.ClassName))
				if err != nil || result.RequeueAfter == 0 {
					t.Fatalf("result %v, error %v", result, err)
				}
			}
			c := env.Class(controllertest.ClassName).StatusConditions().Get(v1beta1.ConditionReady)
			if c.Reason != tt.want || !strings.Contains(c.Message, tt.says) || c.IsTrue() != (tt.want == v1beta1.ReasonReady) {
				t.Errorf("%s: %s, want %s: …%s…", c.Reason, c.Message, tt.want, tt.says)
			}
			if do := whatToDo()[c.Reason]; !strings.Contains(c.Message, do) {
				t.Errorf("%s: %q does not say what to do: …%s…", c.Reason, c.Message, do)
			}
		})
	}
}

// whatToDo says what the message of a reason must end in, of the faults that something is to be applied or signed for.
func whatToDo() map[string]string {
	return map[string]string{
		v1beta1.ReasonProfileNotFound: "joinProfileRef", v1beta1.ReasonJoinSecretNotFound: "joinSecretRef",
		v1beta1.ReasonTrustNotFound: "kpssh init", v1beta1.ReasonTrustInvalid: "kpssh init",
		v1beta1.ReasonTrustExpired: "sign a new one", v1beta1.ReasonScriptNotSigned: "kpssh profile sign",
		v1beta1.ReasonDispatchKeyMissing: "kpssh init", v1beta1.ReasonDispatchKeyUnknown: "kpssh root new",
		status.ReasonParameterNotAllowed: "kpssh profile sign", status.ReasonPinMismatch: "kpssh profile sign",
		v1beta1.ReasonNoHosts: "kpssh host enroll",
	}
}

type cold struct{}

func (cold) List() ([]*v1beta1.SSHHost, error) { return nil, pool.ErrCold }

func TestAColdCacheIsNoVerdict(t *testing.T) {
	env := controllertest.New(t, controllertest.Class(), controllertest.Profile())
	_, err := status.NewController(status.Options{Client: env.Client, Live: env.Client, Hosts: cold{}, Clock: env.Clock}).
		Reconcile(context.Background(), env.Class(controllertest.ClassName))
	if !errors.Is(err, pool.ErrCold) {
		t.Errorf("error = %v", err)
	}
	if got := env.Class(controllertest.ClassName).Status.Conditions; len(got) != 0 {
		t.Errorf("conditions = %v", got)
	}
}
