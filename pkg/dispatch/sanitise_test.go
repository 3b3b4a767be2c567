package dispatch_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
)

func TestSanitise(t *testing.T) {
	for name, test := range map[string]struct{ in, want string }{
		"plain text":                      {"apt-get: done", "apt-get: done"},
		"lines":                           {"one\ntwo\r\n\n  three  \n", "one | two | three"},
		"colours":                         {"\x1b[1;31merror\x1b[0m: no", "error: no"},
		"a C1 introducer":                 {"\u009b31mred", "red"},
		"a window title":                  {"\x1b]0;pwned\aok", "ok"},
		"a title with a long terminator":  {"\x1b]0;pwned\x1b\\ok", "ok"},
		"a title that never ends":         {"\x1b]0;pwned", "0;pwned"},
		"a title that ends with its line": {"\x1b]0;pwned\nok", "ok"},
		"a device control string":         {"\x1bPq#0\x1b\\ok", "ok"},
		"a lone escape":                   {"a\x1b", "a"},
		"cursor movement":                 {"safe\x1b[1A\x1b[2Kfake", "safefake"},
		"text that reorders":              {"a\u202eb\u2066c", "abc"},
		"invisible characters":            {"a\u200bb\ufeffc\u00ad", "abc"},
		"invisible letters and marks":     {"a\u3164b\u2800c\ufe0fd\U000e0101", "abcd"},
		"line separators":                 {"a\u2028b\u2029c", "abc"},
		"NUL, bell and backspace":         {"a\x00b\ac\bd\x7f", "abcd"},
		"tabs and odd spaces":             {"a\tb\u00a0c", "a b c"},
		"broken UTF-8":                    {"a\xffb", "a\uFFFDb"},
		"another language":                {"Fehler: Gerät fehlt 失敗", "Fehler: Gerät fehlt 失敗"},
		"nothing":                         {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := dispatch.Sanitise(test.in, 100); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestSanitiseKeepsTheEnd(t *testing.T) {
	if got := dispatch.Sanitise(strings.Repeat("x", 50)+"ÄÄ the end", 12); got != "… the end" && got != "…\u00c4 the end" || len(got) > 12 {
		t.Errorf("got %q", got)
	}
}

func FuzzSanitise(f *testing.F) {
	for _, seed := range []string{"", "plain", "\x1b[31mred\x1b]0;x\a", "a\u202eb", "\xff\xfe", "\x1b\x1b\x1b[[[", "x\n\n\ny"} {
		f.Add(seed, 20)
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = max(3, limit%4096)
		got := dispatch.Sanitise(text, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Fatalf("%d bytes of at most %d: %q", len(got), limit, got)
		}
		for _, r := range got {
			if dispatch.Hidden(r) {
				t.Fatalf("%U in %q", r, got)
			}
		}
		if again := dispatch.Sanitise(got, limit); again != got {
			t.Fatalf("%q becomes %q the second time", got, again)
		}
	})
}
