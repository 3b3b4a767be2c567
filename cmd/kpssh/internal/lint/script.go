package lint

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"mvdan.cc/sh/v3/syntax"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// script is one rendered script under the rules.
type script struct {
	phase signing.Phase
	text  []byte
	// parameters are what an order may give to it; classes is how many node classes were given.
	parameters  []signing.Parameter
	schemaKnown bool
	classes     int

	file      *syntax.File
	functions map[string]*syntax.FuncDecl
	// values are the words that each variable is set to; nil among them is a value that cannot be seen.
	values map[string][]*syntax.Word
	strict bool // set -u is on

	findings []Finding
}

// report adds a finding at a node, or without a place.
func (s *script) report(at syntax.Node, severity Severity, rule, format string, args ...any) {
	f := Finding{Severity: severity, Rule: rule, Message: fmt.Sprintf(format, args...)}
	if at != nil {
		f.Line, f.Column = at.Pos().Line(), at.Pos().Col()
	}
	s.findings = append(s.findings, f)
}

// maxBrackets bounds how deep a script can nest: the parser recurses, and Go ends a program whose stack is full. Twice as
// many as a script of the largest size has that was written by people.
const maxBrackets = 20_000

// parse reads the script as bash and says whether that worked.
func (s *script) parse() bool {
	if bytes.Count(s.text, []byte("("))+bytes.Count(s.text, []byte("[")) > maxBrackets {
		s.report(nil, Error, "shell-syntax", "more than %d brackets: nothing else was checked, and nobody can read it", maxBrackets)
		return false
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(bytes.NewReader(s.text), "")
	if err != nil {
		f := Finding{Severity: Error, Rule: "shell-syntax", Message: err.Error()}
		var at syntax.ParseError
		var of syntax.LangError
		switch {
		case errors.As(err, &at):
			f.Line, f.Column, f.Message = at.Pos.Line(), at.Pos.Col(), at.Text
		case errors.As(err, &of):
			f.Line, f.Column, f.Message = of.Pos.Line(), of.Pos.Col(), of.Feature+" is of another shell"
		}
		f.Message = "no bash that could be read, so that no other rule was asked: " + f.Message + "; what says bash -n?"
		s.findings = append(s.findings, f)
		return false
	}
	s.file = file
	s.collect()
	return true
}

// collect finds the script's functions and what its variables are set to.
func (s *script) collect() {
	s.functions, s.values = map[string]*syntax.FuncDecl{}, map[string][]*syntax.Word{}
	for node := range syntax.Preorder(s.file) {
		switch n := node.(type) {
		case *syntax.FuncDecl:
			if n.Name != nil {
				s.functions[n.Name.Value] = n
			}
		case *syntax.CallExpr:
			s.setByCommand(n)
		default:
			s.setBySyntax(n)
		}
	}
}

// setBySyntax notes the variables that the shell itself sets.
func (s *script) setBySyntax(node syntax.Node) {
	set := func(name *syntax.Lit, values ...*syntax.Word) {
		s.values[name.Value] = append(s.values[name.Value], values...)
	}
	switch n := node.(type) {
	case *syntax.Assign:
		if n.Name != nil && !n.Naked {
			set(n.Name, n.Value)
		}
	case *syntax.WordIter:
		set(n.Name, append(slices.Clone(n.Items), nil)...)
	case *syntax.ParamExp:
		if n.Param != nil && n.Exp != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull) {
			set(n.Param, n.Exp.Word)
		}
	}
}

// setByCommand notes the variables that a builtin sets, as the words that could name them.
func (s *script) setByCommand(call *syntax.CallExpr) {
	if len(call.Args) == 0 {
		return
	}
	switch call.Args[0].Lit() {
	case "read", "mapfile", "readarray", "getopts":
	case "printf":
		if len(call.Args) < 3 || call.Args[1].Lit() != "-v" {
			return
		}
	default:
		return
	}
	for _, word := range call.Args[1:] {
		if name := word.Lit(); syntax.ValidName(name) {
			s.values[name] = append(s.values[name], nil)
		}
	}
}

// checkText looks for what an editor does not show, whatever the shell makes of it.
func (s *script) checkText() {
	n := uint(0)
	for line := range bytes.Lines(s.text) {
		n++
		text := string(bytes.TrimSuffix(line, []byte("\n")))
		if at := cli.FirstHidden(text); at >= 0 {
			s.findings = append(s.findings, Finding{
				Line: n, Column: uint(at) + 1, Severity: Error, Rule: "invisible-character",
				Message: "a character that does not show, or reorders what a reader sees: " + shown(text[at:]) + "; write it as an escape, as in $'\\u00a0'",
			})
		}
		if at, word := mixedScripts(text); at >= 0 {
			s.findings = append(s.findings, Finding{
				Line: n, Column: uint(at) + 1, Severity: Warning, Rule: "mixed-scripts",
				Message: fmt.Sprintf("%+q mixes Latin letters with ones that look like them", word),
			})
		}
	}
}

// shown is the first character of text, spelled out.
func shown(text string) string {
	for i := range text {
		if i > 0 {
			return cli.Visible(text[:i])
		}
	}
	return cli.Visible(text)
}

// mixedScripts finds a word of Latin and of Cyrillic, Greek or Armenian letters.
func mixedScripts(line string) (int, string) {
	start, latin, other := -1, false, false
	for i, r := range line + " " {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			if start < 0 {
				start = i
			}
			latin = latin || unicode.Is(unicode.Latin, r)
			other = other || unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian)
			continue
		}
		if latin && other {
			return start, line[start:i]
		}
		start, latin, other = -1, false, false
	}
	return -1, ""
}

// isOwn says whether a name is one that profiles and classes bring, not a standard one.
func isOwn(name string) bool {
	return strings.HasPrefix(name, profile.PrefixVar) || strings.HasPrefix(name, profile.PrefixSecret)
}

// commandName is the program that a call runs, without its folder and without what only starts it: sudo, env, timeout.
// at is where its own arguments begin. It is empty when the name is not in the script.
func commandName(call *syntax.CallExpr) (name string, at int) {
	starter := false
	for i, word := range call.Args {
		lit := word.Lit()
		switch {
		case starter && (strings.HasPrefix(lit, "-") || strings.Contains(lit, "=") || lit != "" && lit[0] >= '0' && lit[0] <= '9'):
			continue
		case isStarter(lit):
			starter = true
			continue
		}
		return lit[strings.LastIndexByte(lit, '/')+1:], i + 1
	}
	return "", len(call.Args)
}

func isStarter(name string) bool {
	switch name {
	case "sudo", "env", "nice", "ionice", "timeout", "nohup", "setsid", "exec", "command", "builtin", "stdbuf", "time":
		return true
	}
	return false
}

// contains says whether something in a node fits.
func contains(node syntax.Node, fits func(syntax.Node) bool) bool {
	found := false
	syntax.Walk(node, func(n syntax.Node) bool {
		if n == nil || found {
			return false
		}
		found = fits(n)
		return !found
	})
	return found
}
