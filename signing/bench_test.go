package signing

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"
)

func BenchmarkOpenOrder(b *testing.B) {
	p := newPool(b)
	good := p.slots(b)["order"].envelope
	for name, envelope := range map[string][]byte{"good": good, "good, of maximum size": sign(b, bigOrder(b, p), p.dispatch)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := OpenOrder(envelope, p.rootDoc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// bigOrder is as large as an order may be.
func bigOrder(b *testing.B, p *pool) *Order {
	b.Helper()
	o := *p.order
	o.Secrets = map[string]string{}
	for i := range maxSecrets {
		o.Secrets[fmt.Sprintf("KPSSH_SECRET_%02d", i)] = Digest(nil)
		if _, err := canonical(&o); err != nil {
			delete(o.Secrets, fmt.Sprintf("KPSSH_SECRET_%02d", i))
			break
		}
	}
	return &o
}

func BenchmarkSignOrder(b *testing.B) {
	p := newPool(b)
	for name, s := range map[string]Signer{"ed25519": p.dispatch, "p256": p.author} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Sign(context.Background(), p.order, s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpenRoot(b *testing.B) {
	p := newPool(b)
	envelope := p.slots(b)["root"].envelope
	for b.Loop() {
		if _, err := OpenFirstRoot(envelope); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenAllowlist(b *testing.B) {
	p := newPool(b)
	envelope := p.slots(b)["allowlist"].envelope
	for b.Loop() {
		if _, err := OpenAllowlist(envelope, p.rootDoc); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHostileRatio, at most 2, is the time to refuse the worst envelope in relation to the time to
// accept a good one, measured in turns so that both see the same machine.
func BenchmarkHostileRatio(b *testing.B) {
	p := newPool(b)
	for name, hostile := range hostileOrders(payloadOf(b, p.slots(b)["order"].envelope)) {
		// Like with like: a large payload takes its time whoever signed it.
		good := p.slots(b)["order"].envelope
		if strings.Contains(name, "maximum payload") {
			good = sign(b, bigOrder(b, p), p.dispatch)
		}
		b.Run(name, func(b *testing.B) {
			// The fastest of each: a busy machine must not decide.
			accept, reject := time.Hour, time.Hour
			for b.Loop() {
				start := time.Now()
				if _, err := OpenOrder(good, p.rootDoc); err != nil {
					b.Fatal(err)
				}
				middle := time.Now()
				if _, err := OpenOrder(hostile, p.rootDoc); err == nil {
					b.Fatal("accepted")
				}
				accept, reject = min(accept, middle.Sub(start)), min(reject, time.Since(middle))
			}
			b.ReportMetric(float64(reject)/float64(accept), "reject/accept")
		})
	}
}

// hostileOrders are the dearest envelopes of an order's type that were found.
func hostileOrders(payload []byte) map[string][]byte {
	large := bytes.Repeat([]byte("x"), maxOrderPayload)
	body := func(payload []byte, rest string) []byte {
		return fmt.Appendf(nil, `{"payloadType":%q,"payload":%q,%s`, TypeOrder, base64.StdEncoding.EncodeToString(payload), rest)
	}
	junk := `{"sig":"` + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 64)) + `"}`
	junk8 := `"signatures":[` + strings.Repeat(junk+",", 7) + junk + `]}`
	fill := func(prefix, unit, suffix string) []byte {
		n := (maxOrderEnvelope - len(prefix) - len(suffix)) / len(unit)
		return []byte(prefix + strings.Repeat(unit, n) + suffix)
	}
	names := make([]string, 0, 900)
	for i := range cap(names) {
		names = append(names, fmt.Sprintf(`"%d":{}`, i))
	}
	return map[string][]byte{
		"eight signatures":                     body(payload, junk8),
		"eight signatures and maximum payload": body(large, junk8),
		"twenty thousand signatures":           body(payload, `"signatures":[`+strings.Repeat(junk+",", 20000)+junk+`]}`),
		"empty signatures":                     fill(`{"signatures":[`, `{},`, `{}]}`),
		"deep":                                 fill(`{"x":`, `[`, ``),
		"numbers":                              fill(`{"x":[`, `1e9,`, `0]}`),
		"one number":                           fill(`{"x":`, `1`, `}`),
		"escapes":                              fill(`{"payload":"`, `\u0041`, `"}`),
		"as many escapes as are read":          body(payload, `"x":"`+strings.Repeat(`\u0041`, 200)+strings.Repeat("x", 3000)+`",`+junk8),
		"as many members as are read":          body(payload, `"x":[`+strings.Repeat(`0,`, 70)+`0],`+junk8),
		"white space":                          fill(`{"x":`, ` `, `0}`),
		"text of three bytes a character":      fill(`{"x":"`, `ಠ`, `"}`),
		"many names":                           []byte(`{` + strings.Join(names, ",") + `}`),
	}
}
