package token_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/token"
)

const hostID = "kpssh://kpssh-system/host-a"

func withToken(h *v1beta1.SSHHost) { h.Status.BootstrapTokenID = "abc123" }

func TestATokenLivesUntilItHasServed(t *testing.T) {
	earlier := func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(controllertest.Start.Add(-time.Hour)) }
	tests := map[string]struct {
		claimed bool
		objects []client.Object
		wantID  string
	}{
		"deleted once the node has registered, ready or not": {
			claimed: true, objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), controllertest.Node("pool-1", hostID, "10.0.0.1", controllertest.NotReady)}},
		"deleted once a node with an id of its own has the host's address": {
			claimed: true, objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), controllertest.Node("mi-1", "eks-hybrid:///mi-1", "10.0.0.1")}},
		"deleted when the host is free": {claimed: false},
		"kept while no node is there":   {claimed: true, objects: []client.Object{controllertest.NodeClaim("pool-1", hostID)}, wantID: "abc123"},
		"kept while only another's is":  {claimed: true, objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), controllertest.Node("x", "kpssh://kpssh-system/host-b", "10.0.0.2")}, wantID: "abc123"},
		"kept while only the Node of an earlier membership is": {
			claimed: true, objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), controllertest.Node("pool-0", hostID, "10.0.0.1", earlier)}, wantID: "abc123"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			host := controllertest.Host("host-a", "10.0.0.1", withToken)
			if tt.claimed {
				controllertest.ClaimedBy("pool-1")(host)
			}
			env := controllertest.New(t, append(tt.objects, host)...)
			tokens := bootstrap.NewTokens(env.Client, env.Client, env.Clock)
			if _, err := tokens.Ensure(context.Background(), "abc123", bootstrap.Owner{Name: "pool-1", UID: "uid-pool-1"}, time.Minute); err != nil {
				t.Fatal(err)
			}
			c := token.NewController(env.Client, env.Pool, tokens, controllertest.Namespace, 1)
			result, err := c.Reconcile(context.Background(), env.Host("host-a"))
			if err != nil {
				t.Fatal(err)
			}
			if got := env.Host("host-a").Status.BootstrapTokenID; got != tt.wantID {
				t.Errorf("recorded id = %q, want %q", got, tt.wantID)
			}
			if want := len(tt.wantID) / 6; env.Tokens() != want {
				t.Errorf("%d Secrets, want %d", env.Tokens(), want)
			}
			if tt.wantID != "" && result.RequeueAfter != 30*time.Second {
				t.Errorf("looked at again after %s", result.RequeueAfter)
			}
		})
	}
}

func TestSweepKeepsTokensThatAHostNames(t *testing.T) {
	secret := func(id string, age time.Duration) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: "bootstrap-token-" + id, UID: types.UID("uid-" + id),
				CreationTimestamp: metav1.NewTime(controllertest.Start.Add(-age)),
				Labels:            map[string]string{bootstrap.ManagedByLabel: bootstrap.ManagedByValue},
			},
			Type: corev1.SecretTypeBootstrapToken,
		}
	}
	env := controllertest.New(t, secret("abc123", time.Hour), secret("orphan", time.Hour), secret("newest", time.Minute),
		controllertest.Host("host-a", "10.0.0.1", controllertest.ClaimedBy("pool-1"), withToken))
	tokens := bootstrap.NewTokens(env.Client, env.Client, env.Clock)
	c := token.NewController(env.Client, env.Pool, tokens, controllertest.Namespace, 1)
	if err := c.Sweep(context.Background()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"abc123": true, "newest": true, "orphan": false} {
		err := env.Client.Get(context.Background(), types.NamespacedName{Namespace: "kube-system", Name: "bootstrap-token-" + id}, &corev1.Secret{})
		if (err == nil) != want {
			t.Errorf("token %s: %v, want it there = %t", id, err, want)
		}
	}
}
