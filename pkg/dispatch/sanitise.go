package dispatch

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// Sanitise makes one harmless line of a peer's text, at most limit bytes long: without terminal
// sequences, control characters, and characters that are invisible or reorder what a reader sees.
// Lines are joined by " | ".
func Sanitise(text string, limit int) string {
	return fold(strip(text), limit)
}

// Hidden holds for characters that do not show as themselves: controls, what is invisible or changes how others are
// shown, spaces that are not the common one, and code points without a meaning. Some of them count as letters or marks.
func Hidden(r rune) bool {
	return !unicode.IsPrint(r) || r == '\u2800' || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// strip takes out everything but printable characters and newlines.
func strip(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteRune('\uFFFD')
		case r == 0x1b:
			size = escapeLength(text)
		case r == 0x9b:
			size = csiLength(text, size)
		case r == '\n':
			b.WriteByte('\n')
		case r == '\r' || r == '\t' || r == ' ' || unicode.In(r, unicode.Zs):
			b.WriteByte(' ')
		case Hidden(r):
		default:
			b.WriteRune(r)
		}
		text = text[size:]
	}
	return b.String()
}

// maxEscape bounds a terminal sequence: one that never ends must not swallow the rest.
const maxEscape = 1024

// escapeLength is the length of the sequence that begins with ESC (ECMA-48).
func escapeLength(text string) int {
	if len(text) < 2 {
		return len(text)
	}
	switch text[1] {
	case '[':
		return csiLength(text, 2)
	case ']', 'P', 'X', '^', '_': // OSC, DCS, SOS, PM, APC: up to ST or BEL
		end := min(len(text), maxEscape)
		for i := 2; i < end; i++ {
			switch {
			case text[i] == '\a':
				return i + 1
			case text[i] == 0x1b && i+1 < len(text) && text[i+1] == '\\':
				return i + 2
			case text[i] == '\n':
				return i
			}
		}
		return 2
	}
	if text[1] >= 0x20 && text[1] <= 0x7e {
		return 2
	}
	return 1
}

// csiLength is the length of a control sequence whose introducer is that long.
func csiLength(text string, introducer int) int {
	for i := introducer; i < min(len(text), maxEscape); i++ {
		switch c := text[i]; {
		case c >= 0x40 && c <= 0x7e:
			return i + 1
		case c < 0x20 || c > 0x3f:
			return i
		}
	}
	return introducer
}

// fold joins lines and bounds the text, keeping its end.
func fold(text string, limit int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return last(strings.Join(lines, " | "), limit)
}

// last is the end of text, at most limit bytes with the mark of what was left out.
func last(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const mark = "…"
	from := len(text) - max(limit-len(mark), 0)
	for from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	return mark + text[from:]
}

// minSecretLine is the length from which a line of a secret of many lines is taken out on its own.
const minSecretLine = 8

// redactor takes secrets out of text, in all the forms in which a script's trace, a URL or an
// encoder may spell them.
func redactor(secrets map[string]string) profile.Redactor {
	forms := make(map[string]string, 3*len(secrets))
	add := func(name, value string) {
		forms[name] = value
		forms[name+"?"] = url.QueryEscape(value)
		forms[name+"/"] = url.PathEscape(value)
	}
	for name, value := range secrets {
		add(name, value)
		if !strings.Contains(value, "\n") {
			continue
		}
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minSecretLine {
				add(name+"\n"+line, line)
			}
		}
	}
	return profile.NewRedactor(forms)
}

// cleaner makes a host's text fit for logs: sanitised first, so that a secret cannot hide behind
// terminal sequences, then redacted, and cut last, so that no half of a secret stays.
type cleaner struct{ secrets profile.Redactor }

func newCleaner(secrets map[string]string) cleaner { return cleaner{redactor(secrets)} }

func (c cleaner) text(text string, limit int) string {
	return fold(c.secrets.Redact(strip(text)), limit)
}
