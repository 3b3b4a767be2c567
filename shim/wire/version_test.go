package wire

import "testing"

func TestOlderThan(t *testing.T) {
	for name, tc := range map[string]struct {
		version, minimum string
		want             bool
	}{
		"no minimum":                         {"v1.2.3", "", false},
		"the same":                           {"v1.2.3", "1.2.3", false},
		"patch below":                        {"1.2.2", "1.2.3", true},
		"minor above, patch below":           {"1.3.0", "1.2.3", false},
		"ten is above nine":                  {"1.10.0", "1.9.0", false},
		"a short minimum":                    {"1.10.0", "2", true},
		"a commit is below every release":    {"f2ebfe2-dirty", "0.0.1", true},
		"commits since a tag count as a tag": {"v1.2.3-4-gabcdef", "1.2.3", false},
		"a minimum that is none":             {"9.9.9", "next", true},
		"too many parts":                     {"1.2.3.4", "1.0.0", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := OlderThan(tc.version, tc.minimum); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
