package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func constant(n int, ours, other float64) *sides {
	s := &sides{}
	for range n {
		s.ours, s.other = append(s.ours, ours), append(s.other, other)
	}
	return s
}

func TestVerdicts(t *testing.T) {
	wide := constant(5, 1, 1)
	wide.ours = []float64{0.5, 0.9, 1.1, 2, 3}
	for name, tc := range map[string]struct {
		sides    *sides
		most     float64
		required bool
		want     string
		fails    bool
	}{
		"a goal that is met":                               {constant(9, 1, 2), 0.6, true, reached, false},
		"a goal that is just met":                          {constant(9, 1, 2), 0.5, true, reached, false},
		"a goal that the interval excludes":                {constant(9, 1, 2), 0.4, true, notReached, true},
		"a goal within the interval":                       {wide, 1, true, undecided, false},
		"a report that is met":                             {constant(9, 1, 2), 0.6, false, "reported: " + reached, false},
		"a report whose goal the interval excludes":        {constant(9, 1, 2), 0.4, false, "reported: " + notReached, false},
		"a report whose goal is within the interval of it": {wide, 1, false, "reported: " + undecided, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := goal{figure: "P0", most: tc.most, required: tc.required, quantile: 0.5}.judge(tc.sides)
			if r.Verdict != tc.want || r.fails() != tc.fails {
				t.Errorf("%+v: fails %v", r, r.fails())
			}
		})
	}
}

func TestTheTableIsAligned(t *testing.T) {
	results := []Result{
		goal{figure: "P2", what: "short", most: 0.3, asked: 0.1, required: true, quantile: 0.5}.judge(constant(200, 1, 5)),
		goal{figure: "Q1 typical", what: "something that takes longer to say", most: 2, quantile: 0.5}.judge(constant(9, 300, 2)),
	}
	var out bytes.Buffer
	if err := writeTable(&out, results); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	at := -1
	for i, word := range []string{"goal", "≤ 0.30", "≤ 2.00"} {
		before, _, found := strings.Cut(lines[i], word)
		if column := utf8.RuneCountInString(before); !found || at >= 0 && column != at {
			t.Errorf("%q is not where the goals are:\n%s", word, &out)
		} else {
			at = column
		}
	}
	for _, want := range []string{"0.200", "≤ 0.30 (asked: 0.10)", "0.200 … 0.200", "150.000", "200", "reached", "reported: not reached"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}

func TestJSONHasWhatTheTableHas(t *testing.T) {
	var out bytes.Buffer
	want := goal{figure: "P2", what: "a / b", most: 0.3, required: true, quantile: 0.5, unit: "s"}.judge(constant(20, 1, 5))
	if err := writeJSON(&out, []Result{want}); err != nil {
		t.Fatal(err)
	}
	var got []Result
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
		only string
	}{
		"everything":       {nil, 0, "", "P9 P1 P2 P3 P4 P5 P6 P7 P8 Q1 Q3 Q4 Q5 Q6 Q7 Q8 Q9 Q10 P10 Q2"},
		"two figures":      {[]string{"--only", "P2,Q1", "-o", "json"}, 0, "", "P2 Q1"},
		"help":             {[]string{"-h"}, 0, "Example:", ""},
		"a figure of none": {[]string{"--only", "P2,P77"}, 2, `no figure "P77"`, ""},
		"another format":   {[]string{"-o", "xml"}, 2, `no format "xml"`, ""},
		"a stray word":     {[]string{"P2"}, 2, `"P2" is no flag`, ""},
		"another flag":     {[]string{"--pairs", "3"}, 2, "Usage:", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			b := &bench{}
			code, ok := b.parse(tc.args, &stderr)
			if ok != (tc.only != "") || code != tc.code || !strings.Contains(stderr.String(), tc.says) {
				t.Errorf("code %d, %v: %s", code, ok, &stderr)
			}
			if got := strings.Join(b.only, " "); ok && got != tc.only {
				t.Errorf("measures %s", got)
			}
		})
	}
}

func TestAnErrorEndsWithOne(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var stdout, stderr bytes.Buffer
	if code := run(ctx, []string{"--only", "P2"}, &stdout, &stderr); code != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "bench: error: ") {
		t.Errorf("code %d\n%s\n%s", code, &stdout, &stderr)
	}
}
