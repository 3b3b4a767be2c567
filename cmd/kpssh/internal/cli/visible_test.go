package cli

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestTextOfOthersCannotHideOnATerminal(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"plain text":           {"echo 'grüß' # 日本", "echo 'grüß' # 日本"},
		"a tab":                {"a\tb", "a\tb"},
		"a terminal sequence":  {"\x1b[2Jx", "<U+001B>[2Jx"},
		"the other introducer": {"\u009b2J", "<U+009B>2J"},
		"right to left":        {"a\u202eb\u2066", "a<U+202E>b<U+2066>"},
		"zero width":           {"r\u200bm\ufeff", "r<U+200B>m<U+FEFF>"},
		"a carriage return":    {"harmless\rrm", "harmless<U+000D>rm"},
		"line ends":            {"a\nb\u2028c\u0085", "a<U+000A>b<U+2028>c<U+0085>"},
		"other spaces":         {"a\u00a0b\u3000", "a<U+00A0>b<U+3000>"},
		"invisible letters":    {"a\u3164\u2800\ufe0f\U000e0101", "a<U+3164><U+2800><U+FE0F><U+E0101>"},
		"no UTF-8":             {"a\xff\xc3", "a<0xFF><0xC3>"},
		"NUL":                  {"a\x00", "a<U+0000>"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Visible(c.in); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if at := FirstHidden(c.in); (at >= 0) != (c.in != c.want) {
				t.Errorf("the first hidden byte of %q is %d", c.in, at)
			}
		})
	}
}

func TestJSONSaysTheSameWithoutHiding(t *testing.T) {
	in := "a\u202e \u009b \U000e0101 ü 日 \x7f \ufe0f"
	var out bytes.Buffer
	env := &Env{Stdout: &out}
	if err := env.Print("json", map[string]string{"k": in}, nil); err != nil {
		t.Fatal(err)
	}
	if at := FirstHidden(string(bytes.ReplaceAll(out.Bytes(), []byte("\n"), nil))); at >= 0 {
		t.Errorf("%q hides something at %d", out.String(), at)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["k"] != in {
		t.Errorf("read back %q, %v", back["k"], err)
	}
}
