package signing

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// checkAccepted holds what every accepted envelope must fulfil: its payload is canonical, and the
// independent verifier accepts it under the same keys.
func checkAccepted(t *testing.T, envelope []byte, doc document, r RoleKeys) {
	t.Helper()
	o, err := openEnvelope(envelope, doc.payloadType())
	if err != nil {
		t.Fatalf("accepted, but not an envelope: %v", err)
	}
	doc.normalise()
	again, err := encode(doc)
	if err != nil || !bytes.Equal(again, o.payload) {
		t.Fatalf("accepted %q, which is not canonical: %v", o.payload, err)
	}
	if payload, err := oracleVerify(t, envelope, r); err != nil || !bytes.Equal(payload, o.payload) {
		t.Fatalf("accepted, and the oracle says %v", err)
	}
}

func seed(f *testing.F, s slot) {
	f.Helper()
	f.Add(s.envelope)
	f.Add([]byte(`{"payloadType":"` + s.payloadType + `","payload":"e30=","signatures":[{"sig":"AA==","keyid":""}]}`))
	f.Add([]byte(`{"payloadType":"` + s.payloadType + `","payload":"e30","signatures":[{}],"signatures":[]}`))
	f.Add(bytes.ReplaceAll(s.envelope, []byte("="), nil))
	f.Add(append(bytes.Clone(s.envelope), '\n'))
	for _, envelope := range published(f, s.payloadType) {
		f.Add(envelope)
	}
}

// published are the documents of a type among the vectors of test/vectors, good and bad.
func published(f *testing.F, payloadType string) (all [][]byte) {
	f.Helper()
	name := strings.TrimSuffix(strings.TrimPrefix(payloadType, "application/vnd.kpssh."), ".v1+json")
	pattern := "../test/vectors/" + name + "/*/" + name + "*.json"
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		f.Fatalf("no vectors at %s: %v", pattern, err)
	}
	for _, file := range files {
		envelope, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, envelope)
	}
	return all
}

func FuzzEnvelope(f *testing.F) {
	for _, s := range newPool(f).slots(f) {
		seed(f, s)
	}
	f.Fuzz(func(t *testing.T, envelope []byte) {
		o, err := openEnvelope(envelope, "")
		if (err == nil) != (o != nil) || (err != nil && ReasonOf(err) == "") {
			t.Fatalf("%v, %v", o, err)
		}
		if err != nil {
			return
		}
		if !bytes.Equal(o.pae(), dsse.PAE(o.payloadType, o.payload)) {
			t.Fatalf("the pre-authentication encoding is %q", o.pae())
		}
		var sigs [][]byte
		for _, s := range o.signatures {
			sigs = append(sigs, s.sig)
		}
		if in, err := Inspect(envelope, ed25519Key(o.payload[:min(32, len(o.payload))])); err == nil && !bytes.Equal(in.Payload, o.payload) {
			t.Fatalf("Inspect shows %q", in.Payload)
		}
		again, err := openEnvelope(sealEnvelope(o.payloadType, o.payload, sigs), o.payloadType)
		if err != nil || !bytes.Equal(again.payload, o.payload) || len(again.signatures) != len(o.signatures) {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}

func FuzzRoot(f *testing.F) {
	p := newPool(f)
	seed(f, p.slots(f)["root"])
	next := *p.rootDoc
	next.Version = 2
	f.Add(sign(f, &next, p.root))
	f.Fuzz(func(t *testing.T, envelope []byte) {
		if root, err := OpenFirstRoot(envelope); err == nil {
			checkAccepted(t, envelope, root, root.Root)
		}
		if root, err := NextRoot(p.rootDoc, envelope); err == nil {
			checkAccepted(t, envelope, root, p.rootDoc.Root)
		}
	})
}

func FuzzAllowlist(f *testing.F) {
	p := newPool(f)
	seed(f, p.slots(f)["allowlist"])
	f.Fuzz(func(t *testing.T, envelope []byte) {
		if list, err := OpenAllowlist(envelope, p.rootDoc); err == nil {
			checkAccepted(t, envelope, list, p.rootDoc.Author)
		}
	})
}

func FuzzOrder(f *testing.F) {
	p := newPool(f)
	seed(f, p.slots(f)["order"])
	f.Fuzz(func(t *testing.T, envelope []byte) {
		if order, err := OpenOrder(envelope, p.rootDoc); err == nil {
			checkAccepted(t, envelope, order, p.rootDoc.Dispatch)
		}
	})
}

func FuzzHello(f *testing.F) {
	p := newPool(f)
	seed(f, p.slots(f)["hello"])
	f.Fuzz(func(t *testing.T, envelope []byte) {
		if hello, err := OpenHello(envelope, p.host.Public()); err == nil {
			checkAccepted(t, envelope, hello, role(1, p.host))
		}
	})
}

func FuzzReceipt(f *testing.F) {
	p := newPool(f)
	seed(f, p.slots(f)["receipt"])
	f.Fuzz(func(t *testing.T, envelope []byte) {
		if receipt, err := OpenReceipt(envelope, p.host.Public()); err == nil {
			checkAccepted(t, envelope, receipt, role(1, p.host))
		}
	})
}

// FuzzMalleability reads what the fuzzer makes, past all signatures: whatever is accepted, as any
// document, as parameters or as a key, is exactly what would have been written for it.
func FuzzMalleability(f *testing.F) {
	types := []string{TypeRoot, TypeAllowlist, TypeOrder, TypeHello, TypeReceipt}
	parameters, key := uint8(len(types)), uint8(len(types)+1)
	for _, s := range newPool(f).slots(f) {
		f.Add(uint8(slices.Index(types, s.payloadType)), payloadOf(f, s.envelope))
	}
	for i, payloadType := range types {
		for _, envelope := range published(f, payloadType) {
			if o, err := openEnvelope(envelope, payloadType); err == nil {
				f.Add(uint8(i), o.payload)
			}
		}
	}
	f.Add(parameters, []byte(`{"KPSSH_A":"ü","KPSSH_B":"<a&b>"}`))
	f.Add(key, []byte(ed25519Signer(f, "a").Public().String()))
	f.Add(key, []byte(p256Signer(f, "a").Public().String()))
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		var again []byte
		var err error
		switch which %= key + 1; which {
		case parameters:
			var params map[string]string
			if params, err = DecodeParameters(text); err == nil {
				again, err = EncodeParameters(params)
			}
		case key:
			var k Key
			if k, err = ParseKey(string(text)); err == nil {
				again = []byte(k.String())
				k.Verify([]byte("message"), make([]byte, 64))
			}
		default:
			doc := newDocument(types[which])
			if err = decode(text, doc); err == nil {
				again, err = canonical(doc)
			}
		}
		switch {
		case err != nil && ReasonOf(err) == "":
			t.Fatalf("refused without a reason: %v", err)
		case err == nil && !bytes.Equal(again, text):
			t.Fatalf("accepted %q, written as %q", text, again)
		}
	})
}

func FuzzParameters(f *testing.F) {
	files, err := filepath.Glob("../test/vectors/*/*/parameters.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no vectors", err)
	}
	for _, file := range files {
		frame, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame)
	}
	f.Add([]byte(`{"KPSSH_A":"ü","KPSSH_B":"<a&b>"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, frame []byte) {
		params, err := DecodeParameters(frame)
		if err != nil {
			return
		}
		again, err := EncodeParameters(params)
		if err != nil || !bytes.Equal(again, frame) {
			t.Fatalf("read %q, written %q, %v", frame, again, err)
		}
		if back, err := DecodeParameters(again); err != nil || !maps.Equal(back, params) {
			t.Fatalf("%v", err)
		}
	})
}

// FuzzValue holds a value against every type: no panic, no control character is let through, and
// a value that passes with a pin is the pin.
func FuzzValue(f *testing.F) {
	types := []ParamType{ParamString, ParamEndpoint, ParamCABundle, ParamIP, ParamHost, ParamNodeName, ParamURI, ParamLabels, ParamTaints, ParamToken}
	f.Add("https://10.0.0.1:6443", `[a-z]+`)
	f.Add("a=b,c.d/e=f", `(?i)x|y`)
	f.Add(bundle(caCert(f, "a")), `\Q`)
	f.Fuzz(func(t *testing.T, value, pattern string) {
		for _, paramType := range types {
			p := Parameter{Name: "KPSSH_X", Type: paramType}
			if err := p.checkValue(value); err == nil && !isText(value) {
				t.Fatalf("%s takes %q", paramType, value)
			}
			p.Pattern = pattern
			if p.check(map[string]bool{}) == nil {
				_ = p.checkValue(value)
			}
			if paramType == ParamCABundle {
				continue
			}
			p = Parameter{Name: "KPSSH_X", Type: paramType, Pins: []string{"pin"}}
			if err := p.checkValue(value); (err == nil) != (value == "pin") || err != nil && ReasonOf(err) != ReasonPin {
				t.Fatalf("%s with a pin takes %q: %v", paramType, value, err)
			}
		}
	})
}
