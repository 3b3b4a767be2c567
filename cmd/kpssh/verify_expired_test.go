package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

// "ok" for a root that expired was read as "hosts take it" (newcomer's walk, 2026-11).
func TestVerifyWarnsOfWhatHasExpired(t *testing.T) {
	trust := filepath.Join(t.TempDir(), "trust")
	root := filepath.Join(trust, "public", "root.1.json")
	call := func(later time.Duration, args ...string) (code int, stdout, stderr string) {
		var out, err bytes.Buffer
		env := &cli.Env{
			Prog: "kpssh", Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err, Getenv: func(string) string { return "" },
			Now: func() time.Time { return time.Now().Add(later) },
		}
		code = cli.Execute(t.Context(), env, commands(), args)
		return code, out.String(), err.String()
	}
	if code, _, stderr := call(0, "init", "--dir", trust, "--no-passphrase", "--valid-days", "1"); code != 0 {
		t.Fatal(stderr)
	}
	for name, c := range map[string]struct {
		later time.Duration
		warns bool
	}{"valid": {0, false}, "expired": {48 * time.Hour, true}} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(c.later, "verify", "root", root)
			if code != 0 || !strings.HasPrefix(stdout, "ok") || strings.Contains(stderr, "warning: the root has expired") != c.warns {
				t.Errorf("exit code %d, said %q and %q; want a warning: %t", code, stdout, stderr, c.warns)
			}
		})
	}
}
