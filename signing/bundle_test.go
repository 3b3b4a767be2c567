package signing

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"testing"
)

// The place of the key in a certificate, held against crypto/x509.
func TestSubjectPublicKeyInfo(t *testing.T) {
	der := firstCert(t, caCert(t, "ca"))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	got, err := subjectPublicKeyInfo(der)
	if err != nil || !bytes.Equal(got, cert.RawSubjectPublicKeyInfo) {
		t.Errorf("got %x, %v", got, err)
	}
	key, err := KeyOf(cert.PublicKey)
	if err != nil || !bytes.Equal(got, key.Public) {
		t.Errorf("it is not the key's DER: %v", err)
	}

	var c certificate
	if _, err := asn1.Unmarshal(der, &c); err != nil {
		t.Fatal(err)
	}
	other := asn1.RawValue{Class: asn1.ClassUniversal, Tag: asn1.TagOctetString, Bytes: []byte("x")}
	each(t, map[string]func(c *certificate){
		"a serial number that is none": func(c *certificate) { c.TBS.Serial = other },
		"an algorithm that is none":    func(c *certificate) { c.TBS.Algorithm = other },
		"an issuer that is none":       func(c *certificate) { c.TBS.Issuer = other },
		"no validity":                  func(c *certificate) { c.TBS.Validity = other },
		"a subject that is none":       func(c *certificate) { c.TBS.Subject = other },
		"a subject of another class": func(c *certificate) {
			c.TBS.Subject = asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: asn1.TagSequence, IsCompound: true}
		},
		"a key of no algorithm":       func(c *certificate) { c.TBS.PublicKey.Raw, c.TBS.PublicKey.Algorithm = nil, other },
		"a signature of no algorithm": func(c *certificate) { c.Algorithm = other },
	}, func(t *testing.T, spoil func(*certificate)) {
		bad := c
		spoil(&bad)
		spoiled, err := asn1.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if spki, err := subjectPublicKeyInfo(spoiled); err == nil {
			t.Errorf("its key is %x", spki)
		}
	})
}

// FuzzCertificate looks for a certificate of which crypto/x509 sees another key than we do.
func FuzzCertificate(f *testing.F) {
	f.Add(firstCert(f, caCert(f, "a")))
	f.Fuzz(func(t *testing.T, der []byte) {
		spki, err := subjectPublicKeyInfo(der)
		if err != nil {
			return
		}
		if cert, err := x509.ParseCertificate(der); err == nil && !bytes.Equal(cert.RawSubjectPublicKeyInfo, spki) {
			t.Fatalf("our key is %x, theirs %x", spki, cert.RawSubjectPublicKeyInfo)
		}
		if pins, err := SPKIPins(bundle(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))); err != nil || pins[0] != Digest(spki) {
			t.Fatalf("pins are %v, %v", pins, err)
		}
	})
}
