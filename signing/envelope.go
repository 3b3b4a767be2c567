package signing

import (
	"bytes"
	"encoding/base64"
	"encoding/json/jsontext"
	"errors"
	"strconv"
	"strings"
)

// Bounds of every document.
const (
	// MaxSignatures is how many signatures an envelope may carry.
	MaxSignatures = 8
	// MaxKeys is how many keys a role may have.
	MaxKeys = 16
	// MaxOrderMessage bounds the signed bytes of an order: AWS KMS signs at most 4096 in one piece.
	MaxOrderMessage = 4096

	// maxOrderPayload leaves room for what the pre-authentication encoding puts before it.
	maxOrderPayload = MaxOrderMessage - len("DSSEv1 35 "+TypeOrder+" 4040 ")

	maxRootEnvelope      = 64 << 10
	maxAllowlistEnvelope = 1 << 20
	maxSessionEnvelope   = 16 << 10
	maxOrderEnvelope     = 8 << 10
	maxSignature         = 72
	// maxStructure bounds the brackets, commas and colons of an envelope. Eight signatures need
	// some 50; the rest is for fields that this package does not know. Escapes have the same bound
	// and one for 64 bytes: a writer that escapes slashes needs that for base64.
	maxStructure = 128
)

// maxEnvelope is how large an envelope of a type may be, in bytes; 0 for an unknown type.
func maxEnvelope(payloadType string) int {
	switch payloadType {
	case TypeRoot:
		return maxRootEnvelope
	case TypeAllowlist:
		return maxAllowlistEnvelope
	case TypeOrder:
		return maxOrderEnvelope
	case TypeHello, TypeReceipt:
		return maxSessionEnvelope
	}
	return 0
}

// opened is an envelope taken apart: well formed and within bounds, and not verified.
type opened struct {
	payloadType string
	payload     []byte
	signatures  []signature
}

type signature struct {
	keyID string
	sig   []byte
}

// openEnvelope takes an envelope apart. An empty want takes any of the five types.
func openEnvelope(envelope []byte, want string) (*opened, error) {
	limit := maxAllowlistEnvelope
	if want != "" {
		limit = maxEnvelope(want)
	}
	if len(envelope) > limit {
		return nil, refuse(ReasonTooLarge, "envelope has %d bytes, at most %d", len(envelope), limit)
	}
	if !plain(envelope) {
		return nil, refuse(ReasonTooLarge, "envelope has more structure than an envelope needs")
	}
	raw, err := scanEnvelope(envelope)
	if err != nil {
		if ReasonOf(err) != "" {
			return nil, err
		}
		return nil, refuse(ReasonMalformed, "envelope is not a DSSE envelope: %.200v", err)
	}
	if want != "" && raw.payloadType != want {
		return nil, refuse(ReasonWrongType, "payload type is %.80q, not %q", raw.payloadType, want)
	}
	if limit := maxEnvelope(raw.payloadType); limit == 0 || len(envelope) > limit {
		return nil, refuse(ReasonWrongType, "payload type %.80q is not known, or not of this size", raw.payloadType)
	}
	if len(raw.signatures) == 0 {
		return nil, refuse(ReasonUntrusted, "envelope carries no signature")
	}
	return raw.decode()
}

// decode takes the base64 off an envelope.
func (raw *rawEnvelope) decode() (*opened, error) {
	o := &opened{payloadType: raw.payloadType}
	var err error
	if o.payload, err = decodeEitherBase64(raw.payload); err != nil {
		return nil, refuse(ReasonMalformed, "payload is not base64")
	}
	if o.payloadType == TypeOrder && len(o.payload) > maxOrderPayload {
		return nil, refuse(ReasonTooLarge, "order has %d bytes, at most %d", len(o.payload), maxOrderPayload)
	}
	for _, s := range raw.signatures {
		if len(s.sig) > 2*maxSignature {
			return nil, refuse(ReasonMalformed, "signature is too long")
		}
		sig, err := decodeEitherBase64(s.sig)
		if err != nil {
			return nil, refuse(ReasonMalformed, "signature is not base64")
		}
		o.signatures = append(o.signatures, signature{keyID: s.keyID, sig: sig})
	}
	return o, nil
}

// pae is the message that the signatures are over.
func (o *opened) pae() []byte { return pae(o.payloadType, o.payload) }

// pae is the pre-authentication encoding of DSSE. It and the fields below are all that is needed
// of go-securesystemslib/dsse, which links an SSH client (a tenth of the shim) and starts it up in
// every session; the tests hold the two against each other.
func pae(payloadType string, payload []byte) []byte {
	b := make([]byte, 0, len(payload)+len(payloadType)+32)
	b = append(b, "DSSEv1 "...)
	b = strconv.AppendInt(b, int64(len(payloadType)), 10)
	b = append(b, ' ')
	b = append(b, payloadType...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(payload)), 10)
	b = append(b, ' ')
	return append(b, payload...)
}

// rawEnvelope is an envelope as text.
type rawEnvelope struct {
	payloadType, payload string
	signatures           []rawSignature
}

type rawSignature struct{ keyID, sig string }

// plain tells whether JSON text has few enough members, elements and escapes to be worth reading:
// a parser takes ten times as long for nested lists as for one long string.
func plain(text []byte) bool {
	structure, escapes := maxStructure, maxStructure+len(text)/64
	quoted, quote := false, -1
	for i := 0; i < len(text); i++ {
		if quoted {
			// Most of an envelope is one string: on to its end, or to what it escapes. No byte is looked at for a quote twice.
			if quote < i {
				quote = i + indexByte(text[i:], '"')
			}
			if i += indexByte(text[i:quote], '\\'); i == len(text) {
				break
			}
		}
		switch text[i] {
		case '"':
			quoted = !quoted
		case '\\':
			if escapes--; escapes < 0 {
				return false
			}
			i++
		case '[', '{', ',', ':':
			structure--
		}
	}
	return structure >= 0
}

// indexByte is where c is first, and the length of text where it is not.
func indexByte(text []byte, c byte) int {
	if i := bytes.IndexByte(text, c); i >= 0 {
		return i
	}
	return len(text)
}

// scanEnvelope reads the JSON of an envelope in one pass that stops at the first thing wrong, so
// that a hostile one costs no more than a good one. Fields that it does not know are skipped, as
// the DSSE specification demands; names that appear twice are refused.
func scanEnvelope(envelope []byte) (*rawEnvelope, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(envelope))
	e := new(rawEnvelope)
	var seen [3]bool
	err := scanObject(dec, func(name string) error {
		var err error
		switch name {
		case "payloadType":
			seen[0] = true
			e.payloadType, err = scanString(dec)
		case "payload":
			seen[1] = true
			e.payload, err = scanString(dec)
		case "signatures":
			seen[2] = true
			e.signatures, err = scanSignatures(dec)
		default:
			err = dec.SkipValue()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if seen != [3]bool{true, true, true} {
		return nil, errors.New("payloadType, payload or signatures is missing")
	}
	if len(bytes.TrimLeft(envelope[dec.InputOffset():], " \t\r\n")) > 0 {
		return nil, errors.New("data after the envelope")
	}
	return e, nil
}

func scanSignatures(dec *jsontext.Decoder) ([]rawSignature, error) {
	if err := scanDelim(dec, '['); err != nil {
		return nil, err
	}
	var all []rawSignature
	for dec.PeekKind() == '{' {
		if len(all) == MaxSignatures {
			return nil, refuse(ReasonTooLarge, "envelope carries more than %d signatures", MaxSignatures)
		}
		var s rawSignature
		found := false
		err := scanObject(dec, func(name string) error {
			var err error
			switch name {
			case "keyid":
				s.keyID, err = scanString(dec)
			case "sig":
				found = true
				s.sig, err = scanString(dec)
			default:
				err = dec.SkipValue()
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, errors.New("signature without sig")
		}
		all = append(all, s)
	}
	return all, scanDelim(dec, ']')
}

// scanObject calls member for each name; member must read the value.
func scanObject(dec *jsontext.Decoder, member func(name string) error) error {
	if err := scanDelim(dec, '{'); err != nil {
		return err
	}
	for dec.PeekKind() == '"' {
		name, err := scanString(dec)
		if err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
	}
	return scanDelim(dec, '}')
}

func scanDelim(dec *jsontext.Decoder, want jsontext.Kind) error {
	token, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if token.Kind() != want {
		return errors.New("unexpected JSON value")
	}
	return nil
}

func scanString(dec *jsontext.Decoder) (string, error) {
	token, err := dec.ReadToken()
	if err != nil {
		return "", err
	}
	if token.Kind() != '"' {
		return "", errors.New("unexpected JSON value")
	}
	return token.String(), nil
}

// sealEnvelope is the one spelling in which this package writes envelopes. Signatures carry no
// keyid: it would be the one part of an envelope that could be changed unnoticed, and a verifier
// here has few keys to try.
func sealEnvelope(payloadType string, payload []byte, signatures [][]byte) []byte {
	var b bytes.Buffer
	b.WriteString(`{"payloadType":"` + payloadType + `","payload":"`)
	b.WriteString(base64.StdEncoding.EncodeToString(payload))
	b.WriteString(`","signatures":[`)
	for i, sig := range signatures {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"sig":"` + base64.StdEncoding.EncodeToString(sig) + `"}`)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// decodeEitherBase64 decodes the standard or the URL alphabet, as the DSSE specification demands,
// and of each only the one spelling that encodes to the same text: one set of bytes, one envelope.
func decodeEitherBase64(s string) ([]byte, error) {
	if has(s, '-') || has(s, '_') {
		return decodeBase64(base64.URLEncoding, s)
	}
	return decodeBase64(base64.StdEncoding, s)
}

func decodeBase64(enc *base64.Encoding, s string) ([]byte, error) {
	// The decoder skips line breaks wherever they stand.
	if has(s, '\r') || has(s, '\n') {
		return nil, errors.New("line break in base64")
	}
	return enc.Strict().DecodeString(s)
}

// has looks for one byte, many times as fast as strings.ContainsAny looks for several.
func has(s string, c byte) bool { return strings.IndexByte(s, c) >= 0 }
