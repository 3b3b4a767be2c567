//go:build e2e

package examples_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// What a token of ours may do beside what everybody may who can log in, which is to ask about oneself.
var (
	mayBearers = []string{
		"create certificatesigningrequests", "get certificatesigningrequests",
		"list certificatesigningrequests", "watch certificatesigningrequests",
	}
	mayEverybody = []string{
		"create selfsubjectaccessreviews", "create selfsubjectreviews", "create selfsubjectrulesreviews",
	}
)

// AKSFlexNode PR 286, R93: a join token of which a node's rights hang can act as any node. A token as the controller mints
// it, presented to a real API server on which the rights of the examples are, may ask for a certificate and nothing else:
// every resource and every verb that the server knows is asked for, and what has the cluster approve by itself.
func TestAJoinTokenMayAskForACertificateAlone(t *testing.T) {
	server, err := lab.StartAPIServer(t.Context(), lab.APIServerOptions{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	rights, err := os.ReadFile("bootstrap-rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Apply(t.Context(), string(rights)); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(server.RESTConfig(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tokens := bootstrap.NewTokens(admin, admin, clock.RealClock{})
	token, err := tokens.Ensure(t.Context(), bootstrap.NewTokenID(), bootstrap.Owner{Name: "pool-1", UID: "uid-1"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(server.RESTConfig())
	config.BearerToken, config.QPS = token, -1
	bearer, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	questions := questions(t, server)
	if len(questions) < 500 {
		t.Fatalf("%d questions: the server does not tell what it has", len(questions))
	}
	// The server learns of new rights and of a new token by watches of its own.
	want := slices.Sorted(slices.Values(slices.Concat(mayBearers, mayEverybody)))
	until(t, func() bool {
		return allowed(t, bearer, authorizationv1.ResourceAttributes{Verb: "create", Group: "certificates.k8s.io", Resource: "certificatesigningrequests"})
	})
	if diff := cmp.Diff(want, mays(t, bearer, questions)); diff != "" {
		t.Errorf("what a join token may do (-want +got), of %d questions:\n%s", len(questions), diff)
	}
	if _, err := bearer.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("reading the Secrets with a join token: %v", err)
	}
	t.Logf("%d questions, allowed: %s", len(questions), strings.Join(want, ", "))

	// The report's own fault is found by this.
	if _, err := server.Kubectl(t.Context(), "create", "clusterrolebinding", "too-much", "--clusterrole=system:node", "--group="+apis.BootstrapGroup); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return slices.Contains(mays(t, bearer, questions), "update nodes") })
}

// questions are all that can be asked of the server: every verb of every resource, for the whole cluster and for every name.
func questions(t *testing.T, server *lab.APIServer) []authorizationv1.ResourceAttributes {
	t.Helper()
	admin, err := kubernetes.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := admin.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	var all []authorizationv1.ResourceAttributes
	ask := func(group, resource string, verbs ...string) {
		resource, sub, _ := strings.Cut(resource, "/")
		for _, verb := range verbs {
			all = append(all, authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub})
		}
	}
	for _, list := range lists {
		group, _, versioned := strings.Cut(list.GroupVersion, "/")
		if !versioned {
			group = ""
		}
		for _, resource := range list.APIResources {
			ask(group, resource.Name, verbs...)
		}
	}
	// What no resource tells of: rights that are looked up by a verb or a resource of their own.
	for _, sub := range []string{"nodeclient", "selfnodeclient", "selfnodeserver"} {
		ask("certificates.k8s.io", "certificatesigningrequests/"+sub, "create")
	}
	ask("certificates.k8s.io", "signers", "approve", "sign", "attest")
	for _, who := range []string{"users", "groups", "serviceaccounts"} {
		ask("", who, "impersonate")
	}
	for _, role := range []string{"roles", "clusterroles"} {
		ask("rbac.authorization.k8s.io", role, "bind", "escalate")
	}
	ask("*", "*", "*")
	return all
}

// mays are the questions that are answered with yes, each once.
func mays(t *testing.T, who kubernetes.Interface, questions []authorizationv1.ResourceAttributes) []string {
	t.Helper()
	var may []string
	for _, q := range questions {
		if allowed(t, who, q) {
			may = append(may, strings.TrimSuffix(q.Verb+" "+q.Resource+"/"+q.Subresource, "/"))
		}
	}
	slices.Sort(may)
	return slices.Compact(may)
}

func allowed(t *testing.T, who kubernetes.Interface, q authorizationv1.ResourceAttributes) bool {
	t.Helper()
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &q}}
	answer, err := who.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return false // the token, or what everybody may, is not known yet
	}
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

func until(t *testing.T, holds func() bool) {
	t.Helper()
	check := func(context.Context) (bool, error) { return holds(), nil }
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, check); err != nil {
		t.Fatal(err)
	}
}
