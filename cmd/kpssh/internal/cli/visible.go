package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
)

// Visible makes one line of text that somebody else wrote fit for a terminal and hides nothing of it, as who reviews it
// needs (what nobody has to read byte for byte, dispatch.Sanitise makes readable): what would not show, move the cursor,
// or reorder what a reader sees stands there as <U+202E>, and a byte that is no UTF-8 as <0xFF>. Tabs stay. Line ends are
// no part of a line and are shown too.
func Visible(line string) string {
	if strings.IndexFunc(line, hidden) < 0 && utf8.ValidString(line) {
		return line
	}
	var b strings.Builder
	for len(line) > 0 {
		r, size := utf8.DecodeRuneInString(line)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, "<0x%02X>", line[0])
		case hidden(r):
			fmt.Fprintf(&b, "<U+%04X>", r)
		default:
			b.WriteString(line[:size])
		}
		line = line[size:]
	}
	return b.String()
}

// VisibleLines is Visible for text of several lines.
func VisibleLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Visible(lines[i])
	}
	return strings.Join(lines, "\n")
}

// FirstHidden is the index of the first byte that Visible would not show as it is, or -1.
func FirstHidden(line string) int {
	for i, r := range line {
		if hidden(r) || r == utf8.RuneError && !strings.HasPrefix(line[i:], "\uFFFD") {
			return i
		}
	}
	return -1
}

// hidden holds for characters that do not show as themselves.
func hidden(r rune) bool { return r != '\t' && dispatch.Hidden(r) }

// escapeHidden spells the same characters as JSON escapes. In JSON they can stand in strings only.
func escapeHidden(json []byte) []byte {
	var b strings.Builder
	for _, r := range string(json) {
		switch {
		case r == '\n' || !hidden(r):
			b.WriteRune(r)
		case r > 0xFFFF:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String())
}
