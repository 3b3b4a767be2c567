package shim

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"sort"
	"strings"
)

const (
	redaction = "[redacted]"
	// minSecret is the shortest value that is looked for: shorter ones are in every text.
	minSecret = 4
	// maxPattern bounds one pattern; longer values are looked for in pieces.
	maxPattern = 510
)

// redactor takes secret values out of a stream before it leaves the process: as they are, in
// base64 at any alignment, and escaped for URLs and JSON. What a script does to a secret beyond
// that cannot be known.
//
// Of the patterns that fit at a place the longest counts, and a place at which a longer one may
// still come is waited for: a secret that holds another one must not show what is left of it.
type redactor struct {
	starting [256][][]byte // patterns by their first byte, longest first
	active   bool
	held     []byte
}

func newRedactor(secrets map[string]string) *redactor {
	r := &redactor{}
	seen := map[string]bool{}
	for _, value := range secrets {
		for piece := range pieces(value) {
			for _, p := range spellings(piece) {
				if len(p) >= minSecret && !seen[p] {
					seen[p], r.active = true, true
					r.starting[p[0]] = append(r.starting[p[0]], []byte(p))
				}
			}
		}
	}
	for _, patterns := range r.starting {
		sort.Slice(patterns, func(i, j int) bool { return len(patterns[i]) > len(patterns[j]) })
	}
	return r
}

func pieces(value string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for line := range strings.Lines(value) {
			line = strings.TrimSpace(line)
			for len(line) >= minSecret {
				n := min(len(line), maxPattern)
				if !yield(line[:n]) {
					return
				}
				line = line[n:]
			}
		}
	}
}

func spellings(s string) []string {
	quoted, _ := json.Marshal(s)
	out := []string{s, url.QueryEscape(s), url.PathEscape(s), strings.Trim(string(quoted), `"`)}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			// Characters that also depend on what stands before or after are left out.
			whole := enc.EncodeToString(append(make([]byte, shift), s...))
			first := (shift*8 + 5) / 6
			last := (shift + len(s)) * 8 / 6
			if last > first {
				out = append(out, whole[first:last])
			}
		}
	}
	return out
}

// next returns what of the stream may go out, keeping back the beginning of a possible secret.
func (r *redactor) next(p []byte) []byte {
	if !r.active {
		return p
	}
	return r.scan(p, false)
}

// rest returns what was kept back, once the stream has ended.
func (r *redactor) rest() []byte { return r.scan(nil, true) }

func (r *redactor) scan(p []byte, last bool) []byte {
	buf := append(r.held, p...)
	out := make([]byte, 0, len(buf))
	r.held = nil
	for len(buf) > 0 {
		n, wait := r.match(buf, last)
		switch {
		case wait:
			r.held = slices.Clone(buf)
			return out
		case n > 0:
			out = append(out, redaction...)
			buf = buf[n:]
		default:
			n = 1
			for n < len(buf) && r.starting[buf[n]] == nil {
				n++
			}
			out = append(out, buf[:n]...)
			buf = buf[n:]
		}
	}
	return out
}

// match returns the length of the longest pattern at the beginning of buf, or that a longer one
// may still come.
func (r *redactor) match(buf []byte, last bool) (n int, wait bool) {
	for _, pattern := range r.starting[buf[0]] {
		switch {
		case len(pattern) <= len(buf):
			if bytes.HasPrefix(buf, pattern) {
				return len(pattern), false
			}
		case !last && bytes.HasPrefix(pattern, buf):
			return 0, true
		}
	}
	return 0, false
}
