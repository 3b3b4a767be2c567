//go:build e2e

package threats

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// authority is a self-signed CA certificate in PEM.
func authority(t testing.TB, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-hour), NotAfter: time.Now().Add(year),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func bundle(parts ...[]byte) string {
	return base64.StdEncoding.EncodeToString(slices.Concat(parts...))
}

// Whoever may order an allowed join still has to join the cluster that the author pinned: a pinned name has its pinned
// value, byte for byte, or nothing runs.
func TestA8_APinnedParameterHasItsPinnedValue(t *testing.T) {
	t.Parallel()
	ours, theirs := authority(t, "kubernetes"), authority(t, "kubernetes")
	pins, err := signing.SPKIPins(bundle(ours))
	if err != nil {
		t.Fatal(err)
	}
	const v4, v6, name = "https://10.0.0.1:6443", "https://[2001:db8::1]:6443", "https://api.example:6443"
	w := newWorld(t)
	entry := allow(join)
	entry.Parameters = []signing.Parameter{
		{Name: "KPSSH_CLUSTER_ENDPOINT", Type: signing.ParamEndpoint, Pins: []string{v4, v6, name}},
		{Name: "KPSSH_CA_BUNDLE", Type: signing.ParamCABundle, Pins: pins},
		{Name: "KPSSH_CLUSTER_NAME", Type: signing.ParamString, Pins: []string{"prod"}},
		{Name: "KPSSH_REPOSITORY", Type: signing.ParamURI, Pins: []string{"https://pkgs.example/core"}},
		{Name: "KPSSH_API_HOST", Type: signing.ParamHost, Pins: []string{"api.example"}},
		{Name: "KPSSH_API_IP", Type: signing.ParamIP, Pins: []string{"2001:db8::1"}},
	}
	w.List.Scripts = []signing.AllowedScript{entry}
	w.ListEnv = sign(t, &w.List, w.Author)
	good := map[string]string{
		"KPSSH_CLUSTER_ENDPOINT": v4, "KPSSH_CA_BUNDLE": bundle(ours), "KPSSH_CLUSTER_NAME": "prod",
		"KPSSH_REPOSITORY": "https://pkgs.example/core", "KPSSH_API_HOST": "api.example", "KPSSH_API_IP": "2001:db8::1",
	}
	h := newHost(t, w)
	with := func(change map[string]string) func(*session, *plan) {
		return func(_ *session, p *plan) {
			params := maps.Clone(good)
			maps.Copy(params, change)
			p.Raw = frameOf(t, params)
		}
	}
	h.mustRun(join, "uid-1", 5, with(nil))
	h.mustRun(join, "uid-1", 5, with(map[string]string{"KPSSH_CLUSTER_ENDPOINT": v6}))
	h.forget()
	spellings := map[string][]string{
		"KPSSH_CLUSTER_ENDPOINT": {
			"https://evil.example:6443", "https://10.0.0.1", "https://10.0.0.1:6444", "https://10.0.0.1:06443", "https://10.0.0.01:6443",
			"https://0x0a000001:6443", "https://167772161:6443", "https://10.1:6443", "https://[::ffff:10.0.0.1]:6443", "HTTPS://10.0.0.1:6443",
			"https://API.example:6443", "https://api.example.:6443", "https://api.example:6443/", "https://api.example:6443?x", "https://api.example:6443#x",
			"https://x@api.example:6443", "https://api.example:6443@evil.example", "https://[2001:DB8::1]:6443", "https://[2001:db8:0::1]:6443",
			"https://[2001:db8::1%25eth0]:6443", "http://api.example:6443", " https://api.example:6443", "https://api.example:6443 ",
			"https://api.example:6443\u0000", "https://\u0430pi.example:6443", "https://api.example:6443\n", "",
		},
		"KPSSH_CLUSTER_NAME": {"Prod", "prod ", " prod", "prod2", "", "p\u200brod"},
		"KPSSH_REPOSITORY":   {"https://pkgs.example/core/", "https://pkgs.example/core/../evil", "https://pkgs.example./core", "https://PKGS.example/core", ""},
		"KPSSH_API_HOST":     {"API.example", "api.example.", "evil.example", ""},
		"KPSSH_API_IP":       {"2001:DB8::1", "2001:db8:0:0:0:0:0:1", "2001:db8::2", "2001:db8::1%eth0", ""},
	}
	for name, values := range spellings {
		t.Run("A8 "+name, func(t *testing.T) {
			for _, value := range values {
				want := signing.ReasonPin
				if strings.ContainsAny(value, "\n\x00\u200b") {
					want = signing.ReasonParam // it is refused before it is compared with anything
				}
				h.refuses(t, want, join, "uid-1", 5, with(map[string]string{name: value}))
				if t.Failed() {
					t.Fatalf("with %q", value)
				}
			}
		})
	}
	for name, value := range map[string]string{
		"A8 another CA of the same name": bundle(theirs), "A8 another CA beside ours": bundle(ours, theirs),
	} {
		t.Run(name, func(t *testing.T) {
			h.refuses(t, signing.ReasonPin, join, "uid-1", 5, with(map[string]string{"KPSSH_CA_BUNDLE": value}))
		})
	}
	for pinned := range good {
		t.Run("A8 without "+pinned, func(t *testing.T) {
			h.refuses(t, signing.ReasonPin, join, "uid-1", 5, func(s *session, p *plan) {
				params := maps.Clone(good)
				delete(params, pinned)
				p.Raw = frameOf(t, params)
			})
		})
	}
	t.Run("A8 any value but the pin, of any type", func(t *testing.T) { pinsHold(t, h, good, with) })
}

// frameOf is a parameters frame in canonical form, also of values that signing.EncodeParameters would not encode.
func frameOf(t testing.TB, params map[string]string) []byte {
	t.Helper()
	return encode(t, params)
}

// pinsHold bends pinned values at random: none but the pins themselves gets through.
func pinsHold(t *testing.T, h *host, good map[string]string, with func(map[string]string) func(*session, *plan)) {
	seed := uint64(time.Now().UnixNano())
	random := mathrand.New(mathrand.NewPCG(seed, 8))
	names := slices.Sorted(maps.Keys(good))
	before := h.snapshot()
	marks := h.marks()
	const tries = 60
	for range tries {
		name := names[random.IntN(len(names))]
		value := bend(random, good[name])
		if value == good[name] {
			continue
		}
		s := h.open()
		p := s.plan(join, "uid-1", 5)
		with(map[string]string{name: value})(s, p)
		s.submit(p)
		// A CA bundle that is no longer one is refused for that, and so is what does not show.
		a := s.answered()
		if a.Reason != signing.ReasonPin && a.Reason != signing.ReasonParam {
			t.Errorf("%s=%q (seed %d): %s %q", name, value, seed, a.Outcome, a.Reason)
		}
		s.end()
	}
	if h.marks() != marks || h.snapshot() != before {
		t.Errorf("%d runs, state changed: %v", h.marks()-marks, h.snapshot() != before)
	}
}

// bend changes a value a little.
func bend(random *mathrand.Rand, value string) string {
	at := random.IntN(len(value) + 1)
	piece := []string{" ", ".", "0", "/", "%00", "\t", "x", ":", "@", "#", "\u200b", "\u202e"}[random.IntN(12)]
	switch random.IntN(4) {
	case 0:
		return value[:at] + piece + value[at:]
	case 1:
		if at == len(value) {
			at--
		}
		return value[:at] + value[at+1:]
	case 2:
		return strings.ToUpper(value[:at]) + value[at:]
	}
	return fmt.Sprint(value, piece)
}
