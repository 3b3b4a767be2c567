package shim

import (
	"bytes"
	"encoding/base64"
	"net/url"
	"strings"
	"testing"
)

func redacted(secrets map[string]string, size int, text string) string {
	r := newRedactor(secrets)
	var out bytes.Buffer
	for i := 0; i < len(text); i += size {
		out.Write(r.next([]byte(text[i:min(i+size, len(text))])))
	}
	out.Write(r.rest())
	return out.String()
}

func TestRedaction(t *testing.T) {
	const canary = `ca/na+ry "7"&tail`
	long := strings.Repeat("0123456789abcdef", 100)
	for name, tc := range map[string]struct{ secret, text, want string }{
		"as it is":                   {canary, "x " + canary + " y", "x [redacted] y"},
		"twice in a row":             {canary, canary + canary, "[redacted][redacted]"},
		"as a query":                 {canary, "?t=" + url.QueryEscape(canary), "?t=[redacted]"},
		"as a path":                  {canary, url.PathEscape(canary), "[redacted]"},
		"as JSON":                    {`quo"te\back`, `{"t":"quo\"te\\back"}`, `{"t":"[redacted]"}`},
		"the beginning alone stays":  {"secretvalue", "secretval", "secretval"},
		"a longer one first":         {"abcd", "xabcdx", "x[redacted]x"},
		"a line of several":          {"first line\nsecond line\n", "got second line here", "got [redacted] here"},
		"longer than a pattern":      {long, long, "[redacted][redacted][redacted][redacted]"},
		"too short to be looked for": {"ab", "about", "about"},
		"no secret at all":           {"", "text", "text"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 2, 7, 4096} {
				if got := redacted(map[string]string{"S": tc.secret}, size, tc.text); got != tc.want {
					t.Errorf("in pieces of %d: %q, want %q", size, got, tc.want)
				}
			}
		})
	}
}

// base64 of something that holds the secret anywhere shows no more than the bits at its edges.
func TestRedactionOfBase64AtAnyAlignment(t *testing.T) {
	const secret = "abcdef.0123456789abcdef"
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding} {
		for before := range 7 {
			for after := range 4 {
				text := enc.EncodeToString([]byte(strings.Repeat("p", before) + secret + strings.Repeat("s", after)))
				got := redacted(map[string]string{"S": secret}, 5, text)
				if !strings.Contains(got, redaction) || len(strings.Replace(got, redaction, "", 1)) > len(text)-(len(secret)*8/6-2) {
					t.Errorf("%d before, %d after: %q of %q", before, after, got, text)
				}
			}
		}
	}
}

func FuzzRedaction(f *testing.F) {
	f.Add("abcdef.0123456789abcdef", "token abcdef.0123456789abcdef used", 3)
	f.Add("aaaa", "aaaaaaaaa", 1)
	f.Add("abab", "xababab", 2)
	f.Add("000\x00", "0000000000\x00", 1)
	f.Fuzz(func(t *testing.T, secret, text string, size int) {
		if size < 1 || size > 1<<16 || len(secret) > 400 || strings.ContainsAny(secret, "\n\r") || strings.Contains(redaction, secret) {
			return
		}
		got := redacted(map[string]string{"S": secret}, size, text)
		value := strings.TrimSpace(secret)
		// What stands for a secret is no part of what was let through: the two are never read as one.
		for part := range strings.SplitSeq(got, redaction) {
			if len(value) >= minSecret && strings.Contains(part, value) {
				t.Errorf("%q in %q", value, got)
			}
		}
		if len(value) < minSecret && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}
