package signing

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// doubt is an envelope that the oracle takes as an order and we do not.
type doubt struct {
	text []byte
	e    dsse.Envelope // as the oracle reads it
	role RoleKeys
}

// stricter is the whole list of why we refuse what go-securesystemslib accepts; the other way round
// there is only what oracleVerify says. FuzzDifferential looks for an envelope that no row explains.
var stricter = []struct {
	name   string
	reason Reason
	holds  func(d *doubt) bool
	// example is an envelope of the kind, made of a good order.
	example func(x *differ) []byte
}{
	{
		"an envelope larger than any order", ReasonTooLarge,
		func(d *doubt) bool { return len(d.text) > maxOrderEnvelope },
		func(x *differ) []byte { return append(x.good(), bytes.Repeat([]byte(" "), maxOrderEnvelope)...) },
	}, {
		"more members and escapes than an envelope needs", ReasonTooLarge,
		func(d *doubt) bool { return !plain(d.text) },
		func(x *differ) []byte {
			return bytes.Replace(x.good(), []byte("{"), []byte(`{"x":[`+strings.Repeat("0,", 300)+`0],`), 1)
		},
	}, {
		"JSON that two readers could read differently", ReasonMalformed,
		func(d *doubt) bool { return !oneReading(d.text) },
		func(x *differ) []byte {
			return bytes.Replace(x.good(), []byte("payloadType"), []byte("PAYLOADTYPE"), 1)
		},
	}, {
		"another payload type, well signed", ReasonWrongType,
		func(d *doubt) bool { return d.e.PayloadType != TypeOrder },
		func(x *differ) []byte { return x.seal("application/json", x.payload, x.signers[0]) },
	}, {
		"more than eight signatures", ReasonTooLarge,
		func(d *doubt) bool { return len(d.e.Signatures) > MaxSignatures },
		func(x *differ) []byte { return x.seal(TypeOrder, x.payload, slices.Repeat(x.signers[:1], 9)...) },
	}, {
		"base64 in a second spelling", ReasonMalformed,
		func(d *doubt) bool {
			return secondSpelling(d.e.Payload) || slices.ContainsFunc(d.e.Signatures, func(s dsse.Signature) bool { return secondSpelling(s.Sig) })
		},
		func(x *differ) []byte {
			text := base64.StdEncoding.EncodeToString(x.payload)
			return bytes.Replace(x.good(), []byte(text), []byte(text[:8]+`\n`+text[8:]), 1)
		},
	}, {
		"a signature too long for either algorithm", ReasonMalformed,
		func(d *doubt) bool {
			return slices.ContainsFunc(d.e.Signatures, func(s dsse.Signature) bool { return len(s.Sig) > 2*maxSignature })
		},
		func(x *differ) []byte {
			return bytes.Replace(x.good(), []byte(`]}`), []byte(`,{"sig":"`+strings.Repeat("AAAA", 50)+`"}]}`), 1)
		},
	}, {
		"an order longer than a key service signs", ReasonTooLarge,
		func(d *doubt) bool { return len(d.payload()) > maxOrderPayload },
		func(x *differ) []byte { return x.seal(TypeOrder, make([]byte, MaxOrderMessage), x.signers[0]) },
	}, {
		"more pairs of signature and key than are tried", ReasonUntrusted,
		func(d *doubt) bool { return d.pairs() > len(d.role.Keys)*(d.role.Threshold+1) },
		func(x *differ) []byte {
			junk := `{"sig":"` + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 64)) + `"},`
			return bytes.Replace(x.good(), []byte(`[{`), []byte(`[`+strings.Repeat(junk, 7)+`{`), 1)
		},
	}, {
		"a payload that is no order in canonical form", ReasonMalformed,
		func(d *doubt) bool { return decode(d.payload(), new(Order)) != nil },
		func(x *differ) []byte { return x.seal(TypeOrder, append(bytes.Clone(x.payload), '\n'), x.signers[0]) },
	}, {
		"an order with more secrets than there may be", ReasonTooLarge,
		func(d *doubt) bool { return ReasonOf(decode(d.payload(), new(Order))) == ReasonTooLarge },
		func(x *differ) []byte {
			order := *x.order
			order.Secrets = map[string]string{}
			for i := range maxSecrets + 1 {
				order.Secrets[fmt.Sprint("KPSSH_", i)] = Digest(nil)
			}
			payload, err := encode(&order)
			if err != nil {
				panic(err)
			}
			return x.seal(TypeOrder, payload, x.signers[0])
		},
	},
}

func (d *doubt) payload() []byte {
	payload, err := d.e.DecodeB64Payload()
	if err != nil {
		return nil
	}
	return payload
}

// pairs counts which signatures have the form of which keys' signatures.
func (d *doubt) pairs() int {
	n := 0
	for _, s := range d.e.Signatures {
		sig, err := decodeEitherBase64(s.Sig)
		for _, k := range d.role.Keys {
			if err == nil && k.fits(sig) {
				n++
			}
		}
	}
	return n
}

// oneReading asks encoding/json/v2, which takes names as they are and none twice, whether all that an
// envelope must have is there and of its type.
func oneReading(text []byte) bool {
	var e struct {
		PayloadType *string `json:"payloadType"`
		Payload     *string `json:"payload"`
		Signatures  *[]*struct {
			Sig   *string        `json:"sig"`
			KeyID jsontext.Value `json:"keyid"`
		} `json:"signatures"`
	}
	if jsonv2.Unmarshal(text, &e) != nil || e.PayloadType == nil || e.Payload == nil || e.Signatures == nil {
		return false
	}
	for _, s := range *e.Signatures {
		if s == nil || s.Sig == nil || len(s.KeyID) > 0 && s.KeyID.Kind() != '"' {
			return false
		}
	}
	return true
}

func secondSpelling(s string) bool {
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		if b, err := encoding.DecodeString(s); err == nil && encoding.EncodeToString(b) == s {
			return false
		}
	}
	return true
}

// repeatable signs the same bytes in the same way each time, which fuzzing needs.
type repeatable struct {
	Signer
	private crypto.Signer
}

func (r repeatable) Sign(_ context.Context, pae []byte) ([]byte, error) {
	sum := sha256.Sum256(pae)
	return r.private.Sign(nil, sum[:], crypto.SHA256)
}

// differ makes envelopes for both verifiers.
type differ struct {
	t       testing.TB
	order   *Order
	payload []byte
	// signers are four keys of the role and two of nobody.
	signers []Signer
}

func newDiffer(t testing.TB) *differ {
	t.Helper()
	x := &differ{t: t, order: newPool(t).order}
	for i := range 6 {
		name := fmt.Sprint("differ ", i)
		if i%2 == 0 {
			x.signers = append(x.signers, ed25519Signer(t, name))
		} else {
			x.signers = append(x.signers, repeatable{p256Signer(t, name), p256Private(t, name)})
		}
	}
	var err error
	if x.payload, err = canonical(x.order); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *differ) role(threshold int) RoleKeys { return role(threshold, x.signers[:4]...) }

func (x *differ) seal(payloadType string, payload []byte, signers ...Signer) []byte {
	return signPayload(x.t, payloadType, payload, signers...)
}

func (x *differ) good() []byte { return x.seal(TypeOrder, x.payload, x.signers[0]) }

// compare asks both. It fails when we say yes and the oracle no, and returns the rows that explain the
// opposite.
func (x *differ) compare(text []byte, r RoleKeys) (rows []string, ours error) {
	x.t.Helper()
	order := new(Order)
	o, ours := openUnder(text, order, r)
	payload, theirs := oracleVerify(x.t, text, r)
	if ours == nil {
		if theirs != nil || !bytes.Equal(payload, o.payload) {
			x.t.Fatalf("we accept and the oracle says %v: %q", theirs, text)
		}
		return nil, nil
	}
	if theirs != nil {
		return nil, ours
	}
	d := &doubt{text: text, role: r}
	if err := json.Unmarshal(text, &d.e); err != nil {
		x.t.Fatal(err)
	}
	for _, row := range stricter {
		if row.reason == ReasonOf(ours) && row.holds(d) {
			rows = append(rows, row.name)
		}
	}
	if len(rows) == 0 {
		x.t.Fatalf("the oracle accepts what we refuse with %v, and no row says why: %q", ours, text)
	}
	return rows, ours
}

func TestWhereWeAreStricterThanTheOracle(t *testing.T) {
	x := newDiffer(t)
	for _, row := range stricter {
		t.Run(row.name, func(t *testing.T) {
			rows, ours := x.compare(row.example(x), x.role(1))
			if !slices.Contains(rows, row.name) {
				t.Errorf("we say %v, explained by %q", ours, rows)
			}
		})
	}
	if rows, ours := x.compare(x.good(), x.role(1)); ours != nil || rows != nil {
		t.Errorf("the order itself: %v, %v", ours, rows)
	}
}

// choices turns the bytes of a fuzzer into decisions; when they are used up all are 0.
type choices []byte

func (c *choices) below(n int) int {
	if len(*c) == 0 {
		return 0
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return int(b) % n
}

// build makes an envelope of choices, most of them well signed, which mutated bytes never are.
func (x *differ) build(c *choices, payload []byte) []byte {
	payloadType := []string{TypeOrder, TypeOrder, TypeOrder, TypeReceipt, "application/json", ""}[c.below(6)]
	if c.below(3) == 0 {
		payload = x.payload
	}
	var sigs []string
	for range c.below(12) {
		sigs = append(sigs, x.signatureOf(c, payloadType, payload))
	}
	name := "payload"
	if c.below(16) == 1 {
		name = "Payload"
	}
	fields := []string{
		fmt.Sprintf(`"payloadType":%q`, payloadType), fmt.Sprintf(`"%s":"%s"`, name, spell(c, payload)),
		`"signatures":[` + strings.Join(sigs, ",") + `]`,
	}
	switch c.below(16) {
	case 1:
		fields = append(fields, fields[c.below(3)])
	case 2:
		fields = append(fields, `"x":[{"payload":null}]`)
	case 3:
		slices.Reverse(fields)
	}
	return []byte("{" + strings.Join(fields, []string{",", " ,\n\t"}[c.below(2)]) + "}" + []string{"", "", "\n", "{}"}[c.below(4)])
}

func (x *differ) signatureOf(c *choices, payloadType string, payload []byte) string {
	s := x.signers[c.below(len(x.signers))]
	sig, err := s.Sign(context.Background(), dsse.PAE(payloadType, payload))
	if err != nil {
		x.t.Fatal(err)
	}
	switch c.below(12) {
	case 1:
		sig[c.below(len(sig))] ^= 1
	case 2:
		sig = sig[:c.below(len(sig))]
	case 3:
		sig = append(sig, 0)
	case 4:
		sig = bytes.Repeat([]byte{7}, 64)
	}
	keyID := []string{"", `"keyid":"",`, `"keyid":"any",`, `"keyid":null,`, fmt.Sprintf(`"keyid":%q,`, x.signers[c.below(4)].Public().ID())}[c.below(5)]
	return fmt.Sprintf(`{%s"sig":"%s"}`, keyID, spell(c, sig))
}

// spell is base64 as one writer or another has it.
func spell(c *choices, b []byte) string {
	std := base64.StdEncoding.EncodeToString(b)
	switch c.below(12) {
	case 1:
		return base64.URLEncoding.EncodeToString(b)
	case 2:
		return base64.RawStdEncoding.EncodeToString(b)
	case 3:
		return std[:len(std)/2] + `\n` + std[len(std)/2:]
	case 4:
		return strings.ReplaceAll(std, "/", `\/`)
	case 5:
		if i := strings.IndexByte(std, '='); i > 0 {
			return std[:i-1] + string(std[i-1]+1) + std[i:] // bits to spare
		}
	}
	return std
}

// FuzzDifferential holds ours against go-securesystemslib: on envelopes as they come, and on ones that
// are built and signed from the fuzzer's choices.
func FuzzDifferential(f *testing.F) {
	x := newDiffer(f)
	for _, row := range stricter {
		f.Add(row.example(x), []byte{}, []byte{})
	}
	f.Add(x.good(), []byte{}, x.payload)
	f.Add([]byte{}, []byte{0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0}, x.payload)
	f.Add([]byte{}, []byte{1, 0, 0, 9, 0, 1, 2, 3, 4, 5, 0, 0, 0, 4, 4, 4, 0, 0, 1, 1, 1}, []byte("{}"))
	f.Fuzz(func(t *testing.T, text, decisions, payload []byte) {
		x := *x
		x.t = t
		c := choices(decisions)
		r := x.role(1 + c.below(3))
		if len(text) == 0 {
			text = x.build(&c, payload)
		}
		_, _ = x.compare(text, r)
	})
}
