package enroll

import "testing"

func TestOlderComparesReleasesAndNothingElse(t *testing.T) {
	for _, tc := range []struct {
		have, than string
		want       bool
	}{
		{"v1.2.3", "v1.10.0", true},
		{"1.2.3-rc.1", "v1.2.3", true},
		{"v1.2.3", "1.2.3", false},
		{"v2.0.0", "v1.9.9", false},
		{"dev", "v1.0.0", false},
		{"v1.0.0", "0cf3a21-dirty", false},
		{"", "v1.0.0", false},
	} {
		if got := Older(tc.have, tc.than); got != tc.want {
			t.Errorf("Older(%q, %q) is %v", tc.have, tc.than, got)
		}
	}
}
