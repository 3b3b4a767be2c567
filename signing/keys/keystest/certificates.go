package keystest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"time"
)

// Certificates are for servers on 127.0.0.1, signed by themselves.
type Certificates struct {
	pair tls.Certificate
	text []byte
}

// NewCertificates makes them.
func NewCertificates() (*Certificates, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "keystest"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &Certificates{
		pair: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		text: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

// Write writes what a client must trust, for SSL_CERT_FILE (and AWS_CA_BUNDLE, where that may be set). Go reads that once a process: set it first.
func (c *Certificates) Write(path string) error { return os.WriteFile(path, c.text, 0o600) }

// serve starts a server, and returns its host and port and how to end it.
func (c *Certificates) serve(handler http.Handler) (string, func()) {
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{c.pair}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that go away
	server.StartTLS()
	return server.Listener.Addr().String(), server.Close
}
