package main

import (
	"flag"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

// Usage texts are written by hand; this keeps them complete.
func TestEveryVerbSaysHowItIsUsed(t *testing.T) {
	var visit func(cmd *cli.Command, path string)
	visit = func(cmd *cli.Command, path string) {
		for _, sub := range cmd.Sub {
			visit(sub, path+" "+sub.Name)
		}
		if cmd.Name != "kpssh" && (cmd.Short == "" || strings.HasSuffix(cmd.Short, ".")) {
			t.Errorf("%s: its one line is %q", path, cmd.Short)
		}
		if !strings.HasPrefix(cmd.Usage, "\nUsage: @"+path) {
			t.Errorf("%s: its usage begins with %.40q", path, cmd.Usage)
		}
		for line := range strings.Lines(cmd.Usage) {
			if len(strings.ReplaceAll(line, "@kpssh", "kpssh")) > 88 {
				t.Errorf("%s: line too long: %s", path, line)
			}
		}
		if strings.Contains(cmd.Usage, "ed25519:") {
			t.Errorf("%s: its usage shows an Ed25519 key as a host's, which makes P-256 ones", path)
		}
		if len(cmd.Sub) > 0 {
			return
		}
		if !strings.Contains(cmd.Usage, "\nExample:\n    $ ") {
			t.Errorf("%s: no example", path)
		}
		checkFlags(t, cmd, path)
	}
	visit(commands(), "kpssh")
}

func checkFlags(t *testing.T, cmd *cli.Command, path string) {
	t.Helper()
	fs := flag.NewFlagSet(path, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if cmd.Flags != nil {
		cmd.Flags(fs)
	}
	registered := map[string]bool{}
	fs.VisitAll(func(f *flag.Flag) {
		registered[f.Name] = true
		dashes := "--"
		if len(f.Name) == 1 {
			dashes = "-"
		}
		if !regexp.MustCompile(`(^|[ ,\n])` + dashes + f.Name + `\b`).MatchString(cmd.Usage) {
			t.Errorf("%s: flag %s%s is not in its usage", path, dashes, f.Name)
		}
	})
	_, text, _ := strings.Cut(cmd.Usage, "\nFlags:\n")
	text, _, _ = strings.Cut(text, "\nExample:")
	for _, found := range regexp.MustCompile(`(?m)^  (-\w, )?--([a-z-]+)`).FindAllStringSubmatch(text, -1) {
		if !registered[found[2]] {
			t.Errorf("%s: its usage names --%s, which is no flag", path, found[2])
		}
	}
}
