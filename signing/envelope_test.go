package signing

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// Every byte of every document, changed to each of several others: nothing is accepted. This is
// why envelopes are written without keyid, and why base64 has one spelling.
func TestEveryByteFlipped(t *testing.T) {
	p := newPool(t)
	each(t, p.slots(t), func(t *testing.T, s slot) {
		if err := s.open(s.envelope); err != nil {
			t.Fatalf("the document itself: %v", err)
		}
		for i := range s.envelope {
			for _, mask := range []byte{0x01, 0x02, 0x20, 0x80, 0xff} {
				bad := bytes.Clone(s.envelope)
				bad[i] ^= mask
				if s.open(bad) == nil {
					t.Errorf("byte %d (%q) ^ %#x was accepted", i, s.envelope[i], mask)
				}
			}
		}
	})
}

func TestEveryPrefixIsRefused(t *testing.T) {
	p := newPool(t)
	each(t, p.slots(t), func(t *testing.T, s slot) {
		for i := range s.envelope {
			if s.open(s.envelope[:i]) == nil {
				t.Errorf("the first %d bytes were accepted", i)
			}
		}
	})
}

// Every bit of every payload, signed again by the right key: a payload is accepted only if it is
// canonical, and then it says something else.
func TestEveryPayloadBitFlippedAndSignedStaysCanonical(t *testing.T) {
	p := newPool(t)
	signers := map[string]Signer{"order": p.dispatch, "hello": p.host, "receipt": p.host}
	for name, s := range p.slots(t) {
		signer := signers[name]
		if signer == nil {
			continue
		}
		payload := payloadOf(t, s.envelope)
		for i := range payload {
			bad := bytes.Clone(payload)
			bad[i] ^= 1
			envelope := signPayload(t, s.payloadType, bad, signer)
			if s.open(envelope) != nil {
				continue
			}
			doc := newDocument(s.payloadType)
			if err := decode(bad, doc); err != nil {
				t.Fatal(err)
			}
			if again, _ := encode(doc); !bytes.Equal(again, bad) {
				t.Errorf("%s: byte %d: accepted, and not canonical", name, i)
			}
		}
	}
}

// Every document in every slot, and with every slot's own key: only the diagonal passes.
func TestNoDocumentIsTakenForAnother(t *testing.T) {
	p := newPool(t)
	slots := p.slots(t)
	signers := map[string]Signer{"root": p.root, "allowlist": p.author, "order": p.dispatch, "hello": p.host, "receipt": p.host}
	each(t, slots, func(t *testing.T, into slot) {
		for name, from := range slots {
			resigned := signPayload(t, from.payloadType, payloadOf(t, from.envelope), signers[nameOf(slots, into)])
			for how, envelope := range map[string][]byte{"as it is": from.envelope, "signed with this slot's key": resigned} {
				err := into.open(envelope)
				if from.payloadType == into.payloadType {
					wantReason(t, err, "")
					continue
				}
				if ReasonOf(err) != ReasonWrongType {
					t.Errorf("%s %s: %v, want %s", name, how, err, ReasonWrongType)
				}
			}
			// The right type around another document's bytes, with a good signature.
			relabelled := signPayload(t, into.payloadType, payloadOf(t, from.envelope), signers[nameOf(slots, into)])
			if err := into.open(relabelled); (err == nil) != (from.payloadType == into.payloadType) {
				t.Errorf("%s under the label of this slot: %v", name, err)
			}
		}
	})
}

func nameOf(slots map[string]slot, s slot) string {
	for name, other := range slots {
		if other.payloadType == s.payloadType {
			return name
		}
	}
	return ""
}

func TestTypesOfOthersAreRefused(t *testing.T) {
	p := newPool(t)
	payload := payloadOf(t, sign(t, p.order, p.dispatch))
	for _, other := range []string{
		"", "application/vnd.in-toto+json", "application/json", TypeOrder + " ", strings.ToUpper(TypeOrder),
		"application/vnd.kpssh.order.v2+json", "application/vnd.kpssh.order.v1+json\u0000", TypeOrder + ";charset=utf-8",
	} {
		_, err := OpenOrder(signPayload(t, other, payload, p.dispatch), p.rootDoc)
		if err == nil {
			t.Errorf("type %q was accepted", other)
		}
	}
}

func TestEnvelopes(t *testing.T) {
	p := newPool(t)
	payload := payloadOf(t, sign(t, p.order, p.dispatch))
	sig, err := p.dispatch.Sign(context.Background(), dsse.PAE(TypeOrder, payload))
	if err != nil {
		t.Fatal(err)
	}
	std, url := base64.StdEncoding.EncodeToString, base64.URLEncoding.EncodeToString
	good := fmt.Sprintf(`{"sig":%q}`, std(sig))
	junk := fmt.Sprintf(`{"sig":%q}`, std(bytes.Repeat([]byte{7}, 64)))
	with := func(format string, args ...any) string {
		return fmt.Sprintf(strings.ReplaceAll(format, "TYPE", TypeOrder), args...)
	}
	body := func(payload string, signatures ...string) string {
		return with(`{"payloadType":"TYPE","payload":%q,"signatures":[%s]}`, payload, strings.Join(signatures, ","))
	}
	list := func(n int, s string) []string { return strings.Split(strings.Repeat(s+"\n", n-1)+s, "\n") }

	each(t, map[string]struct {
		envelope string
		want     Reason
	}{
		"as this package writes it":                         {body(std(payload), good), ""},
		"white space around it is no matter":                {" \n\t" + body(std(payload), good) + "\r\n", ""},
		"fields in another order":                           {with(`{"signatures":[%s],"payload":%q,"payloadType":"TYPE"}`, good, std(payload)), ""},
		"unknown fields are passed over (DSSE)":             {with(`{"x":{"y":[1,null,"z"]},"payloadType":"TYPE","payload":%q,"signatures":[{"sig":%q,"cert":"?"}],"n":1e9}`, std(payload), std(sig)), ""},
		"the URL alphabet (DSSE)":                           {body(url(payload), fmt.Sprintf(`{"sig":%q}`, url(sig))), ""},
		"a keyid that lies is a hint and no more":           {body(std(payload), fmt.Sprintf(`{"keyid":"sha256:00","sig":%q}`, std(sig))), ""},
		"a keyid that helps":                                {body(std(payload), append(list(7, junk), fmt.Sprintf(`{"keyid":%q,"sig":%q}`, p.dispatch.Public().ID(), std(sig)))...), ""},
		"a signature of nobody before the good one":         {body(std(payload), junk, good), ""},
		"eight signatures, the first one good":              {body(std(payload), append([]string{good}, list(7, junk)...)...), ""},
		"nine signatures":                                   {body(std(payload), append([]string{good}, list(8, junk)...)...), ReasonTooLarge},
		"many signatures":                                   {body(std(payload), list(500, `{"sig":""}`)...), ReasonTooLarge},
		"more junk than is tried":                           {body(std(payload), append(list(7, junk), good)...), ReasonUntrusted},
		"no signature":                                      {body(std(payload)), ReasonUntrusted},
		"an empty signature":                                {body(std(payload), `{"sig":""}`), ReasonUntrusted},
		"a signature that is null":                          {body(std(payload), `{"sig":null}`), ReasonMalformed},
		"signatures that are null":                          {with(`{"payloadType":"TYPE","payload":%q,"signatures":null}`, std(payload)), ReasonMalformed},
		"signatures that are an object":                     {with(`{"payloadType":"TYPE","payload":%q,"signatures":{}}`, std(payload)), ReasonMalformed},
		"a signature that is a string":                      {body(std(payload), fmt.Sprintf("%q", std(sig))), ReasonMalformed},
		"a signature without sig":                           {body(std(payload), `{"keyid":""}`), ReasonMalformed},
		"a signature that never ends":                       {body(std(payload), fmt.Sprintf(`{"sig":%q}`, std(make([]byte, 3000)))), ReasonMalformed},
		"a payload twice":                                   {with(`{"payloadType":"TYPE","payload":%q,"payload":%q,"signatures":[%s]}`, std(payload), std(payload), good), ReasonMalformed},
		"a sig twice":                                       {body(std(payload), fmt.Sprintf(`{"sig":%q,"sig":%q}`, std(sig), std(sig))), ReasonMalformed},
		"an unknown field twice":                            {with(`{"x":1,"x":1,"payloadType":"TYPE","payload":%q,"signatures":[%s]}`, std(payload), good), ReasonMalformed},
		"names in another case are unknown":                 {with(`{"PayloadType":"TYPE","payload":%q,"signatures":[%s]}`, std(payload), good), ReasonMalformed},
		"names that fold to the right ones (U+017F)":        {with(`{"payloadType":"TYPE","payload":%q,"`+"\u017f"+`ignatures":[%s]}`, std(payload), good), ReasonMalformed},
		"no payload":                                        {with(`{"payloadType":"TYPE","signatures":[%s]}`, good), ReasonMalformed},
		"a payload that is not a string":                    {with(`{"payloadType":"TYPE","payload":{},"signatures":[%s]}`, good), ReasonMalformed},
		"a payload that is not base64":                      {body("{}", good), ReasonMalformed},
		"base64 without padding":                            {body(strings.TrimRight(std(payload), "=")+"A", good), ReasonMalformed},
		"base64 with a line break":                          {body(std(payload)[:4]+"\n"+std(payload)[4:], good), ReasonMalformed},
		"base64 with bits to spare":                         {body(spareBits(t, payload), good), ReasonMalformed},
		"something after it":                                {body(std(payload), good) + "{}", ReasonMalformed},
		"two of them":                                       {body(std(payload), good) + body(std(payload), good), ReasonMalformed},
		"a byte order mark":                                 {"\ufeff" + body(std(payload), good), ReasonMalformed},
		"invalid UTF-8":                                     {strings.Replace(body(std(payload), good), `{`, "{\"\xff\":1,", 1), ReasonMalformed},
		"null":                                              {"null", ReasonMalformed},
		"an array":                                          {"[]", ReasonMalformed},
		"nothing":                                           {"", ReasonMalformed},
		"more members than an envelope needs":               {with(`{"x":[%s0],"payloadType":"TYPE","payload":%q,"signatures":[%s]}`, strings.Repeat("0,", 300), std(payload), good), ReasonTooLarge},
		"more escapes than an envelope needs":               {with(`{"x":"%s","payloadType":"TYPE","payload":%q,"signatures":[%s]}`, strings.Repeat(`\n`, 500), std(payload), good), ReasonTooLarge},
		"escaped slashes, as some writers have them":        {strings.ReplaceAll(body(std(payload), good), "/", `\/`), ""},
		"too deep":                                          {strings.Repeat("[", 5000), ReasonTooLarge},
		"too large":                                         {body(std(payload), good) + strings.Repeat(" ", maxOrderEnvelope), ReasonTooLarge},
		"a payload of more bytes than a key service signs":  {body(std(make([]byte, MaxOrderMessage)), good), ReasonTooLarge},
		"a number that is no number":                        {with(`{"n":01,"payloadType":"TYPE","payload":%q,"signatures":[%s]}`, std(payload), good), ReasonMalformed},
		"comments":                                          {"/* */" + body(std(payload), good), ReasonMalformed},
		"another type, whatever else is wrong with it":      {`{"payloadType":"application/json","payload":"?","signatures":[{"sig":"?"}]}`, ReasonWrongType},
		"another type, found before more signatures matter": {`{"payloadType":"application/json","payload":"","signatures":[]}`, ReasonWrongType},
	}, func(t *testing.T, c struct {
		envelope string
		want     Reason
	}) {
		_, err := OpenOrder([]byte(c.envelope), p.rootDoc)
		wantReason(t, err, c.want)
	})
}

// spareBits is base64 of payload whose last character carries bits that decode to nothing.
func spareBits(t testing.TB, payload []byte) string {
	t.Helper()
	s := base64.StdEncoding.EncodeToString(append(bytes.Clone(payload), bytes.Repeat([]byte{' '}, 2-len(payload)%3+2)...))
	for len(s) > 0 && !strings.HasSuffix(s, "=") {
		payload = append(bytes.Clone(payload), ' ')
		s = base64.StdEncoding.EncodeToString(payload)
	}
	i := strings.IndexByte(s, '=') - 1
	return s[:i] + string(s[i]+1) + s[i+1:]
}

// The published vector of the DSSE specification (protocol.md, "Test Vectors"). Its signature is
// r ‖ s, which only the test turns into DER: this package refuses r ‖ s.
func TestPublishedDSSEVector(t *testing.T) {
	for _, c := range []struct{ payloadType, payload, want string }{
		{"http://example.com/HelloWorld", "hello world", "DSSEv1 29 http://example.com/HelloWorld 11 hello world"},
		{"", "", "DSSEv1 0  0 "},
		{"http://example.com/HelloWorld", "ಠ", "DSSEv1 29 http://example.com/HelloWorld 3 ಠ"},
	} {
		o := opened{payloadType: c.payloadType, payload: []byte(c.payload)}
		if got := string(o.pae()); got != c.want {
			t.Errorf("PAE is %q, want %q", got, c.want)
		}
	}

	const rs = "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
	raw, err := base64.StdEncoding.DecodeString(rs)
	if err != nil {
		t.Fatal(err)
	}
	key, err := KeyOf(p256Public(t,
		"46950820868899156662930047687818585632848591499744589407958293238635476079160",
		"5640078356564379163099075877009565129882514886557779369047442380624545832820"))
	if err != nil {
		t.Fatal(err)
	}
	message := []byte("DSSEv1 29 http://example.com/HelloWorld 11 hello world")
	if !key.Verify(message, derSignature(t, raw)) {
		t.Error("the published signature does not verify")
	}
	if key.Verify(message, raw) {
		t.Error("r ‖ s was accepted")
	}
	envelope := `{"payload": "aGVsbG8gd29ybGQ=", "payloadType": "http://example.com/HelloWorld", "signatures": [{"sig": "` + rs + `"}]}`
	e, err := scanEnvelope([]byte(envelope))
	if err != nil {
		t.Fatal(err)
	}
	var want dsse.Envelope
	if err := json.Unmarshal([]byte(envelope), &want); err != nil {
		t.Fatal(err)
	}
	if e.payloadType != want.PayloadType || e.payload != want.Payload || len(e.signatures) != 1 || e.signatures[0].sig != want.Signatures[0].Sig {
		t.Errorf("read %v, want %v", *e, want)
	}
}

func TestPanicBecomesRefusal(t *testing.T) {
	err := func() (err error) {
		defer refusePanic(&err)
		panic("unexpected")
	}()
	wantReason(t, err, ReasonMalformed)
}

func TestReasonOf(t *testing.T) {
	wantReason(t, nil, "")
	if r := ReasonOf(errors.New("pin: no refusal")); r != "" {
		t.Errorf("an error that is no refusal has reason %q", r)
	}
	wantReason(t, fmt.Errorf("reading: %w", &Refusal{Reason: ReasonPin}), ReasonPin)
}

func TestPayloadDigest(t *testing.T) {
	p := newPool(t)
	each(t, p.slots(t), func(t *testing.T, s slot) {
		got, err := PayloadDigest(s.envelope)
		if err != nil || got != Digest(payloadOf(t, s.envelope)) {
			t.Errorf("got %q, %v", got, err)
		}
	})
	_, err := PayloadDigest([]byte(`{"payloadType":"application/json","payload":"","signatures":[{"sig":""}]}`))
	wantReason(t, err, ReasonWrongType)
}

// Padding that readers pass over is gone, and a document of this package's own comes back as it was.
func TestResealDropsWhatNobodySigned(t *testing.T) {
	p := newPool(t)
	each(t, p.slots(t), func(t *testing.T, s slot) {
		padded := append(bytes.TrimSuffix(bytes.Clone(s.envelope), []byte("}")), ` , "x" : "<<<"}`...)
		padded = bytes.Replace(padded, []byte(`{"sig"`), []byte(`{"keyid":"k","x":[],"sig"`), 1)
		for _, envelope := range [][]byte{s.envelope, padded} {
			if got, err := Reseal(envelope); err != nil || !bytes.Equal(got, s.envelope) {
				t.Errorf("got %s, %v", got, err)
			}
		}
		_, err := Reseal([]byte(`{}`))
		wantReason(t, err, ReasonMalformed)
	})
}
