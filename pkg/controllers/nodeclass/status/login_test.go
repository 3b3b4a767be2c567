package status_test

import (
	"context"
	"strings"
	"testing"
	"time"

	opstatus "github.com/awslabs/operatorpkg/status"
	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/status"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// rack is a class with one host, which dispatch logs in to.
type rack struct {
	*controllertest.Env
	host       *dispatchtest.Host
	dispatcher *dispatch.Dispatcher
	controller *status.Controller
}

func newRack(t *testing.T, data map[string][]byte, slow time.Duration) *rack {
	t.Helper()
	world, logins := signed(t), dispatch.NewLogins()
	r := &rack{
		host: world.NewHost("host-a"), dispatcher: world.Dispatcher(func(o *dispatch.Options) { o.Logins = logins }),
		Env: controllertest.New(t, secret(data), controllertest.Class(func(c *v1beta1.SSHNodeClass) { c.Spec.Vars = nil }),
			controllertest.Profile(), controllertest.ClusterInfo(t), controllertest.Host("host-a", "10.0.0.1")),
	}
	r.controller = status.NewController(status.Options{
		Client: r.Client, Live: r.Client, Hosts: r.Pool, Access: hostaccess.New(r.Client, controllertest.Namespace, true),
		Environment: r.Phases(controllertest.NewMachines()), Trust: world, DispatchKey: func() (signing.Key, error) { return world.Signer().Public(), nil },
		Logins: logins, SlowLogin: slow, Clock: r.Clock, Namespace: controllertest.Namespace, TrustConfigMap: types.NamespacedName{Namespace: "kpssh", Name: "kpssh-trust"},
	})
	return r
}

// probe logs in to the host.
func (r *rack) probe(t *testing.T, keys ...ssh.Signer) {
	t.Helper()
	reach := r.host.Dispatch()
	reach.Target.Keys = keys
	if _, err := r.dispatcher.Probe(t.Context(), reach); err != nil {
		t.Fatal(err)
	}
}

// look returns a condition of the class, which is ready all the while.
func (r *rack) look(t *testing.T, condition string) *opstatus.Condition {
	t.Helper()
	for range 2 { // the second must find it as it is
		if _, err := r.controller.Reconcile(context.Background(), r.Class(controllertest.ClassName)); err != nil {
			t.Fatal(err)
		}
	}
	class := r.Class(controllertest.ClassName)
	if ready := class.StatusConditions().Get(v1beta1.ConditionReady); !ready.IsTrue() || ready.Reason != v1beta1.ReasonReady {
		t.Errorf("the class is not ready: %s: %s", ready.Reason, ready.Message)
	}
	return class.StatusConditions().Get(condition)
}

// Field report R20 (WMCO#249): the class lists the hosts that take the retiring key only, so that it is not taken away
// from under them; they are reached with either.
func TestR20AClassListsTheHostsThatTakeTheRetiringKeyOnly(t *testing.T) {
	text, current := remotetest.LoginKey(t, "")
	oldText, old := remotetest.LoginKey(t, "")
	data := map[string][]byte{hostaccess.KeyPrivate: text, hostaccess.KeyRetiring: oldText}
	r := newRack(t, data, 0)
	takes := func(keys ...ssh.Signer) {
		var public []ssh.PublicKey
		for _, key := range keys {
			public = append(public, key.PublicKey())
		}
		r.host.Server.SetAuthorizedKeys(public...)
		r.host.Server.Cut()
		r.probe(t, current, old)
	}
	look := func(want metav1.ConditionStatus, reason, says string) {
		t.Helper()
		got := r.look(t, v1beta1.ConditionLoginKeyCurrent)
		if got == nil || got.Status != want || got.Reason != reason || !strings.Contains(got.Message, says) {
			t.Errorf("got %+v, want %s for %s: …%s…", got, want, reason, says)
		}
	}
	look(metav1.ConditionUnknown, v1beta1.ReasonHostsNotSeen, "host-a")
	takes(old)
	look(metav1.ConditionFalse, v1beta1.ReasonRetiringKeyInUse, "host-a")
	takes(old, current)
	look(metav1.ConditionTrue, v1beta1.ReasonKeyRotated, hostaccess.KeyRetiring)
	delete(data, hostaccess.KeyRetiring)
	if err := r.Client.Delete(t.Context(), secret(nil)); err != nil {
		t.Fatal(err)
	}
	if err := r.Client.Create(t.Context(), secret(data)); err != nil {
		t.Fatal(err)
	}
	if got := r.look(t, v1beta1.ConditionLoginKeyCurrent); got != nil {
		t.Errorf("got %+v, want none", got)
	}
}

// Field report R17 (SSH.NET#37, tmt#960, proxcenter-ui#370): a host that is slow to log in to is healthy, with a warning.
func TestR17ASlowLoginIsAWarningOnTheClass(t *testing.T) {
	text, key := remotetest.LoginKey(t, "")
	const delay = 100 * time.Millisecond
	r := newRack(t, map[string][]byte{hostaccess.KeyPrivate: text}, delay)
	r.host.Server.SetLoginDelay(delay)
	r.probe(t, key)
	if got := r.look(t, v1beta1.ConditionSlowLogin); got == nil || !got.IsTrue() || !strings.Contains(got.Message, "host-a (") || !strings.Contains(got.Message, "UseDNS no") {
		t.Errorf("got %+v", got)
	}
}
