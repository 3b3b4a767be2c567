package lint

import (
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Rules are the names of all rules of our own, sorted.
func Rules() []string {
	return []string{
		"declaration", "download-runs", "download-unchecked", "invisible-character", "leave-parameter", "leave-stops",
		"loosened-parameter", "mixed-scripts", "not-rendered", "one-sided-parameter", "open-repository", "optional-parameter",
		"optional-pin", "remove-empty", "secret-argument", "secret-traced", "shell-syntax", "strict-mode", "template",
		"undeclared-parameter", "unknown-rule", "unquoted-parameter", "unused-parameter",
	}
}

// directive turns rules off in lines from first to last.
type directive struct {
	rules       []string
	first, last uint
}

type directives []directive

var directiveForm = regexp.MustCompile(`^\s*kpssh-lint:\s*disable=(\S+)`)

// directives reads the comments that turn rules off.
func (s *script) directives() directives {
	var out directives
	if s.file == nil { // the parser is not perfect: its own rule can be turned off without it
		for _, text := range s.header() {
			out = append(out, directive{s.rulesOff(&syntax.Comment{Text: text}), 0, ^uint(0)})
		}
		return out
	}
	header := ^uint(0)
	if len(s.file.Stmts) > 0 {
		header = s.file.Stmts[0].Position.Line()
	}
	for node := range syntax.Preorder(s.file) {
		switch n := node.(type) {
		case *syntax.Stmt:
			for i := range n.Comments {
				if c := &n.Comments[i]; c.Hash.Line() < n.Position.Line() {
					out = append(out, directive{s.rulesOff(c), n.Position.Line(), n.End().Line()})
				}
			}
		case *syntax.Comment:
			d := directive{s.rulesOff(n), n.Hash.Line(), n.Hash.Line()}
			if d.first < header {
				d.first, d.last = 0, ^uint(0)
			}
			out = append(out, d)
		}
	}
	return out
}

// rulesOff are the rules that a comment turns off.
func (s *script) rulesOff(c *syntax.Comment) []string {
	form := directiveForm.FindStringSubmatch(c.Text)
	if form == nil {
		return nil
	}
	rules := strings.Split(form[1], ",")
	for _, rule := range rules {
		if !slices.Contains(Rules(), rule) {
			s.report(c, Warning, "unknown-rule", "there is no rule %q to turn off", rule)
		}
	}
	return rules
}

// header is the comments above the first command.
func (s *script) header() []string {
	var out []string
	for line := range strings.Lines(string(s.text)) {
		text, comment := strings.CutPrefix(strings.TrimSpace(line), "#")
		if !comment && text != "" {
			break
		}
		out = append(out, text)
	}
	return out
}

// apply leaves out the findings that were turned off.
func (d directives) apply(findings []Finding) []Finding {
	d = slices.DeleteFunc(d, func(off directive) bool { return len(off.rules) == 0 })
	return slices.DeleteFunc(findings, func(f Finding) bool {
		return slices.ContainsFunc(d, func(off directive) bool {
			return f.Line >= off.first && f.Line <= off.last && slices.Contains(off.rules, f.Rule)
		})
	})
}
