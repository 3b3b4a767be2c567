package profile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxScript is the largest script in bytes, before and after rendering.
const MaxScript = 256 << 10

// Check refuses a script that a host could not run as its author meant it: the shim feeds it to bash
// as it is, so another interpreter, options on the shebang line and CR LF line ends would be ignored
// or fail in the middle.
func Check(script []byte) error {
	switch {
	case len(bytes.TrimSpace(script)) == 0:
		return errors.New("script is empty")
	case len(script) > MaxScript:
		return fmt.Errorf("script has %d bytes, at most %d", len(script), MaxScript)
	case bytes.IndexByte(script, 0) >= 0:
		return fmt.Errorf("script holds a NUL byte in line %d", line(script, bytes.IndexByte(script, 0)))
	case bytes.IndexByte(script, '\r') >= 0:
		return fmt.Errorf("script holds a carriage return in line %d: save it with LF line ends", line(script, bytes.IndexByte(script, '\r')))
	case bytes.HasPrefix(script, []byte("\xef\xbb\xbf")):
		return errors.New("script begins with a byte order mark")
	case !utf8.Valid(script):
		return errors.New("script is not UTF-8")
	}
	return checkShebang(script)
}

func line(script []byte, at int) int { return 1 + bytes.Count(script[:at], []byte("\n")) }

func checkShebang(script []byte) error {
	first, _, _ := strings.Cut(string(script), "\n")
	command, found := strings.CutPrefix(first, "#!")
	if !found {
		return nil
	}
	words := strings.Fields(command)
	if len(words) > 1 && words[0] == "/usr/bin/env" {
		words = words[1:]
	}
	if len(words) == 0 || !slices.Contains([]string{"bash", "/bin/bash", "/usr/bin/bash", "sh", "/bin/sh", "/usr/bin/sh"}, words[0]) {
		return fmt.Errorf("script asks for the interpreter %.80q, hosts run bash", strings.TrimSpace(command))
	}
	if len(words) > 1 {
		return fmt.Errorf("options in the first line (%.80q) have no effect on hosts, use set", first)
	}
	return nil
}
