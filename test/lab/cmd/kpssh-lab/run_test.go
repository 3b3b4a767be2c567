package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRunAnswersWithoutStartingAnything(t *testing.T) {
	for name, test := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"no verb is a usage error":           {nil, exitUsage, "", "Usage:"},
		"help goes to standard output":       {[]string{"-h"}, 0, "Examples:", ""},
		"an unknown verb is named":           {[]string{"fly"}, exitUsage, "", `"fly"`},
		"a verb's help is no failure":        {[]string{"up", "-h"}, 0, "", "-hosts"},
		"an unknown flag is a usage error":   {[]string{"gc", "-x"}, exitUsage, "", "-x"},
		"a stray argument is named":          {[]string{"gc", "now"}, exitUsage, "", `"now"`},
		"fewer than no hosts is refused":     {[]string{"up", "-hosts", "-1"}, exitUsage, "", "-hosts is -1"},
		"an image goes to a node":            {[]string{"image-load", "-archive", "x"}, exitUsage, "", "-node"},
		"an image has to be made first":      {[]string{"image-load", "-node", "host-a", "-archive", "/nonexistent"}, exitFailure, "", "make image"},
		"a number that is none is a refusal": {[]string{"up", "-hosts", "two"}, exitUsage, "", "two"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(t.Context(), test.args, &stdout, &stderr); got != test.code {
				t.Errorf("exit code %d, want %d", got, test.code)
			}
			if !strings.Contains(stdout.String(), test.stdout) || (test.stdout == "" && stdout.Len() > 0) {
				t.Errorf("standard output: %q", stdout.String())
			}
			if !strings.Contains(stderr.String(), test.stderr) || (test.stderr == "" && stderr.Len() > 0) {
				t.Errorf("standard error: %q", stderr.String())
			}
		})
	}
}

func TestDoctorSaysSomethingAboutEachSubject(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"doctor"}, &stdout, &stderr)
	for _, subject := range []string{"root", "tools", "go", "control groups", "disk", "caches"} {
		if !strings.Contains(stdout.String(), subject) {
			t.Errorf("it says nothing about %s: %s", subject, stdout.String())
		}
	}
	if bad := strings.Contains(stdout.String(), "FAIL"); bad != (code == exitFailure) {
		t.Errorf("exit code %d beside %s", code, stdout.String())
	}
}
