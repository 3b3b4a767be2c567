package v1beta1_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

func certificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A node rolls when what it was joined with changed, and for no other reason (karpenter#1510,
// aws/karpenter-provider-aws#5443: endless drift from defaults, order or spelling).
func TestHashChangesWithWhatANodeWasJoinedWithAlone(t *testing.T) {
	first, second := certificate(t), certificate(t)
	base := func() *v1beta1.SSHNodeClass {
		return &v1beta1.SSHNodeClass{Spec: v1beta1.SSHNodeClassSpec{
			Vars:    map[string]string{"a": "1", "b": "2"},
			Cluster: &v1beta1.ClusterSpec{Endpoint: "https://api:6443", CABundle: first},
		}}
	}
	for name, tt := range map[string]struct {
		change func(*v1beta1.SSHNodeClassSpec)
		drifts bool
	}{
		"nothing":                 {change: func(*v1beta1.SSHNodeClassSpec) {}},
		"the default spelled out": {change: func(s *v1beta1.SSHNodeClassSpec) { s.ProviderIDSource = v1beta1.ProviderIDStatic }},
		"the bundle in other whitespace": {change: func(s *v1beta1.SSHNodeClassSpec) {
			s.Cluster.CABundle = bytes.ReplaceAll(append(first, '\n'), []byte("\n"), []byte("\r\n"))
		}},
		"another selector": {change: func(s *v1beta1.SSHNodeClassSpec) {
			s.HostSelector = metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}},
		"another price": {change: func(s *v1beta1.SSHNodeClassSpec) { s.PricePerCPUHour = "1" }},
		"other kubeReserved": {change: func(s *v1beta1.SSHNodeClassSpec) {
			s.KubeReserved = corev1.ResourceList{"cpu": resource.MustParse("1")}
		}},
		"other maxPods": {change: func(s *v1beta1.SSHNodeClassSpec) { s.MaxPods = 10 }},
		"a gate": {change: func(s *v1beta1.SSHNodeClassSpec) {
			s.StartupTaintGates = []v1beta1.StartupTaintGate{{TaintKey: "a"}}
		}},
		"another var":      {change: func(s *v1beta1.SSHNodeClassSpec) { s.Vars["a"] = "3" }, drifts: true},
		"one var more":     {change: func(s *v1beta1.SSHNodeClassSpec) { s.Vars["c"] = "" }, drifts: true},
		"another Secret":   {change: func(s *v1beta1.SSHNodeClassSpec) { s.JoinSecretRef = &v1beta1.SecretRef{Name: "s"} }, drifts: true},
		"another source":   {change: func(s *v1beta1.SSHNodeClassSpec) { s.ProviderIDSource = v1beta1.ProviderIDAdopt }, drifts: true},
		"another endpoint": {change: func(s *v1beta1.SSHNodeClassSpec) { s.Cluster.Endpoint = "https://api2:6443" }, drifts: true},
		"another CA":       {change: func(s *v1beta1.SSHNodeClassSpec) { s.Cluster.CABundle = second }, drifts: true},
		"a CA more":        {change: func(s *v1beta1.SSHNodeClassSpec) { s.Cluster.CABundle = append(bytes.Clone(first), second...) }, drifts: true},
		"a CA cut short":   {change: func(s *v1beta1.SSHNodeClassSpec) { s.Cluster.CABundle = first[:40] }, drifts: true},
		"no cluster":       {change: func(s *v1beta1.SSHNodeClassSpec) { s.Cluster = nil }, drifts: true},
	} {
		t.Run(name, func(t *testing.T) {
			changed := base()
			tt.change(&changed.Spec)
			if drifts := changed.Hash() != base().Hash(); drifts != tt.drifts {
				t.Errorf("drifts: %v, want %v", drifts, tt.drifts)
			}
		})
	}
}

// A new hash for the same spec would roll every node of every user on upgrade, unless
// NodeClassHashVersion changes with it.
func TestHashOfAKnownSpecStaysWhatItIs(t *testing.T) {
	class := &v1beta1.SSHNodeClass{Spec: v1beta1.SSHNodeClassSpec{
		Vars:          map[string]string{"clusterDNS": "10.96.0.10", "a": "<&>"},
		JoinSecretRef: &v1beta1.SecretRef{Name: "join"},
		Cluster:       &v1beta1.ClusterSpec{Endpoint: "https://api:6443", CABundle: []byte("not PEM")},
	}}
	const want = "v1:eaea3825bd3d31339e73008a04af608911c23a17afce72c59d2bd7274a479b7d"
	if got := v1beta1.NodeClassHashVersion + ":" + class.Hash(); got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
}

func TestCopiesOfVarsAreApart(t *testing.T) {
	class := &v1beta1.SSHNodeClass{Spec: v1beta1.SSHNodeClassSpec{Vars: map[string]string{"a": "1"}}}
	class.DeepCopy().Spec.Vars["a"] = "2"
	if class.Spec.Vars["a"] != "1" {
		t.Error("a change of the copy changed the original")
	}
}
