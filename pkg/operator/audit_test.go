package operator

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWhetherAFileEndsWithinALine(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		text string
		want bool
	}{
		"whole": {"a\nb\n", false}, "torn": {"a\nb", true}, "empty": {"", false},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := endsWithinLine(path); err != nil || got != tt.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := endsWithinLine(filepath.Join(dir, "missing")); err != nil || got {
		t.Errorf("missing: %v, %v", got, err)
	}
	if _, err := endsWithinLine(filepath.Join(dir, "whole", "not-a-directory")); err == nil {
		t.Error("no error for what cannot be read")
	}
}
