//go:build e2e

package threats

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// maxGrowth is how much more memory than after its hello a session may take, in KiB.
const maxGrowth = 16 << 10

// measured plays a session on a shim whose memory is read at its very end, and returns by how many KiB it grew.
func (h *host) measured(t *testing.T, play func(*session)) (grown int64) {
	t.Helper()
	x := &tracer{}
	s := h.trace(x)
	if err := s.greet(); err != nil {
		t.Fatalf("hello: %v; log: %s", err, s.logged())
	}
	idle := statusOf(x.pid, "VmHWM:")
	play(s.session)
	s.end()
	if idle == 0 || x.peak < idle {
		t.Fatalf("memory after the hello %d KiB, at most %d KiB", idle, x.peak)
	}
	t.Logf("%d KiB after the hello, %d KiB more at most", idle, x.peak-idle)
	return x.peak - idle
}

// Whatever is sent, the shim reads no more than a frame's cap of it and stays small.
func TestB5_EndlessInputTakesNoMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, join)
	for i := range 1000 {
		w.List.Scripts = append(w.List.Scripts, allow(fmt.Sprintf("join: echo %d", i)))
	}
	w.ListEnv = sign(t, &w.List, w.Author)
	for range 63 {
		w.NewRoot(func(*signing.Root) {})
	}
	fullRoot := func(s *session) []byte { return pad(w.Roots[s.hello.Root.Version+1], wire.Root.Cap()) }
	order := func(s *session) []byte {
		p := s.plan(join, "uid-1", 6)
		s.bind(p)
		return sign(t, &p.Order, w.Dispatch)
	}
	head := func(n uint32, kind wire.Type) []byte {
		return []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n), byte(kind)}
	}
	const gib = 1 << 30
	inputs := map[string]func(*session){
		"B5 zeros without end, 1 GiB": func(s *session) {
			n, _ := io.Copy(s.conn, io.LimitReader(zeros{}, gib))
			t.Logf("it took %d bytes of them", n)
		},
		"B5 one frame of 1 GiB after another": func(s *session) {
			for range gib >> 20 {
				if wire.Write(s.conn, wire.Allowlist, make([]byte, 1<<20)) != nil {
					return
				}
			}
		},
		"B5 a length of 4 GiB": func(s *session) {
			for kind := wire.Hello; kind <= wire.Collect; kind++ {
				s.raw(head(0xffffffff, kind))
			}
			_, _ = io.Copy(s.conn, io.LimitReader(zeros{}, 64<<20))
		},
		"B5 20 000 signatures": func(s *session) {
			var b bytes.Buffer
			b.WriteString(`{"payloadType":"` + signing.TypeAllowlist + `","payload":"e30=","signatures":[`)
			b.WriteString(strings.Repeat(`{"sig":"AAAA"},`, 20_000) + `{"sig":""}]}`)
			s.frame(wire.Allowlist, b.Bytes())
		},
		"B5 JSON of nothing but brackets": func(s *session) { s.frame(wire.Allowlist, bytes.Repeat([]byte("["), wire.Allowlist.Cap())) },
		"B5 JSON of nothing but escapes": func(s *session) {
			s.frame(wire.Allowlist, []byte(`{"payloadType":"`+strings.Repeat(`\u0000`, 170_000)+`"}`))
		},
		"B5 a signed list of nested lists": func(s *session) {
			s.frame(wire.Allowlist, forge(t, signing.TypeAllowlist, []byte(strings.Repeat("[", 9_000)+strings.Repeat("]", 9_000)), w.Author))
		},
		"B5 a signed list of 250 000 numbers": func(s *session) {
			s.frame(wire.Allowlist, forge(t, signing.TypeAllowlist, []byte(`{"scripts":[`+strings.Repeat("0,", 350_000)+`0]}`), w.Author))
		},
		"B5 a signed list of 90 000 empty scripts": func(s *session) {
			s.frame(wire.Allowlist, forge(t, signing.TypeAllowlist, []byte(`{"version":9,"scripts":[`+strings.Repeat("{},", 250_000)+`{}]}`), w.Author))
		},
		"B5 a signed list of the smallest objects that pass": func(s *session) {
			s.frame(wire.Allowlist, forge(t, signing.TypeAllowlist, []byte(`{"scripts":[`+strings.Repeat(`{"profile":"aaaaaaaaaaaaaaaa"},`, 25_000)+`{}]}`), w.Author))
		},
		"B5 a signed list of 200 000 empty pins": func(s *session) {
			s.frame(wire.Allowlist, forge(t, signing.TypeAllowlist, []byte(`{"scripts":[{"parameters":[{"pins":[`+strings.Repeat(`"",`, 200_000)+`""]}]}]}`), w.Author))
		},
		"B5 a signed root of many keys": func(s *session) {
			s.frame(wire.Root, forge(t, signing.TypeRoot, []byte(`{"root":{"keys":[`+strings.Repeat(`{},`, 14_000)+`{}]}}`), w.Root...))
		},
		"B5 a signed list whose pattern explodes": func(s *session) {
			list := w.List
			list.Version, list.Scripts = 2, nil
			for i := range 40 {
				entry := allow(fmt.Sprintf("join: echo %d", i))
				entry.Parameters = []signing.Parameter{{Name: "KPSSH_GATE", Type: signing.ParamString, Pattern: fmt.Sprintf("(((a{1,30}){1,30}){%d})", 1+i%2)}}
				list.Scripts = append(list.Scripts, entry)
			}
			s.frame(wire.Allowlist, forge(t, signing.TypeAllowlist, encode(t, list), w.Author))
		},
		"B5 64 roots, a list, an order and all the rest at their caps": func(s *session) {
			for range 63 {
				s.frame(wire.Root, fullRoot(s))
				s.hello.Root.Version++
			}
			s.frame(wire.Allowlist, w.ListEnv)
			s.frame(wire.Order, order(s))
			s.frame(wire.Parameters, many(wire.Parameters.Cap()))
		},
		"B5 parameters of many names": func(s *session) {
			p := s.plan(join, "uid-1", 6)
			p.Roots, p.Raw = nil, many(wire.Parameters.Cap())
			s.submit(p)
		},
		"B5 a client that says nothing for a while and hangs up": func(s *session) { s.hangUp() },
	}
	for name, input := range inputs {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, w)
			grown := h.measured(t, func(s *session) {
				sent := make(chan struct{})
				go func() { // it may hang up in the middle
					defer close(sent)
					input(s)
					s.hangUp()
				}()
				_, _ = s.read()
				_ = s.conn.Close()
				<-sent
			})
			if grown > maxGrowth {
				t.Errorf("grew by %d KiB", grown)
			}
			if h.marks() != 0 {
				t.Errorf("%d runs", h.marks())
			}
		})
	}
	t.Run("B5 a good order with everything at its cap", func(t *testing.T) {
		big := "join: " + mark + "\n" + strings.Repeat("# filler\n", (256<<10-64)/9)
		w.NewList(func(l *signing.Allowlist) {
			entry := allow(big)
			entry.Parameters = append(entry.Parameters, signing.Parameter{Name: "KPSSH_BIG", Type: signing.ParamString, MaxLength: signing.MaxValueLength})
			l.Scripts = append(l.Scripts[:900], entry)
		})
		h := newHost(t, w)
		grown := h.measured(t, func(s *session) {
			p := s.plan(big, "uid-1", 1)
			p.Params["KPSSH_BIG"] = strings.Repeat("x", 60<<10)
			s.submit(p)
			if a, err := s.read(); err != nil || a.Outcome != signing.OutcomeOK {
				t.Errorf("%+v, %v", a.Receipt, err)
			}
		})
		if grown > maxGrowth || h.marks() != 1 {
			t.Errorf("grew by %d KiB, %d runs", grown, h.marks())
		}
	})
}

// pad makes an envelope as large as it may be, with a field that nobody knows.
func pad(envelope []byte, size int) []byte {
	filler := size - len(envelope) - len(`,"x":""`)
	return append(append(bytes.TrimSuffix(envelope, []byte("}")), `,"x":"`+strings.Repeat("x", filler)...), `"}`...)
}

// many are parameters in canonical form, as many as fit.
func many(size int) []byte {
	names := map[string]string{}
	for i := 0; i*18 < size-64; i++ {
		names[fmt.Sprintf("KPSSH_%06d", i)] = ""
	}
	data, err := json.Marshal(names)
	if err != nil {
		panic(err) // strings
	}
	return data[:min(len(data), size)]
}

// A script that prints without end is drained, its output forwarded up to the cap, and the shim stays small.
func TestD5_AnOutputFloodTakesNoMemory(t *testing.T) {
	t.Parallel()
	const seconds = 10
	for name, c := range map[string]struct {
		script string
		least  int64 // bytes that it prints
	}{
		"D5 yes for ten seconds": {fmt.Sprintf("join: timeout %d yes kpssh-flood; echo; echo the end", seconds), 1 << 30},
		"D5 one line of a GiB":   {"join: head -c 1073741824 /dev/zero | tr '\\0' x; echo; echo the end", 1 << 30},
		"D5 lines with a secret": {"join: for i in {1..20000}; do echo \"$KPSSH_BOOTSTRAP_TOKEN $KPSSH_BOOTSTRAP_TOKEN\"; done; echo the end", 400_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, newWorld(t, c.script))
			var a answer
			grown := h.measured(t, func(s *session) {
				p := s.plan(c.script, "uid-1", 1)
				if strings.Contains(name, "secret") {
					p.Secrets[secret] = bootstrapToken
				}
				s.submit(p)
				var err error
				if a, err = s.read(); err != nil {
					t.Errorf("the answer: %v", err)
				}
			})
			if a.Receipt == nil {
				t.FailNow()
			}
			if a.Outcome != signing.OutcomeOK || a.Output.Bytes < c.least || len(a.output) > 1<<20 || !strings.HasSuffix(a.output, "the end\n") {
				t.Errorf("%s, %d bytes printed, %d came, the last %q", a.Outcome, a.Output.Bytes, len(a.output), a.output[max(0, len(a.output)-20):])
			}
			if strings.Contains(a.output, bootstrapToken) {
				t.Error("the secret is in the output")
			}
			if grown > maxGrowth {
				t.Errorf("grew by %d KiB", grown)
			}
			t.Logf("%d MiB printed in %v, %d KiB forwarded", a.Output.Bytes>>20, time.Duration(a.DurationMillis)*time.Millisecond, len(a.output)>>10)
		})
	}
}
