package lint

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const prefix = "KPSSH_"

// checkQuoting finds variables of an order that bash would split into words and match against files.
func (s *script) checkQuoting() {
	for node := range syntax.Preorder(s.file) {
		for _, word := range splitWords(node) {
			for _, part := range word.Parts {
				if p, ok := part.(*syntax.ParamExp); ok && s.ordered(p) && !splitsList(p) && !alternative(p) {
					s.report(p, Error, "unquoted-parameter", "$%s without quotes is split at blanks and matched against files: write \"$%s\"", p.Param.Value, p.Param.Value)
				}
			}
		}
	}
}

// splitWords are the words of a node that bash splits where they are not quoted.
func splitWords(node syntax.Node) []*syntax.Word {
	switch n := node.(type) {
	case *syntax.CallExpr:
		return n.Args
	case *syntax.WordIter:
		return n.Items
	case *syntax.ArrayElem:
		if n.Value != nil {
			return []*syntax.Word{n.Value}
		}
	case *syntax.Redirect:
		if n.Op != syntax.Hdoc && n.Op != syntax.DashHdoc && n.Op != syntax.WordHdoc {
			return []*syntax.Word{n.Word}
		}
	}
	return nil
}

// ordered says whether an expansion is the value of a variable that an order brings.
func (s *script) ordered(p *syntax.ParamExp) bool {
	return p.Param != nil && strings.HasPrefix(p.Param.Value, prefix) && !p.Length && !p.Excl
}

// splitsList holds for ${X//,/ }: who replaces by a blank wants words.
func splitsList(p *syntax.ParamExp) bool {
	return p.Repl != nil && p.Repl.With != nil && strings.TrimSpace(wordText(p.Repl.With)) == ""
}

// alternative holds for ${X:+word}, which is the word.
func alternative(p *syntax.ParamExp) bool {
	return p.Exp != nil && (p.Exp.Op == syntax.AlternateUnset || p.Exp.Op == syntax.AlternateUnsetOrNull)
}

// wordText is the text of a word as far as it stands in the script.
func wordText(word *syntax.Word) string {
	var b strings.Builder
	var add func(parts []syntax.WordPart)
	add = func(parts []syntax.WordPart) {
		for _, part := range parts {
			switch p := part.(type) {
			case *syntax.Lit:
				b.WriteString(p.Value)
			case *syntax.SglQuoted:
				b.WriteString(p.Value)
			case *syntax.DblQuoted:
				add(p.Parts)
			default:
				b.WriteString("$")
			}
		}
	}
	add(word.Parts)
	return b.String()
}

// use is how a script uses a variable.
type use struct {
	first syntax.Node
	// guarded says that it is also read in a way that bears its absence.
	guarded bool
}

// uses are the KPSSH_ variables that the script reads and does not set itself.
func (s *script) uses() map[string]*use {
	out := map[string]*use{}
	for node := range syntax.Preorder(s.file) {
		name, guarded := reads(node)
		if _, own := s.values[name]; !strings.HasPrefix(name, prefix) || own {
			continue
		}
		if out[name] == nil {
			out[name] = &use{first: node}
		}
		out[name].guarded = out[name].guarded || guarded
	}
	return out
}

// reads is the variable that a node reads, and whether it bears its absence.
func reads(node syntax.Node) (name string, guarded bool) {
	switch n := node.(type) {
	case *syntax.ParamExp:
		if n.Param == nil || n.Names != 0 {
			return "", false
		}
		return n.Param.Value, n.Exp != nil && slices.Contains([]syntax.ParExpOperator{
			syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AlternateUnset, syntax.AlternateUnsetOrNull,
			syntax.AssignUnset, syntax.AssignUnsetOrNull,
		}, n.Exp.Op)
	case *syntax.UnaryTest:
		if word, ok := n.X.(*syntax.Word); ok && n.Op == syntax.TsVarSet {
			return wordText(word), true
		}
	}
	return "", false
}

// checkParameters holds what a script reads against what an order may give it.
func (s *script) checkParameters() {
	if !s.schemaKnown {
		return
	}
	uses := s.uses()
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		u := uses[name]
		i := slices.IndexFunc(s.parameters, func(p signing.Parameter) bool { return p.Name == name })
		if i < 0 {
			s.checkUndeclared(name, u)
			continue
		}
		if isOwn(name) && s.parameters[i].Optional && !u.guarded && s.strict {
			s.report(u.first, Warning, "optional-parameter", "%s is optional, and the script ends where it is left out: write ${%s-} or ${%s:?}", name, name, name)
		}
	}
}

func (s *script) checkUndeclared(name string, u *use) {
	switch {
	case s.phase != signing.PhaseInstall && s.phase != signing.PhaseJoin:
		s.report(u.first, Error, "leave-parameter", "%s does not get %s, only %s and %s: have join write down what is needed", s.phase, name, profile.EnvHostAddress, profile.EnvNodeAddress)
	case !isOwn(name):
		s.report(u.first, Error, "undeclared-parameter", "no %s gets %s: it is neither standard nor a %s or %s name", s.phase, name, profile.PrefixVar, profile.PrefixSecret)
	case u.guarded || s.classes == 0:
		s.report(u.first, Warning, "undeclared-parameter", "%s is not declared: no order may carry it unless a node class that is signed with the profile sets it", name)
	default:
		s.report(u.first, Error, "undeclared-parameter", "%s is not declared and no class sets it: declare it in spec.parameters.%s", name, s.phase)
	}
}

// loosens says whether the declaration of a standard name is wider than the built-in one.
func loosens(d *v1beta1.Parameter) bool {
	for _, standard := range profile.Schema(profile.Join) {
		if standard.Name == d.Name {
			return standard.Type != d.Type
		}
	}
	return false
}

// checkRemovals finds rm -r of "$x/...", which is / when x is empty.
func (s *script) checkRemovals() {
	for node := range syntax.Preorder(s.file) {
		call, ok := node.(*syntax.CallExpr)
		if !ok {
			continue
		}
		name, at := commandName(call)
		if name != "rm" || !slices.ContainsFunc(call.Args[at:], recursive) {
			continue
		}
		for _, word := range call.Args[at:] {
			if p := leadingVariable(word); p != nil && s.mayBeEmpty(p) {
				s.report(word, Error, "remove-empty", "when %s is empty this removes what is below /: write \"${%s:?}\"", p.Param.Value, p.Param.Value)
			}
		}
	}
}

var recursiveForm = regexp.MustCompile(`^(-[a-zA-Z]*[rR][a-zA-Z]*|--recursive)$`)

func recursive(word *syntax.Word) bool { return recursiveForm.MatchString(word.Lit()) }

// leadingVariable is the variable that a path begins with, when a slash comes after it.
func leadingVariable(word *syntax.Word) *syntax.ParamExp {
	parts := word.Parts
	if quoted, ok := parts[0].(*syntax.DblQuoted); ok {
		parts = slices.Concat(quoted.Parts, parts[1:])
	}
	if len(parts) < 2 {
		return nil
	}
	p, ok := parts[0].(*syntax.ParamExp)
	rest := &syntax.Word{Parts: parts[1:]}
	if !ok || p.Param == nil || !syntax.ValidName(p.Param.Value) || !strings.HasPrefix(wordText(rest), "/") {
		return nil
	}
	return p
}

// mayBeEmpty says whether a variable can be seen to be empty at times.
func (s *script) mayBeEmpty(p *syntax.ParamExp) bool {
	name := p.Param.Value
	if p.Exp != nil {
		switch p.Exp.Op {
		case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
			return p.Exp.Op == syntax.ErrorUnset
		case syntax.DefaultUnsetOrNull, syntax.AssignUnsetOrNull:
			return p.Exp.Word == nil || s.emptyWord(p.Exp.Word)
		}
	}
	values, set := s.values[name]
	switch {
	case strings.HasPrefix(name, prefix) && !set:
		return true
	case !set:
		return !slices.Contains([]string{"HOME", "PWD", "OLDPWD"}, name)
	}
	return slices.ContainsFunc(values, func(word *syntax.Word) bool { return word != nil && s.emptyWord(word) })
}

// emptyWord says whether a word is empty for sure, or nothing but an optional variable.
func (s *script) emptyWord(word *syntax.Word) bool {
	if len(word.Parts) != 1 {
		return len(word.Parts) == 0
	}
	parts := word.Parts
	switch q := parts[0].(type) {
	case *syntax.SglQuoted:
		return q.Value == ""
	case *syntax.DblQuoted:
		if len(q.Parts) != 1 {
			return len(q.Parts) == 0
		}
		parts = q.Parts
	}
	p, ok := parts[0].(*syntax.ParamExp)
	if !ok || p.Param == nil {
		return false
	}
	if p.Exp != nil {
		switch p.Exp.Op {
		case syntax.DefaultUnset, syntax.DefaultUnsetOrNull:
			return p.Exp.Word == nil || s.emptyWord(p.Exp.Word)
		case syntax.ErrorUnsetOrNull:
			return false
		}
	}
	return strings.HasPrefix(p.Param.Value, prefix)
}
