package bootstrap_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
)

func newCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func clusterInfo(kubeconfig string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": kubeconfig},
	}
}

func kubeconfig(name, endpoint, ca string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: %q\n  cluster:\n    server: %s\n    certificate-authority-data: %s\n",
		name, endpoint, base64.StdEncoding.EncodeToString([]byte(ca)))
}

func TestFindCluster(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("canary-private-key")}))
	tests := map[string]struct {
		info         *corev1.ConfigMap
		override     bootstrap.Override
		wantEndpoint string
		wantCA       string
		wantErr      error
	}{
		"reads what kubeadm publishes": {
			info: clusterInfo(kubeconfig("", "https://10.0.0.1:6443", ca)), wantEndpoint: "https://10.0.0.1:6443", wantCA: ca},
		"reads the single cluster of another name": {
			info: clusterInfo(kubeconfig("lab", "https://api.lab:6443", ca)), wantEndpoint: "https://api.lab:6443", wantCA: ca},
		"a class that says both needs no cluster-info": {
			override: bootstrap.Override{Endpoint: "https://api.example:443", CABundle: other}, wantEndpoint: "https://api.example:443", wantCA: other},
		"a class may say the endpoint alone": {
			info:     clusterInfo(kubeconfig("", "https://10.0.0.1:6443", ca)),
			override: bootstrap.Override{Endpoint: "https://api.example"}, wantEndpoint: "https://api.example", wantCA: ca},
		"a bundle may be base64, as kubeconfigs have it": {
			override:     bootstrap.Override{Endpoint: "https://api.example", CABundle: base64.StdEncoding.EncodeToString([]byte(ca)) + "\n"},
			wantEndpoint: "https://api.example", wantCA: ca},
		"nothing to read":                           {wantErr: bootstrap.ErrClusterInfoMissing},
		"cluster-info without a kubeconfig":         {info: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}}, wantErr: bootstrap.ErrClusterInfoInvalid},
		"cluster-info that is no kubeconfig":        {info: clusterInfo("{[canary"), wantErr: bootstrap.ErrClusterInfoInvalid},
		"an endpoint in plain text":                 {info: clusterInfo(kubeconfig("", "http://10.0.0.1:6443", ca)), wantErr: bootstrap.ErrClusterInfoInvalid},
		"an endpoint with a password":               {info: clusterInfo(kubeconfig("", "https://u:p@10.0.0.1:6443", ca)), wantErr: bootstrap.ErrClusterInfoInvalid},
		"no certificate":                            {info: clusterInfo(kubeconfig("", "https://10.0.0.1:6443", "")), wantErr: bootstrap.ErrClusterInfoInvalid},
		"text that is no certificate":               {info: clusterInfo(kubeconfig("", "https://10.0.0.1:6443", "hello")), wantErr: bootstrap.ErrClusterInfoInvalid},
		"a private key in the bundle":               {override: bootstrap.Override{Endpoint: "https://a", CABundle: ca + key}, wantErr: bootstrap.ErrClusterInfoInvalid},
		"a bundle that is neither PEM nor base64":   {override: bootstrap.Override{Endpoint: "https://a", CABundle: "%%%"}, wantErr: bootstrap.ErrClusterInfoInvalid},
		"a bundle without end":                      {override: bootstrap.Override{Endpoint: "https://a", CABundle: strings.Repeat("A", 1<<20)}, wantErr: bootstrap.ErrClusterInfoInvalid},
		"a truncated certificate behind a good one": {override: bootstrap.Override{Endpoint: "https://a", CABundle: ca + "-----BEGIN CERTIFICATE-----\nMIIB"}, wantErr: bootstrap.ErrClusterInfoInvalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tt.info != nil {
				objects = append(objects, tt.info)
			}
			got, err := bootstrap.FindCluster(context.Background(), newClient(t, objects...), tt.override)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error = %v, want %v", err, tt.wantErr)
			}
			if err != nil {
				if strings.Contains(err.Error(), "canary") {
					t.Errorf("error repeats what it read: %v", err)
				}
				return
			}
			if got.Endpoint != tt.wantEndpoint || string(got.CA) != tt.wantCA {
				t.Errorf("got %q with CA %q", got.Endpoint, got.CA)
			}
			if decoded, err := base64.StdEncoding.DecodeString(got.CABase64()); err != nil || string(decoded) != tt.wantCA {
				t.Errorf("CABase64 does not decode to the bundle: %v", err)
			}
		})
	}
}

func TestABadBundleOfANodeClassIsNotLookedForInClusterInfo(t *testing.T) {
	_, err := bootstrap.FindCluster(context.Background(), nil, bootstrap.Override{CABundle: "-----BEGIN CERTIFICATE-----\n"})
	if !errors.Is(err, bootstrap.ErrClusterInfoInvalid) || !strings.Contains(err.Error(), "cluster.caBundle of the node class") {
		t.Errorf("error = %v", err)
	}
}
