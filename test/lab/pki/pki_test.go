package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net"
	"strings"
	"testing"
)

func parse(t *testing.T, pair Pair) *x509.Certificate {
	t.Helper()
	if _, err := tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pair.Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestCertificatesVerifyForTheirUseOnly(t *testing.T) {
	ca, err := NewCA("lab")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	serverPair, err := ca.Server("api", []string{"kubernetes"}, []net.IP{net.IPv4(10, 77, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	clientPair, err := ca.Client("someone", "a group")
	if err != nil {
		t.Fatal(err)
	}
	server, client := parse(t, serverPair), parse(t, clientPair)
	for name, test := range map[string]struct {
		cert  *x509.Certificate
		usage x509.ExtKeyUsage
		host  string
		ok    bool
	}{
		"a server by name":          {server, x509.ExtKeyUsageServerAuth, "kubernetes", true},
		"a server by address":       {server, x509.ExtKeyUsageServerAuth, "10.77.0.1", true},
		"a server by another name":  {server, x509.ExtKeyUsageServerAuth, "example.test", false},
		"a server is no client":     {server, x509.ExtKeyUsageClientAuth, "", false},
		"a client":                  {client, x509.ExtKeyUsageClientAuth, "", true},
		"a client is no API server": {client, x509.ExtKeyUsageServerAuth, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := test.cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: test.host, KeyUsages: []x509.ExtKeyUsage{test.usage}})
			if (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
		})
	}
	if client.Subject.CommonName != "someone" || client.Subject.Organization[0] != "a group" {
		t.Errorf("the client is %s", client.Subject)
	}
}

func TestKubeconfigHoldsAllItNeeds(t *testing.T) {
	config, err := Kubeconfig("https://10.77.0.1:6443", []byte("ca"), Pair{Cert: []byte("cert"), Key: []byte("key")})
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	for _, want := range []string{"https://10.77.0.1:6443", encode([]byte("ca")), encode([]byte("cert")), encode([]byte("key"))} {
		if !strings.Contains(string(config), want) {
			t.Errorf("it lacks %q", want)
		}
	}
}
