package approval_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/certificate/approval"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
)

const tokenID = "abc123"

// kubelet is the request that a kubelet makes for node pool-1 when it joins with the token.
func kubelet(t *testing.T, change ...func(*x509.CertificateRequest, *certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:pool-1", Organization: []string{"system:nodes"}}}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "node-csr", CreationTimestamp: metav1.NewTime(controllertest.Start)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Username: "system:bootstrap:" + tokenID,
			Groups: []string{"system:bootstrappers", "system:bootstrappers:kpssh", "system:authenticated"},
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	for _, f := range change {
		f(template, csr)
	}
	if csr.Spec.Request == nil {
		der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		if err != nil {
			t.Fatal(err)
		}
		csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	return csr
}

// asked has the controller look at a request, and tells whether it was approved and what the host was told.
func asked(t *testing.T, host *v1beta1.SSHHost, owner types.UID, csr *certificatesv1.CertificateSigningRequest, after time.Duration) (approved bool, again time.Duration, told []string) {
	t.Helper()
	return askedWith(t, host, controllertest.NodeClaim("pool-1", host.Status.ProviderID), owner, csr, after)
}

// askedWith is asked with another NodeClaim, or with none.
func askedWith(t *testing.T, host *v1beta1.SSHHost, nodeClaim *karpenterv1.NodeClaim, owner types.UID, csr *certificatesv1.CertificateSigningRequest, after time.Duration) (approved bool, again time.Duration, told []string) {
	t.Helper()
	objects := []client.Object{host, csr}
	if nodeClaim != nil {
		objects = append(objects, nodeClaim)
	}
	env := controllertest.New(t, objects...)
	tokens := bootstrap.NewTokens(env.Client, env.Client, env.Clock)
	if owner != "" {
		if _, err := tokens.Ensure(context.Background(), tokenID, bootstrap.Owner{Name: "pool-1", UID: string(owner)}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	env.Clock.Step(after)
	c := approval.NewController(approval.Options{
		Client: env.Client, Live: env.Client, Hosts: env.Pool, Tokens: tokens, Recorder: env.Events, Clock: env.Clock, Workers: 1,
	})
	result, err := c.Reconcile(context.Background(), csr)
	if err != nil {
		t.Fatal(err)
	}
	now := &certificatesv1.CertificateSigningRequest{}
	if err := env.Client.Get(context.Background(), types.NamespacedName{Name: csr.Name}, now); err != nil {
		t.Fatal(err)
	}
	approved = slices.ContainsFunc(now.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved && c.Status == corev1.ConditionTrue && c.Message != ""
	})
	return approved, result.RequeueAfter, env.Events.Reasons("SSHHost/" + host.Name)
}

func holder(change ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	all := append([]func(*v1beta1.SSHHost){controllertest.ClaimedBy("pool-1"), func(h *v1beta1.SSHHost) { h.Status.BootstrapTokenID = tokenID }}, change...)
	return controllertest.Host("host-a", "10.0.0.1", all...)
}

// AKSFlexNode PR 286, R93: the name in the request is that of the claimed host's node, here and in what follows.
func TestAKubeletGetsTheCertificateOfItsOwnNode(t *testing.T) {
	approved, _, told := asked(t, holder(), "uid-pool-1", kubelet(t), 0)
	if !approved || len(told) > 0 {
		t.Errorf("approved: %v, events %v", approved, told)
	}
}

func TestWhatIsNotAKubeletOfThisNodeIsNotApproved(t *testing.T) {
	type request = certificatesv1.CertificateSigningRequest
	for name, change := range map[string]func(*x509.CertificateRequest, *request){
		"another node":      func(r *x509.CertificateRequest, _ *request) { r.Subject.CommonName = "system:node:pool-2" },
		"a node of no name": func(r *x509.CertificateRequest, _ *request) { r.Subject.CommonName = "system:node:" },
		"a longer name":     func(r *x509.CertificateRequest, _ *request) { r.Subject.CommonName = "system:node:pool-1x" },
		"no node":           func(r *x509.CertificateRequest, _ *request) { r.Subject.CommonName = "kubernetes-admin" },
		"admins":            func(r *x509.CertificateRequest, _ *request) { r.Subject.Organization = []string{"system:masters"} },
		"admins beside nodes": func(r *x509.CertificateRequest, _ *request) {
			r.Subject.Organization = []string{"system:nodes", "system:masters"}
		},
		"no group":         func(r *x509.CertificateRequest, _ *request) { r.Subject.Organization = nil },
		"a name in DNS":    func(r *x509.CertificateRequest, _ *request) { r.DNSNames = []string{"pool-1"} },
		"an address":       func(r *x509.CertificateRequest, _ *request) { r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} },
		"an email address": func(r *x509.CertificateRequest, _ *request) { r.EmailAddresses = []string{"a@example.com"} },
		"a server's usage": func(_ *x509.CertificateRequest, c *request) {
			c.Spec.Usages = append(c.Spec.Usages, certificatesv1.UsageServerAuth)
		},
		"no usage":          func(_ *x509.CertificateRequest, c *request) { c.Spec.Usages = nil },
		"no client's usage": func(_ *x509.CertificateRequest, c *request) { c.Spec.Usages = c.Spec.Usages[:1] },
		"garbage":           func(_ *x509.CertificateRequest, c *request) { c.Spec.Request = []byte("garbage") },
		"PEM of another type": func(_ *x509.CertificateRequest, c *request) {
			c.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			approved, _, told := asked(t, holder(), "uid-pool-1", kubelet(t, change), 0)
			if approved || !slices.Equal(told, []string{v1beta1.EventCertificateRefused}) {
				t.Errorf("approved: %v, events %v", approved, told)
			}
		})
	}
}

func TestATokenCountsForTheClaimThatItWasMadeForAlone(t *testing.T) {
	state := func(s v1beta1.HostState) func(*v1beta1.SSHHost) { return controllertest.InState(s) }
	for name, c := range map[string]struct {
		host  *v1beta1.SSHHost
		owner types.UID
	}{
		"a token that no host names":  {controllertest.Host("host-a", "10.0.0.1", controllertest.ClaimedBy("pool-1")), "uid-pool-1"},
		"a token of an earlier claim": {holder(), "uid-pool-0"},
		"a token that is not ours":    {holder(), ""},
		"a host whose node has come":  {holder(state(v1beta1.HostInUse)), "uid-pool-1"},
		"a host that was let go":      {holder(func(h *v1beta1.SSHHost) { h.Status.ClaimRef, h.Status.State = nil, v1beta1.HostPending }), "uid-pool-1"},
		"a host that is asked for back": {holder(func(h *v1beta1.SSHHost) {
			h.Status.Conditions = []status.Condition{{Type: v1beta1.ConditionLeaveRequested, Status: metav1.ConditionTrue}}
		}), "uid-pool-1"},
		"a host that is claimed by another": {holder(func(h *v1beta1.SSHHost) { h.Status.ClaimRef.UID = "uid-other" }), "uid-pool-1"},
	} {
		t.Run(name, func(t *testing.T) {
			approved, again, _ := asked(t, c.host, c.owner, kubelet(t), 0)
			if approved || again == 0 {
				t.Errorf("approved: %v, looked at again after %v", approved, again)
			}
			approved, again, _ = asked(t, c.host.DeepCopy(), c.owner, kubelet(t), time.Hour)
			if approved || again != 0 {
				t.Errorf("an hour later approved: %v, looked at again after %v", approved, again)
			}
		})
	}
}

func TestNothingIsApprovedForANodeClaimThatGoes(t *testing.T) {
	for name, nodeClaim := range map[string]*karpenterv1.NodeClaim{
		"under deletion": controllertest.NodeClaim("pool-1", "", func(n *karpenterv1.NodeClaim) {
			n.Finalizers, n.DeletionTimestamp = []string{"karpenter.sh/termination"}, &metav1.Time{Time: controllertest.Start}
		}),
		"gone":           nil,
		"made once more": controllertest.NodeClaim("pool-1", "", func(n *karpenterv1.NodeClaim) { n.UID = "uid-other" }),
	} {
		t.Run(name, func(t *testing.T) {
			approved, again, _ := askedWith(t, holder(), nodeClaim, "uid-pool-1", kubelet(t), 0)
			if approved || again == 0 {
				t.Errorf("approved: %v, looked at again after %v", approved, again)
			}
		})
	}
}

func TestRequestsOfOthersAreLeftAlone(t *testing.T) {
	type request = certificatesv1.CertificateSigningRequest
	for name, change := range map[string]func(*request){
		"of kubeadm's tokens":     func(c *request) { c.Spec.Groups = []string{"system:bootstrappers:kubeadm:default-node-token"} },
		"of a node that renews":   func(c *request) { c.Spec.Username, c.Spec.Groups = "system:node:pool-1", []string{"system:nodes"} },
		"for a kubelet's server":  func(c *request) { c.Spec.SignerName = certificatesv1.KubeletServingSignerName },
		"for any client":          func(c *request) { c.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName },
		"that have a certificate": func(c *request) { c.Status.Certificate = []byte("x") },
		"that somebody has denied": func(c *request) {
			c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			csr := kubelet(t, func(_ *x509.CertificateRequest, c *request) { change(c) })
			approved, again, told := asked(t, holder(), "uid-pool-1", csr, 0)
			if approved || again != 0 || len(told) > 0 {
				t.Errorf("approved: %v, again after %v, events %v", approved, again, told)
			}
		})
	}
}
