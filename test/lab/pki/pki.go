// Package pki makes the certificates and kubeconfig files of a cluster that lives for minutes.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"text/template"
	"time"
)

// lifetime outlives every lab; the start lies back so that a clock that is a little behind agrees.
const (
	lifetime = 30 * 24 * time.Hour
	backdate = time.Hour
)

// Pair is a certificate with its key, both PEM.
type Pair struct{ Cert, Key []byte }

// CA signs the certificates of one cluster.
type CA struct {
	Pair
	cert *x509.Certificate
	key  crypto.Signer
}

// NewCA makes a certificate authority.
func NewCA(name string) (*CA, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of CA %q: %w", name, err)
	}
	pair, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("making CA %q: %w", name, err)
	}
	block, _ := pem.Decode(pair.Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("making CA %q: %w", name, err)
	}
	return &CA{Pair: pair, cert: cert, key: key}, nil
}

// Client makes a client certificate for a user in groups.
func (ca *CA) Client(user string, groups ...string) (Pair, error) {
	return ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Server makes a server certificate for the given names and addresses.
func (ca *CA) Server(name string, names []string, addresses []net.IP) (Pair, error) {
	return ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    names, IPAddresses: addresses,
	})
}

func (ca *CA) issue(template *x509.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("making the key of %q: %w", template.Subject.CommonName, err)
	}
	pair, err := sign(template, ca.cert, key, ca.key)
	if err != nil {
		return Pair{}, fmt.Errorf("certifying %q: %w", template.Subject.CommonName, err)
	}
	return pair, nil
}

func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer) (Pair, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return Pair{}, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-backdate), time.Now().Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return Pair{}, err
	}
	keyPEM, err := marshalKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: keyPEM}, nil
}

func marshalKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// SigningKey makes a key without a certificate, for service account tokens.
func SigningKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a signing key: %w", err)
	}
	return marshalKey(key)
}

var kubeconfig = template.Must(template.New("kubeconfig").Parse(`apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster:
    server: {{.Server}}
    certificate-authority-data: {{.CA}}
contexts:
- name: lab
  context:
    cluster: lab
    user: lab
current-context: lab
users:
- name: lab
  user:
    client-certificate-data: {{.Cert}}
    client-key-data: {{.Key}}
`))

// Kubeconfig is a kubeconfig file that holds all it needs.
func Kubeconfig(server string, ca []byte, client Pair) ([]byte, error) {
	var b bytes.Buffer
	encode := base64.StdEncoding.EncodeToString
	err := kubeconfig.Execute(&b, map[string]string{
		"Server": server, "CA": encode(ca), "Cert": encode(client.Cert), "Key": encode(client.Key),
	})
	if err != nil {
		return nil, fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return b.Bytes(), nil
}
