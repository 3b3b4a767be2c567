package main

import (
	"regexp"
	"slices"
	"testing"
)

// Whatever a peer sends has a parser, and every parser of that kind a target.
func TestEveryParserOfRemoteBytesHasATarget(t *testing.T) {
	all, err := targets("../..", regexp.MustCompile("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []target{
		{"shim/wire", "FuzzFrame"}, {"shim/wire", "FuzzRecord"}, {"shim", "FuzzSession"},
		{"signing", "FuzzEnvelope"}, {"signing", "FuzzRoot"}, {"signing", "FuzzAllowlist"}, {"signing", "FuzzOrder"},
		{"signing", "FuzzHello"}, {"signing", "FuzzReceipt"}, {"signing", "FuzzParameters"}, {"signing", "FuzzCertificate"},
		{"signing", "FuzzMalleability"}, {"signing", "FuzzDifferential"},
		{"pkg/dispatch", "FuzzFacts"}, {"pkg/dispatch", "FuzzSanitise"},
		{"cmd/kpssh/internal/enroll", "FuzzStatement"}, {"cmd/kpssh/internal/sshsig", "FuzzVerify"},
	} {
		if !slices.ContainsFunc(all, func(have target) bool { return have.name == want.name && have.dir == "../../"+want.dir }) {
			t.Errorf("there is no target %s", want)
		}
	}
}

func TestATargetThatTriesNothingNewHasFailed(t *testing.T) {
	const start = "fuzz: elapsed: 0s, gathering baseline coverage: 0/12 completed\nfuzz: elapsed: 1s, gathering baseline coverage: 12/12 completed, now fuzzing with 1 workers\n"
	for text, want := range map[string]bool{
		start + "fuzz: elapsed: 3s, execs: 12 (4/sec), new interesting: 0 (total: 12)\nPASS\n":  true,
		start + "fuzz: elapsed: 3s, execs: 512 (4/sec), new interesting: 0 (total: 12)\nPASS\n": false,
		"PASS\n": true,
	} {
		if err := idle(text); (err != nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSummary(t *testing.T) {
	got := summary("fuzz: elapsed: 3s, execs: 10 (3/sec), new interesting: 1 (total: 12)\n" +
		"fuzz: elapsed: 6s, execs: 325017 (108336/sec), new interesting: 11 (total: 202)\nPASS\n")
	if want := "325017 inputs, 202 kept (11 new)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
