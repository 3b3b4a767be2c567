package signing

import (
	"bytes"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"slices"
)

// SPKIPins are the pins of a CA bundle (base64 of PEM certificates): for each certificate the
// Digest of its subject public key info, each once, in their order.
//
// The text must be certificates alone, each in the spelling that encoding/pem writes, with nothing
// but white space between: what another reader might take for one more certificate is refused.
func SPKIPins(bundle string) ([]string, error) {
	text, err := decodeBase64(base64.StdEncoding, bundle)
	if err != nil {
		return nil, refuse(ReasonParam, "CA bundle is not base64")
	}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	var pins []string
	n := 0
	for text = bytes.TrimSpace(text); len(text) > 0; text = bytes.TrimSpace(text) {
		if n++; n > maxListed {
			return nil, refuse(ReasonParam, "CA bundle has more than %d certificates", maxListed)
		}
		block, rest := pem.Decode(text)
		if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			return nil, refuse(ReasonParam, "CA bundle is not PEM certificates alone")
		}
		written := bytes.TrimSpace(text[:len(text)-len(rest)])
		if !bytes.Equal(written, bytes.TrimSpace(pem.EncodeToMemory(block))) {
			return nil, refuse(ReasonParam, "certificate %d of the CA bundle is not in canonical PEM", n)
		}
		spki, err := subjectPublicKeyInfo(block.Bytes)
		if err != nil {
			return nil, refuse(ReasonParam, "certificate %d of the CA bundle: %v", n, err)
		}
		if pin := Digest(spki); !slices.Contains(pins, pin) {
			pins = append(pins, pin)
		}
		text = rest
	}
	if n == 0 {
		return nil, refuse(ReasonParam, "CA bundle has no certificate")
	}
	return pins, nil
}

// checkBundlePins demands a pin for every certificate: one more in the bundle is one more that
// the cluster's identity could be forged with.
func checkBundlePins(name, value string, pins []string) error {
	found, err := SPKIPins(value)
	if err != nil {
		return err
	}
	for _, pin := range found {
		if !slices.Contains(pins, pin) {
			return refuse(ReasonPin, "%s holds a certificate whose key is not pinned", name)
		}
	}
	return nil
}

// certificate is the outer form of an X.509 certificate (RFC 5280, 4.1), which places the key. The
// rest is for those who use the certificate; crypto/x509 would add a tenth to the shim.
type certificate struct {
	TBS struct {
		Version   int `asn1:"optional,explicit,default:0,tag:0"`
		Serial    asn1.RawValue
		Algorithm asn1.RawValue
		Issuer    asn1.RawValue
		Validity  asn1.RawValue
		Subject   asn1.RawValue
		PublicKey struct {
			Raw       asn1.RawContent
			Algorithm asn1.RawValue
			Key       asn1.BitString
		}
		IssuerID   asn1.BitString  `asn1:"optional,tag:1"`
		SubjectID  asn1.BitString  `asn1:"optional,tag:2"`
		Extensions []asn1.RawValue `asn1:"optional,explicit,tag:3"`
	}
	Algorithm asn1.RawValue
	Signature asn1.BitString
}

// subjectPublicKeyInfo is that part of a certificate in DER.
func subjectPublicKeyInfo(der []byte) ([]byte, error) {
	var c certificate
	rest, err := asn1.Unmarshal(der, &c)
	if err != nil || len(rest) > 0 {
		return nil, errors.New("not one certificate in DER")
	}
	tags := []struct {
		value asn1.RawValue
		tag   int
	}{
		{c.TBS.Serial, asn1.TagInteger}, {c.TBS.Algorithm, asn1.TagSequence}, {c.TBS.Issuer, asn1.TagSequence},
		{c.TBS.Validity, asn1.TagSequence}, {c.TBS.Subject, asn1.TagSequence},
		{c.TBS.PublicKey.Algorithm, asn1.TagSequence}, {c.Algorithm, asn1.TagSequence},
	}
	for _, t := range tags {
		if t.value.Class != asn1.ClassUniversal || t.value.Tag != t.tag {
			return nil, errors.New("not the form of a certificate")
		}
	}
	return c.TBS.PublicKey.Raw, nil
}
