package wire

import (
	"strconv"
	"strings"
)

// OlderThan reports whether version is below minimum. Only MAJOR.MINOR.PATCH count; a version that
// is not made of them (a build between releases) is older than any minimum, and a minimum that is
// not is above every version: an author who asks for something that is not understood must not get
// less.
func OlderThan(version, minimum string) bool {
	if minimum == "" {
		return false
	}
	want, ok := parseVersion(minimum)
	if !ok {
		return true
	}
	have, ok := parseVersion(version)
	if !ok {
		return true
	}
	for i := range want {
		if have[i] != want[i] {
			return have[i] < want[i]
		}
	}
	return false
}

func parseVersion(s string) (v [3]int, ok bool) {
	s = strings.TrimPrefix(s, "v")
	s, _, _ = strings.Cut(s, "+")
	s, _, _ = strings.Cut(s, "-")
	parts := strings.Split(s, ".")
	if len(parts) > len(v) {
		return v, false
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return v, false
		}
		v[i] = n
	}
	return v, true
}
