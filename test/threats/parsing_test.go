//go:build e2e

package threats

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/elliptic"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// cost is the processor time that a root stage takes from its hello to its end.
func (h *host) cost(attack func(*session)) time.Duration {
	h.t.Helper()
	s := h.open()
	attack(s)
	_, _ = s.read()
	s.end()
	use := s.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// A hostile envelope costs no more than twice a good one: signatures are counted before any is tried.
func TestB1_ManySignaturesCostNoMoreThanAFew(t *testing.T) {
	w := newWorld(t, join)
	// A good list of the same size, so that reading and hashing are the same on both sides.
	const filler = 900
	for i := range filler {
		w.List.Scripts = append(w.List.Scripts, allow(fmt.Sprintf("join: echo %d", i)))
	}
	w.ListEnv = sign(t, &w.List, w.Author)
	h := joined(t, w)
	stranger := newSigner(t)
	order := func(s *session) []byte {
		p := s.plan(join, "uid-1", 6)
		s.bind(p)
		return payloadOf(t, sign(t, &p.Order, w.Dispatch))
	}
	sigs := func(n int, payload []byte, kind string) []byte {
		sig := signature(t, kind, payload, stranger)
		all := make([][]byte, n)
		for i := range all {
			all[i] = sig
		}
		return enclose(kind, payload, all...)
	}
	// Twenty thousand signatures are 2 MB; as many as a frame holds are the worst that a frame can bring.
	atCap := func(kind wire.Type, payloadType string, payload []byte) []byte {
		one := len(sigs(2, payload, payloadType)) - len(sigs(1, payload, payloadType))
		n := (kind.Cap() - len(sigs(1, payload, payloadType))) / one
		return sigs(n, payload, payloadType)
	}
	huge := sigs(20_000, []byte("{}"), signing.TypeAllowlist)
	listFull := atCap(wire.Allowlist, signing.TypeAllowlist, []byte("{}"))
	rootFull := atCap(wire.Root, signing.TypeRoot, []byte("{}"))
	good := map[string]func(*session){
		"list": func(s *session) { s.frame(wire.Allowlist, w.ListEnv); s.hangUp() },
		"root": func(s *session) { s.frame(wire.Root, w.Roots[1]); s.hangUp() },
		"order": func(s *session) {
			s.frame(wire.Order, forge(t, signing.TypeOrder, order(s), w.Dispatch))
			s.hangUp()
		},
	}
	header := func(kind wire.Type, n int) []byte {
		return []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n), byte(kind)}
	}
	hostile := map[string]struct {
		like   string
		attack func(*session)
	}{
		"B1 20 000 signatures":          {"list", func(s *session) { s.raw(append(header(wire.Allowlist, len(huge)), huge...)); s.hangUp() }},
		"B1 a list of as many as fit":   {"list", func(s *session) { s.frame(wire.Allowlist, listFull); s.hangUp() }},
		"B1 a root of as many as fit":   {"root", func(s *session) { s.frame(wire.Root, rootFull); s.hangUp() }},
		"B1 an order of as many as fit": {"order", func(s *session) { s.frame(wire.Order, atCap(wire.Order, signing.TypeOrder, order(s))); s.hangUp() }},
		"B1 an order with as many as are tried": {"order", func(s *session) {
			s.frame(wire.Order, sigs(signing.MaxSignatures, order(s), signing.TypeOrder))
			s.hangUp()
		}},
		"B1 a list with as many as are tried": {"list", func(s *session) {
			s.frame(wire.Allowlist, sigs(signing.MaxSignatures, payloadOf(t, w.ListEnv), signing.TypeAllowlist))
			s.hangUp()
		}},
		"B1 a list of nested lists up to its size": {"list", func(s *session) {
			s.frame(wire.Allowlist, []byte(strings.Repeat("[", wire.Allowlist.Cap()-8)))
			s.hangUp()
		}},
	}
	const rounds = 15
	for _, name := range slices.Sorted(maps.Keys(hostile)) {
		c := hostile[name]
		t.Run(name, func(t *testing.T) {
			// Both sides in turns, so that what else the machine does meets both; the best of each is what it costs.
			best := map[bool]time.Duration{}
			for range rounds {
				for bad, f := range map[bool]func(*session){true: c.attack, false: good[c.like]} {
					if took := h.cost(f); best[bad] == 0 || took < best[bad] {
						best[bad] = took
					}
				}
			}
			ratio := float64(best[true]) / float64(best[false])
			t.Logf("hostile %v, good %v of processor time for the whole session: %.2f times", best[true], best[false], ratio)
			if ratio > 2 {
				t.Errorf("costs %.1f times a good one", ratio)
			}
		})
	}
}

// misspellings are payloads that two JSON readers could read differently, made of a good order's.
func misspellings(good string) map[string]string {
	r := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	secrets := good[strings.Index(good, `"secrets":`):strings.Index(good, `,"timeout`)]
	challenge := good[strings.Index(good, `"challenge":`):strings.Index(good, `,"allowlist`)]
	return map[string]string{
		"nothing":                           "",
		"null":                              "null",
		"an array around it":                "[" + good + "]",
		"an empty object":                   "{}",
		"cut short":                         good[:len(good)-1],
		"a line break after it":             good + "\n",
		"a space before it":                 " " + good,
		"a space within":                    r(`,"fence"`, `, "fence"`),
		"a byte order mark":                 "\ufeff" + good,
		"a second object after it":          good + "{}",
		"a comma at the end":                good[:len(good)-1] + ",}",
		"a comment":                         r("{", "{/**/"),
		"an unknown field":                  r("{", `{"x":1,`),
		"an unknown field that is null":     r("{", `{"x":null,`),
		"a field twice, the same":           r(`"phase":"join"`, `"phase":"join","phase":"join"`),
		"a field twice, the good one last":  r(`"phase":"join"`, `"phase":"leave","phase":"join"`),
		"a field twice, the good one first": r(`"phase":"join"`, `"phase":"join","phase":"leave"`),
		"a field in upper case":             r(`"phase"`, `"PHASE"`),
		"a field in upper case beside it":   r(`"phase":"join"`, `"phase":"join","PHASE":"leave"`),
		"a field with the letter U+017F":    r(`"phase"`, `"pha`+"\u017f"+`e"`),
		"a field with U+017F beside it":     r(`"phase":"join"`, `"phase":"join","pha`+"\u017f"+`e":"leave"`),
		"a field with an escape":            r(`"phase"`, `"ph\u0061se"`),
		"a value with an escape":            r(`"join"`, `"jo\u0069n"`),
		"a value with invalid UTF-8":        r(`"join"`, "\"jo\xffin\""),
		"a value with a lone surrogate":     r(`"join"`, `"\ud800"`),
		"a value with NUL":                  r(`"join"`, `"join\u0000"`),
		"a raw control character":           r(`"join"`, "\"join\x01\""),
		"a field that is null":              r(`"phase":"join"`, `"phase":null`),
		"a field that is missing":           r(`"phase":"join",`, ``),
		"a field of another type":           r(`"phase":"join"`, `"phase":1`),
		"a map that is null":                r(secrets, `"secrets":null`),
		"a map with a key twice":            r(`"secrets":{`, `"secrets":{"`+secret+`":"`+signing.Digest(nil)+`",`),
		"a list instead of a map":           r(secrets, `"secrets":[]`),
		"fields in another order":           `{"timeoutSeconds":60,` + strings.Replace(good[1:], `,"timeoutSeconds":60`, "", 1),
		"a number with a fraction":          r(`"fence":6`, `"fence":6.0`),
		"a number with an exponent":         r(`"fence":6`, `"fence":6e0`),
		"a number with a leading zero":      r(`"fence":6`, `"fence":06`),
		"a number beyond 64 bits":           r(`"fence":6`, `"fence":9223372036854775808`),
		"a number in a string":              r(`"fence":6`, `"fence":"6"`),
		"bytes as a list of numbers":        r(challenge, `"challenge":[1,2,3]`),
		"base64 with a line break":          r(`"challenge":"`, `"challenge":"\n`),
	}
}

// One text, one reading: whatever is not the one encoding of its document is refused, however well it is signed.
func TestB2_OnlyTheOneEncodingOfAnOrderIsRead(t *testing.T) {
	t.Parallel()
	h := joined(t, newWorld(t, join))
	s := h.open()
	names := slices.Sorted(maps.Keys(misspellings(goodOrder(s))))
	s.end()
	if len(names) < 30 {
		t.Fatalf("%d rows", len(names))
	}
	for _, name := range names {
		t.Run("B2 "+name, func(t *testing.T) {
			h.refuses(t, signing.ReasonMalformed, join, "uid-1", 6, func(s *session, p *plan) {
				full(s, p)
				s.bind(p)
				good := string(payloadOf(t, sign(t, &p.Order, h.w.Dispatch)))
				bad := misspellings(good)[name]
				if bad == good {
					t.Fatal("the row changes nothing")
				}
				p.Env = forge(t, signing.TypeOrder, []byte(bad), h.w.Dispatch)
			})
		})
	}
	// The same for the frames that are no envelope.
	for name, frame := range map[string]string{
		"parameters with a name twice":       `{"KPSSH_NODE_NAME":"a","KPSSH_NODE_NAME":"b"}`,
		"parameters with a space":            `{"KPSSH_NODE_NAME": "a"}`,
		"parameters in another order":        `{"KPSSH_NODE_NAME":"a","KPSSH_GATE":"b"}`,
		"parameters with an escape":          `{"KPSSH_NODE_NAME":"\u0061"}`,
		"parameters that are null":           `null`,
		"parameters with something after it": `{}{}`,
	} {
		t.Run("B2 "+name, func(t *testing.T) {
			before := h.snapshot()
			a := h.order(join, "uid-1", 6, func(_ *session, p *plan) { p.Raw = []byte(frame) })
			if a.Reason != signing.ReasonMalformed && a.Reason != signing.ReasonParam || h.snapshot() != before {
				t.Errorf("%s %q", a.Outcome, a.Reason)
			}
		})
	}
	h.mustRun(join, "uid-1", 6, full)
}

// goodOrder is the payload of a good order.
func goodOrder(s *session) string {
	p := s.plan(join, "uid-1", 6)
	full(s, p)
	s.bind(p)
	return string(payloadOf(s.h.t, sign(s.h.t, &p.Order, s.h.w.Dispatch)))
}

// A good signature over something that is no document is a refusal, not a success with nothing in it.
func TestB3_SignedGarbageIsRefused(t *testing.T) {
	t.Parallel()
	h := joined(t, newWorld(t, join))
	garbage := map[string][]byte{
		"nothing": {}, "bytes": {0, 1, 2, 255}, "text": []byte("run this"), "null": []byte("null"), "a number": []byte("1"),
		"an array": []byte("[]"), "HTML": []byte("<html>"), "YAML": []byte("hostID: x\nphase: join\n"), "a shell script": []byte("#!/bin/bash\nid\n"),
	}
	slots := map[wire.Type]struct {
		kind string
		by   []signing.Signer
	}{
		wire.Root: {signing.TypeRoot, h.w.Root}, wire.Allowlist: {signing.TypeAllowlist, []signing.Signer{h.w.Author}},
		wire.Order: {signing.TypeOrder, []signing.Signer{h.w.Dispatch}},
	}
	for frame, slot := range slots {
		for name, payload := range garbage {
			t.Run(fmt.Sprintf("B3 %s as %s", name, frame), func(t *testing.T) {
				h.refuses(t, signing.ReasonMalformed, join, "uid-1", 6, func(s *session, p *plan) {
					s.frame(frame, forge(t, slot.kind, payload, slot.by...))
					s.hangUp()
					p.Sent = true
				})
			})
		}
	}
}

// Keys and documents that other verifiers panic on end in a refusal like any other.
func TestB4_NothingMakesTheShimPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	h := joined(t, w)
	rsa := "MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBALbdJMj/8h9lxk3m9b9CFCUOoXR3a7XgMxvz0A4HJUMjJm1j7jOeBNlEqSVTNPp0Cx1xPzM0dVvkZc9eRkWb3ekCAwEAAQ=="
	der, err := base64.StdEncoding.DecodeString(rsa)
	if err != nil {
		t.Fatal(err)
	}
	point := append([]byte{4}, bytes.Repeat([]byte{7}, 2*elliptic.P256().Params().BitSize/8)...)
	p256 := append([]byte("\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00"), point...)
	good := w.Root[0].Public().Public
	keys := map[string]signing.Key{
		"a key of no bytes":            {Algorithm: signing.AlgorithmEd25519, Public: []byte{}},
		"a key one byte short":         {Algorithm: signing.AlgorithmEd25519, Public: good[:len(good)-1]},
		"a key one byte long":          {Algorithm: signing.AlgorithmEd25519, Public: append(slices.Clone(good), 0)},
		"an RSA key called ECDSA":      {Algorithm: signing.AlgorithmECDSAP256, Public: der},
		"an RSA key called ed25519":    {Algorithm: signing.AlgorithmEd25519, Public: der},
		"an RSA key called RSA":        {Algorithm: "rsa", Public: der},
		"an ed25519 key called ECDSA":  {Algorithm: signing.AlgorithmECDSAP256, Public: good},
		"a point that is not on P-256": {Algorithm: signing.AlgorithmECDSAP256, Public: p256},
		"a key of small order":         {Algorithm: signing.AlgorithmEd25519, Public: append(slices.Clone(good[:len(good)-32]), make([]byte, 32)...)},
	}
	for name, key := range keys {
		t.Run("B4 "+name, func(t *testing.T) {
			root := w.RootDoc
			root.Version = 2
			root.Author = signing.RoleKeys{Keys: []signing.Key{key}, Threshold: 1}
			h.refuses(t, signing.ReasonMalformed, join, "uid-1", 6, func(_ *session, p *plan) {
				p.Roots = [][]byte{forge(t, signing.TypeRoot, encode(t, root), w.Root...)}
			})
		})
	}
	envelopes := map[string]string{
		"null": "null", "nothing": "", "a list": "[]", "a string": `"x"`, "a number": "1e999", "null members": `{"payloadType":null,"payload":null,"signatures":null}`,
		"a signature that is null":  `{"payloadType":"` + signing.TypeOrder + `","payload":"e30=","signatures":[null]}`,
		"an empty signature":        `{"payloadType":"` + signing.TypeOrder + `","payload":"e30=","signatures":[{}]}`,
		"a signature that is a map": `{"payloadType":"` + signing.TypeOrder + `","payload":"e30=","signatures":{}}`,
		"an open string":            `{"payloadType":"`, "deep lists": strings.Repeat("[", 90), "deep objects": strings.Repeat(`{"a":`, 40),
	}
	for name, text := range envelopes {
		t.Run("B4 "+name, func(t *testing.T) {
			h.refuses(t, signing.ReasonMalformed, join, "uid-1", 6, func(_ *session, p *plan) { p.Env = []byte(text) })
		})
	}
	sigs := map[string][]byte{
		"a signature of no bytes": {}, "a signature of one byte": {0}, "a signature of 63 bytes": make([]byte, 63), "a signature of zeros": make([]byte, 64),
		"a DER signature of nothing": {0x30, 0}, "a DER signature that says it is longer": {0x30, 0x7f, 2, 1, 1, 2, 1, 1},
	}
	for name, sig := range sigs {
		t.Run("B4 "+name, func(t *testing.T) {
			h.refuses(t, signing.ReasonUntrusted, join, "uid-1", 6, func(s *session, p *plan) {
				s.bind(p)
				p.Env = enclose(signing.TypeOrder, payloadOf(t, sign(t, &p.Order, w.Dispatch)), sig)
			})
		})
	}
}

// The descriptor of the protocol is the shim's alone: nothing that a library prints gets between its frames.
func TestB7_NothingButFramesIsOnTheWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	h := joined(t, w)
	next := w.RootDoc
	next.Version = 2
	payload := payloadOf(t, sign(t, &next, w.Root...))
	id := w.Root[0].Public().ID()
	by := []signing.Signer{w.Root[0], w.Root[0], newSigner(t)}
	for name, c := range map[string]struct {
		root []byte
		ok   bool
	}{
		"one key id twice":         {keyIDs(t, signing.TypeRoot, payload, by, id, id), true},
		"one key id for two keys":  {keyIDs(t, signing.TypeRoot, payload, []signing.Signer{by[2], by[0]}, id, id), true},
		"a key id that is a query": {keyIDs(t, signing.TypeRoot, payload, by[2:], "\x1b]0;owned\x07\nKPSSH/1\n"), false},
	} {
		t.Run("B7 "+name, func(t *testing.T) {
			h := h.stand(t)
			s := h.open()
			p := s.plan(join, "uid-1", 6)
			p.Roots = [][]byte{c.root}
			s.submit(p)
			a, err := s.read()
			if err != nil || (a.Outcome == signing.OutcomeOK) != c.ok {
				t.Errorf("%+v, %v", a.Receipt, err)
			}
			if kind, payload, err := s.in.Next(); err == nil {
				t.Errorf("after the receipt came %s %q", kind, payload)
			}
			s.end()
			if lines := s.log.String(); strings.Count(lines, "\n") != 1 || strings.Contains(lines, "\x1b") {
				t.Errorf("log: %q", lines)
			}
		})
	}
	// A script's output cannot pass for a frame either.
	forged := "join: printf '\\nKPSSH/1\\n\\000\\000\\000\\002\\011{}'; printf x >&3; printf y >&10; printf z >&11; true"
	w.NewList(func(l *signing.Allowlist) { l.Scripts = append(l.Scripts, allow(forged)) })
	a := h.mustRun(forged, "uid-1", 6)
	if !strings.HasPrefix(a.output, "\nKPSSH/1\n\x00\x00\x00\x02\t{}") {
		t.Errorf("output %q", a.output)
	}
}

// There are no archives and no compression: what is packed is not unpacked but refused.
func TestB8_NothingIsUnpacked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	h := joined(t, w)
	packed := map[string]func(*testing.T, []byte) []byte{
		"gzip": func(t *testing.T, b []byte) []byte {
			var out bytes.Buffer
			z := gzip.NewWriter(&out)
			_, err := z.Write(b)
			if err == nil {
				err = z.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			return out.Bytes()
		},
		"tar": func(t *testing.T, b []byte) []byte {
			var out bytes.Buffer
			a := tar.NewWriter(&out)
			err := a.WriteHeader(&tar.Header{Name: "../../etc/cron.d/x", Mode: 0o755, Size: int64(len(b))})
			if err == nil {
				_, err = a.Write(b)
			}
			if err == nil {
				err = a.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			return out.Bytes()
		},
		"zip": func(t *testing.T, b []byte) []byte {
			var out bytes.Buffer
			a := zip.NewWriter(&out)
			f, err := a.Create("../../etc/cron.d/x")
			if err == nil {
				_, err = f.Write(b)
			}
			if err == nil {
				err = a.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			return out.Bytes()
		},
	}
	for name, pack := range packed {
		t.Run("B8 a payload in "+name, func(t *testing.T) {
			h.refuses(t, signing.ReasonMalformed, join, "uid-1", 6, func(s *session, p *plan) {
				s.bind(p)
				p.Env = forge(t, signing.TypeOrder, pack(t, payloadOf(t, sign(t, &p.Order, w.Dispatch))), w.Dispatch)
			})
		})
		t.Run("B8 an envelope in "+name, func(t *testing.T) {
			h.refuses(t, signing.ReasonMalformed, join, "uid-1", 6, func(s *session, p *plan) {
				s.bind(p)
				env := pack(t, sign(t, &p.Order, w.Dispatch))
				if len(env) > 8<<10 {
					t.Fatal("too large to be refused for what it is")
				}
				p.Env = env
			})
		})
		t.Run("B8 a script in "+name, func(t *testing.T) {
			h.refuses(t, signing.ReasonNotAllowed, join, "uid-1", 6, func(_ *session, p *plan) { p.Script = pack(t, p.Script) })
		})
	}
	functions := functionsOf(t, binaries.shim)
	if !functions["main.main"] || len(functions) < 1000 {
		t.Fatalf("the names of the binary's functions cannot be read: %d", len(functions))
	}
	for name := range functions {
		for _, never := range []string{"compress/", "archive/", "net/http.", "text/template.", "html/template.", "plugin.", "crypto/tls."} {
			if strings.HasPrefix(name, never) || strings.Contains(name, "/"+never) {
				t.Errorf("the binary has %s", name)
			}
		}
	}
}
