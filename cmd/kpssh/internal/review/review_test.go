package review

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func allowlist(version int64, scripts ...signing.AllowedScript) *signing.Allowlist {
	issued := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &signing.Allowlist{Version: version, Issued: issued, Expires: issued.AddDate(1, 0, 0), Scripts: scripts}
}

func script(version string, phase signing.Phase, text string, parameters ...signing.Parameter) signing.AllowedScript {
	return signing.AllowedScript{Profile: "demo", Version: version, Phase: phase, Digest: signing.Digest([]byte(text)), Parameters: parameters}
}

func library(texts ...string) *Library {
	l := NewLibrary()
	for _, text := range texts {
		l.Add([]byte(text))
	}
	return l
}

// Each row is one change of a schema, and whether it lets an order carry what it could not carry before.
func TestASchemaThatGivesMoreRightsIsMarked(t *testing.T) {
	type p = signing.Parameter
	str := signing.ParamString
	for name, c := range map[string]struct {
		old, next p
		field     string
		wider     string // part of the mark; empty for none
	}{
		"a pin is lost":                          {p{Type: str, Pins: []string{"a"}}, p{Type: str}, "pins", "no pin narrows it"},
		"a pin comes to others":                  {p{Type: str, Pins: []string{"a"}}, p{Type: str, Pins: []string{"a", "b"}}, "pins", `refused before: "b"`},
		"another pin":                            {p{Type: str, Pins: []string{"a"}}, p{Type: str, Pins: []string{"b"}}, "pins", `refused before: "b"`},
		"fewer pins":                             {p{Type: str, Pins: []string{"a", "b"}}, p{Type: str, Pins: []string{"a"}}, "pins", ""},
		"a first pin":                            {p{Type: str}, p{Type: str, Pins: []string{"a"}}, "pins", ""},
		"a first pin that the pattern refused":   {p{Type: str, Pattern: "[0-9]"}, p{Type: str, Pattern: "[a-z]", Pins: []string{"a"}}, "pins", `refused before: "a"`},
		"a pin becomes one of several":           {p{Type: str, Pins: []string{"a"}}, p{Type: str, Enum: []string{"a", "b"}}, "enum", `refused before: "b"`},
		"a certificate more":                     {p{Type: signing.ParamCABundle, Pins: []string{"sha256:1"}}, p{Type: signing.ParamCABundle, Pins: []string{"sha256:1", "sha256:2"}}, "pins", "sha256:2"},
		"a first certificate":                    {p{Type: signing.ParamCABundle}, p{Type: signing.ParamCABundle, Pins: []string{"sha256:1"}}, "pins", ""},
		"a value more":                           {p{Type: str, Enum: []string{"a"}}, p{Type: str, Enum: []string{"a", "b"}}, "enum", `refused before: "b"`},
		"a value less":                           {p{Type: str, Enum: []string{"a", "b"}}, p{Type: str, Enum: []string{"a"}}, "enum", ""},
		"values are no longer listed":            {p{Type: str, Enum: []string{"a"}}, p{Type: str, Pattern: "a"}, "enum", "no list of values"},
		"a pattern is lost":                      {p{Type: str, Pattern: "a"}, p{Type: str}, "pattern", "no pattern narrows"},
		"a pattern changes":                      {p{Type: str, Pattern: "a"}, p{Type: str, Pattern: "b"}, "pattern", "only a reader can tell"},
		"a first pattern":                        {p{Type: str}, p{Type: str, Pattern: "b"}, "pattern", ""},
		"a pattern changes that a pin overrules": {p{Type: str, Pattern: "[a-z]", Pins: []string{"a"}}, p{Type: str, Pattern: ".*", Pins: []string{"a"}}, "pattern", ""},
		"longer":                                 {p{Type: str, MaxLength: 5}, p{Type: str, MaxLength: 6}, "maxLength", "longer values"},
		"shorter":                                {p{Type: str, MaxLength: 6}, p{Type: str, MaxLength: 5}, "maxLength", ""},
		"longer than the type's own limit":       {p{Type: str}, p{Type: str, MaxLength: 4096}, "maxLength", "longer values"},
		"back to the type's own limit":           {p{Type: str, MaxLength: 10}, p{Type: str}, "maxLength", "longer values"},
		"it may be left out":                     {p{Type: str}, p{Type: str, Optional: true}, "optional", "leave it out"},
		"it must be there":                       {p{Type: str, Optional: true}, p{Type: str}, "optional", ""},
		"a secret becomes plain":                 {p{Type: str, Secret: true}, p{Type: str}, "secret", "in the clear"},
		"a secret becomes plain and pinned":      {p{Type: str, Secret: true}, p{Type: str, Pins: []string{"a"}}, "secret", "in the clear"},
		"it becomes a secret":                    {p{Type: str}, p{Type: str, Secret: true}, "secret", ""},
		"an address becomes text":                {p{Type: signing.ParamIP}, p{Type: str}, "type", "other values"},
		"text becomes an address":                {p{Type: str}, p{Type: signing.ParamIP}, "type", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.old.Name, c.next.Name = "KPSSH_VAR_X", "KPSSH_VAR_X"
			r := Compare(allowlist(1, script("1", signing.PhaseJoin, "x", c.old)), allowlist(2, script("1", signing.PhaseJoin, "x", c.next)), library("x").Text)
			if len(r.Scripts) != 1 || r.Same() {
				t.Fatalf("%d scripts changed", len(r.Scripts))
			}
			i := slices.IndexFunc(r.Scripts[0].Schema, func(d Difference) bool { return d.Field == c.field && d.Parameter == "KPSSH_VAR_X" })
			if i < 0 {
				t.Fatalf("no word of %s: %+v", c.field, r.Scripts[0].Schema)
			}
			mark := r.Scripts[0].Schema[i].Widens
			if (mark == "") != (c.wider == "") || !strings.Contains(mark, c.wider) {
				t.Errorf("%s is marked %q, want %q", c.field, mark, c.wider)
			}
			if c.wider != "" && r.Widens == 0 {
				t.Error("the mark is not counted")
			}
		})
	}
}

func TestAnAllowlistThatGivesMoreRightsIsMarked(t *testing.T) {
	same := script("1", signing.PhaseLeave, "x")
	for name, c := range map[string]struct {
		change func(old, next *signing.Allowlist)
		field  string
		wider  bool
	}{
		"it expires as late after its issue": {func(_, next *signing.Allowlist) {
			next.Issued, next.Expires = next.Issued.AddDate(0, 1, 0), next.Expires.AddDate(0, 1, 0).Add(time.Hour)
		}, "expires", false},
		"it holds for longer":      {func(_, next *signing.Allowlist) { next.Expires = next.Expires.AddDate(1, 0, 0) }, "expires", true},
		"a first minShim":          {func(_, next *signing.Allowlist) { next.MinShim = "1.0.0" }, "minShim", false},
		"no minShim any more":      {func(old, _ *signing.Allowlist) { old.MinShim = "1.0.0" }, "minShim", true},
		"a lower minShim":          {func(old, next *signing.Allowlist) { old.MinShim, next.MinShim = "1.10.0", "1.9.0" }, "minShim", true},
		"a higher minShim":         {func(old, next *signing.Allowlist) { old.MinShim, next.MinShim = "1.9.0", "1.10.0" }, "minShim", false},
		"a longer grace":           {func(_, next *signing.Allowlist) { next.Scripts[0].GraceSeconds = 60 }, "grace", true},
		"a shorter grace":          {func(old, _ *signing.Allowlist) { old.Scripts[0].GraceSeconds = 60 }, "grace", false},
		"the version of the other": {func(old, next *signing.Allowlist) { old.Version = next.Version; next.MinShim = "1.0.0" }, "version", true},
	} {
		t.Run(name, func(t *testing.T) {
			old, next := allowlist(1, same), allowlist(2, same)
			old.Scripts, next.Scripts = slices.Clone(old.Scripts), slices.Clone(next.Scripts)
			c.change(old, next)
			r := Compare(old, next, library().Text)
			all := r.Document
			for _, s := range r.Scripts {
				all = append(all, s.Schema...)
			}
			i := slices.IndexFunc(all, func(d Difference) bool { return d.Field == c.field })
			if i < 0 || (all[i].Widens != "") != c.wider {
				t.Errorf("%+v, want %s, marked: %v", all, c.field, c.wider)
			}
		})
	}
}

// Two node classes give two scripts of one place. Each is compared with its own predecessor, not with the other's.
func TestScriptsOfSeveralClassesArePairedByTheirText(t *testing.T) {
	text := func(zone, word string) string {
		return strings.Repeat("echo "+zone+"\n", 5) + "echo " + word + "\n"
	}
	l := library(text("eu", "a"), text("us", "a"), text("eu", "b"), text("us", "b"))
	old := allowlist(1, script("1", signing.PhaseJoin, text("eu", "a")), script("1", signing.PhaseJoin, text("us", "a")))
	next := allowlist(2, script("1", signing.PhaseJoin, text("us", "b")), script("1", signing.PhaseJoin, text("eu", "b")))
	r := Compare(old, next, l.Text)
	if len(r.Scripts) != 2 {
		t.Fatalf("%+v", r.Scripts)
	}
	for _, s := range r.Scripts {
		if s.AddedLines != 1 || s.RemovedLines != 1 {
			t.Errorf("+%d -%d:\n%s", s.AddedLines, s.RemovedLines, s.Diff)
		}
	}
}

func TestAnAddedScriptIsComparedWithTheNearestThatWasThere(t *testing.T) {
	l := library("a\n", "b\n", "c\n")
	for name, c := range map[string]struct {
		old   []signing.AllowedScript
		added signing.AllowedScript
		want  string // version that it is compared with, and the mark
	}{
		"a new version, with the newest": {
			[]signing.AllowedScript{script("9", signing.PhaseJoin, "a\n"), script("10", signing.PhaseJoin, "b\n"), script("11", signing.PhaseInstall, "c\n")},
			script("12", signing.PhaseJoin, "c\n"), "10 ",
		},
		"one more of a version, with its like": {
			[]signing.AllowedScript{script("1", signing.PhaseJoin, "a\n"), script("2", signing.PhaseJoin, "b\n")},
			script("1", signing.PhaseJoin, "c\n"), "1 one more script for this phase, beside those that stay",
		},
		"a phase that had none": {
			[]signing.AllowedScript{script("1", signing.PhaseJoin, "a\n")},
			script("1", signing.PhaseUninstall, "c\n"), " nothing of demo could run as uninstall before",
		},
		"the very first": {nil, script("1", signing.PhaseJoin, "c\n"), " "},
	} {
		t.Run(name, func(t *testing.T) {
			var old *signing.Allowlist
			if c.old != nil {
				old = allowlist(1, c.old...)
			}
			r := Compare(old, allowlist(2, append(slices.Clone(c.old), c.added)...), l.Text)
			if len(r.Scripts) != 1 || r.Scripts[0].Change != Added {
				t.Fatalf("%+v", r.Scripts)
			}
			if got := r.Scripts[0].OldVersion + " " + r.Scripts[0].Widens; got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if r.Scripts[0].Diff == "" {
				t.Error("no diff")
			}
		})
	}
}

func TestVersionsAreOrderedAsPeopleCount(t *testing.T) {
	want := []string{"1", "1.2", "1.9", "1.10", "1.10.1", "2-rc", "10", "99999999999999999999999", "100000000000000000000000", "a"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareVersions)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What signed allowlists may hold at worst, and what unsigned ones may: a review ends, soon, and prints nothing that acts.
func TestHostileInputEndsInHarmlessText(t *testing.T) {
	big := strings.Repeat("x\n", profile.MaxScript/2)
	evil := "\x1b]0;title\a\n\u202e\u2066 \xff\x00\r! MORE RIGHTS: none\nallowlist version 1 → 2\n\u2028nothing changed"
	for name, c := range map[string]struct{ old, next string }{
		"every line the same":   {big, big + "y"},
		"every line another":    {numbers(0), numbers(1)},
		"one endless line":      {strings.Repeat("a", profile.MaxScript), strings.Repeat("b", profile.MaxScript)},
		"text that would act":   {"true\n", evil},
		"text that did act":     {evil, "true\n"},
		"a name that would act": {"true\n", "false\n"},
	} {
		t.Run(name, func(t *testing.T) {
			old, next := script("1", signing.PhaseJoin, c.old), script("1", signing.PhaseJoin, c.next)
			old.Profile, next.Profile = "a\x1b[2J\u202e\nnothing changed", "a\x1b[2J\u202e\nnothing changed"
			next.Parameters = []signing.Parameter{{Name: evil, Type: signing.ParamType(evil), Pattern: evil, Enum: []string{evil}, Pins: []string{evil}}}
			start := time.Now()
			r := Compare(allowlist(1, old), allowlist(2, next), library(c.old, c.next).Text)
			var out bytes.Buffer
			if err := r.Print(&out, Style{}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			for i, line := range strings.Split(out.String(), "\n") {
				if strings.ContainsAny(line, "\x1b\x00\r\a\u202e\u2066\u2028") || !utf8.ValidString(line) {
					t.Fatalf("line %d acts: %q", i+1, line)
				}
				if i > 0 && (strings.HasPrefix(line, "allowlist version") || strings.HasPrefix(line, "nothing changed")) {
					t.Errorf("a script wrote line %d of the report: %q", i+1, line)
				}
			}
			if len(r.Scripts) != 1 || r.Scripts[0].Diff == "" {
				t.Errorf("%d scripts", len(r.Scripts))
			}
		})
	}
}

// Colour is the report's own, around whole lines; text of scripts never brings any.
func TestColourIsTheReportsOwn(t *testing.T) {
	r := Compare(allowlist(1, script("1", signing.PhaseJoin, "a\n")), allowlist(2, script("1", signing.PhaseJoin, "\x1b[31mb\n")), library("a\n", "\x1b[31mb\n").Text)
	var plain, coloured bytes.Buffer
	if err := r.Print(&plain, Style{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Print(&coloured, Style{Colour: true}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(coloured.String(), "\x1b[32m+<U+001B>[31mb\x1b[0m\n") {
		t.Errorf("%q", coloured.String())
	}
	if got := regexp.MustCompile("\x1b\\[[0-9;]+m").ReplaceAllString(coloured.String(), ""); got != plain.String() {
		t.Errorf("without its colours it is\n%s\nnot\n%s", got, plain.String())
	}
}

func numbers(from int) string {
	var b strings.Builder
	for i := from; b.Len() < profile.MaxScript-16; i += 2 {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// A digest of an unsigned allowlist is not a path, and a file counts only if it holds what its name says.
func TestTextsAreFoundByTheirDigestOnly(t *testing.T) {
	dir := t.TempDir()
	if err := Keep(filepath.Join(dir, "scripts"), [][]byte{[]byte("kept\n"), []byte("kept\n")}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret.sh"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	forged := signing.Digest([]byte("other\n"))
	if err := os.WriteFile(filepath.Join(dir, "scripts", forged[len("sha256:"):]+".sh"), []byte("forged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := signing.Digest([]byte("folder\n"))
	if err := os.Mkdir(filepath.Join(dir, "scripts", pipe[len("sha256:"):]+".sh"), 0o700); err != nil {
		t.Fatal(err)
	}
	l := NewLibrary(filepath.Join(dir, "nowhere"), filepath.Join(dir, "scripts"))
	if text, ok := l.Text(signing.Digest([]byte("kept\n"))); !ok || string(text) != "kept\n" {
		t.Errorf("kept: %q, %v", text, ok)
	}
	for _, digest := range []string{forged, pipe, "sha256:../secret", "sha256:" + strings.Repeat("0", 64), ""} {
		if text, ok := l.Text(digest); ok {
			t.Errorf("%q gave %q", digest, text)
		}
	}
	if len(l.Damaged) != 2 {
		t.Errorf("damaged: %v", l.Damaged)
	}
}
