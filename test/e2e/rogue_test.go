//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// claimedHost is the one host that is claimed.
func claimedHost(ctx context.Context) (*v1beta1.SSHHost, error) {
	hosts, err := on.SSHHosts(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(hosts, func(h v1beta1.SSHHost) bool { return h.Status.ClaimRef != nil })
	if at < 0 {
		return nil, errors.New("no host is claimed")
	}
	return &hosts[at], nil
}

// TestD8_AReceiptAloneMakesNoNode is row D8 of docs/threat-model.md: a host says, signed, that join went well, and no
// Node comes of it. Its NodeClaim is not Registered and the host not InUse, however long that is looked at; that the host
// is given up after 14 minutes is for a test with a clock of its own (pkg/controllers/nodeclaim/join).
func TestD8_AReceiptAloneMakesNoNode(t *testing.T) {
	settled(t)
	p := shipped(t, "receipt-only")
	p.profile.Spec.Scripts.Join = "#!/bin/bash\nset -euo pipefail\ntrue # says so and does nothing\n"
	p.sign(t)
	p.apply(t)
	p.ready(t)
	p.scale(t, 1)
	var claim string
	until(t, "the receipt of a join", func(ctx context.Context) error {
		host, err := claimedHost(ctx)
		if err != nil {
			return err
		}
		claim = host.Status.ClaimRef.Name
		out, err := machine(t, host.Name).Exec(ctx, "/usr/libexec/kpssh/kpssh-shim", "receipts", "--json")
		if err != nil {
			return err
		}
		if !strings.Contains(out, "join") || !strings.Contains(out, string(host.Status.ClaimRef.UID)) {
			return errNotYet
		}
		return nil
	})
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		nodeClaim := &karpv1.NodeClaim{}
		must(t, on.Client.Get(within(t), client.ObjectKey{Name: claim}, nodeClaim))
		if nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
			t.Fatalf("NodeClaim %q is Registered by a receipt", claim)
		}
		host, err := claimedHost(within(t))
		must(t, err)
		if host.Status.State != v1beta1.HostClaimed {
			t.Fatalf("the host is %s by a receipt", host.Status.State)
		}
	}
	p.scale(t, 0)
	// Nobody consolidates a NodeClaim that never registered.
	_, err := on.Kubectl(within(t), "delete", "nodeclaim", claim, "--wait=false")
	must(t, err)
	settled(t)
}

// TestD9_ABootstrapTokenIsGoodForItsOwnNode is row D9: whoever is root on a host has its bootstrap token while the host
// joins. The API server takes any request for a certificate with it; what is approved is the claim's own node alone.
func TestD9_ABootstrapTokenIsGoodForItsOwnNode(t *testing.T) {
	settled(t)
	const wait, token = "/root/kpssh-e2e-go", "/root/kpssh-e2e-token"
	p := shipped(t, "token-thief")
	join := &p.profile.Spec.Scripts.Join
	*join = strings.Replace(*join, "set -euo pipefail\n", "set -euo pipefail\n"+
		"(umask 077; echo \"$KPSSH_BOOTSTRAP_TOKEN\" > "+token+".new; mv "+token+".new "+token+")\nuntil [ -e "+wait+" ]; do sleep 0.2; done\n", 1)
	p.sign(t)
	p.apply(t)
	p.ready(t)
	p.scale(t, 1)
	var stolen string
	var host *v1beta1.SSHHost
	until(t, "the token to be on the host", func(ctx context.Context) (err error) {
		if host, err = claimedHost(ctx); err != nil {
			return err
		}
		stolen, err = machine(t, host.Name).Exec(ctx, "cat", token)
		return err
	})
	h := machine(t, host.Name)
	t.Cleanup(func() { _, _ = h.Exec(context.Background(), "rm", "-f", wait, token) })
	thief := bearer(t, strings.TrimSpace(stolen))
	node := host.Status.ClaimRef.Name
	foreign := map[string]string{
		"another node":   request(t, thief, "system:node:"+node+"-of-another", "system:nodes"),
		"a host's name":  request(t, thief, "system:node:"+h.Name, "system:nodes"),
		"an admin":       request(t, thief, "kubernetes-admin", "system:masters"),
		"a node, admin":  request(t, thief, "system:node:"+node, "system:masters"),
		"nobody's group": request(t, thief, "system:node:"+node, "system:authenticated"),
	}
	own := request(t, thief, "system:node:"+node, "system:nodes")
	approved := func(ctx context.Context, name string) (bool, error) {
		csr := &certificatesv1.CertificateSigningRequest{}
		err := on.Client.Get(ctx, client.ObjectKey{Name: name}, csr)
		return len(csr.Status.Conditions) > 0 || len(csr.Status.Certificate) > 0, err
	}
	until(t, "the request for its own node to be approved", func(ctx context.Context) error {
		ok, err := approved(ctx, own)
		if err == nil && !ok {
			err = errNotYet
		}
		return err
	})
	until(t, "each of the others to be told of", func(ctx context.Context) error {
		var events corev1.EventList
		if err := on.Client.List(ctx, &events); err != nil {
			return err
		}
		for what, name := range foreign {
			if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.Reason == v1beta1.EventCertificateRefused && e.InvolvedObject.Name == host.Name && strings.Contains(e.Message, name)
			}) {
				return fmt.Errorf("nothing is told of the request for %s", what)
			}
		}
		return nil
	})
	for what, name := range foreign {
		ok, err := approved(within(t), name)
		must(t, err)
		if ok {
			t.Errorf("the request for %s is approved", what)
		}
	}
	// It is a request that the token may make, and no more: nothing else of the cluster is its.
	if err := thief.List(within(t), &corev1.SecretList{}, client.InNamespace("kube-system")); err == nil {
		t.Error("the token reads Secrets")
	}
	if err := thief.List(within(t), &corev1.NodeList{}); err == nil {
		t.Error("the token reads Nodes")
	}
	_, err := h.Exec(within(t), "touch", wait)
	must(t, err)
	p.running(t)
	p.scale(t, 0)
	settled(t)
}

// bearer is a client that has nothing but a bootstrap token.
func bearer(t *testing.T, token string) client.Client {
	t.Helper()
	config := rest.AnonymousClientConfig(on.RESTConfig())
	config.BearerToken = token
	c, err := client.New(config, client.Options{})
	must(t, err)
	return c
}

// request asks for a certificate as a joining kubelet does, and returns the request's name.
func request(t *testing.T, c client.Client, name, group string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: name, Organization: []string{group}},
	}, key)
	must(t, err)
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kpssh-e2e-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	must(t, c.Create(within(t), csr))
	return csr.Name
}
