package lint

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// checkSecrets follows secrets to where others can read them: a trace on the script's output, the arguments of a process.
func (s *script) checkSecrets() {
	t := &secrets{script: s, names: map[string]bool{}}
	t.spread()
	if len(t.names) == 0 && !contains(s.file, func(n syntax.Node) bool { return t.is(n) }) {
		return
	}
	for node := range syntax.Preorder(s.file) {
		if call, ok := node.(*syntax.CallExpr); ok {
			t.checkArguments(call)
		}
	}
	t.checkTrace()
}

type secrets struct {
	*script
	// names are the script's own variables that hold a secret.
	names map[string]bool
	// traces are the functions that turn xtrace on.
	traces map[string]bool
	// traced says that xtrace is on somewhere.
	traced bool
}

// is says whether a node gives a secret's value. Its length, and words that stand in its place, are no secrets.
func (t *secrets) is(node syntax.Node) bool {
	p, ok := node.(*syntax.ParamExp)
	if !ok || p.Param == nil || p.Length || p.Exp != nil && (p.Exp.Op == syntax.AlternateUnset || p.Exp.Op == syntax.AlternateUnsetOrNull) {
		return false
	}
	name := p.Param.Value
	return strings.HasPrefix(name, profile.PrefixSecret) || name == profile.EnvBootstrapToken || t.names[name]
}

// spread finds the variables that a secret was copied to, until there are no more.
func (t *secrets) spread() {
	for more := true; more; {
		more = false
		for name, words := range t.values {
			for _, word := range words {
				if !t.names[name] && word != nil && t.copied(word) {
					t.names[name], more = true, true
				}
			}
		}
	}
}

// copied says whether a secret is in the value of a word. What a command makes of a secret is one if the command only
// passes text on.
func (t *secrets) copied(word syntax.Node) bool {
	found := false
	syntax.Walk(word, func(n syntax.Node) bool {
		if n == nil || found {
			return false
		}
		switch n := n.(type) {
		case *syntax.ProcSubst:
			return false
		case *syntax.CmdSubst:
			return !contains(n, func(in syntax.Node) bool {
				call, ok := in.(*syntax.CallExpr)
				return ok && len(call.Args) > 0 && !passesOn(call)
			})
		}
		found = t.is(n)
		return !found
	})
	return found
}

func passesOn(call *syntax.CallExpr) bool {
	name, _ := commandName(call)
	switch name {
	case "printf", "echo", "cat", "base64", "tr", "sed", "cut", "head", "tail", "awk", "jq", "xxd":
		return true
	}
	return false
}

// checkArguments finds secrets among the arguments of programs: any user of the host reads those in /proc.
func (t *secrets) checkArguments(call *syntax.CallExpr) {
	if len(call.Args) < 2 {
		return
	}
	name, _ := commandName(call)
	first := call.Args[0].Lit()
	if name != "" && (builtins[name] || t.functions[name] != nil) && (!isStarter(first) || first == "command" || first == "builtin") {
		return
	}
	for _, word := range call.Args[1:] {
		if t.inArgument(word) {
			t.report(word, Error, "secret-argument", "a secret in the arguments of %s, where every user of the host can read it: pass it by stdin, <(...) or a file", orProgram(name))
			return
		}
	}
}

func orProgram(name string) string {
	if name == "" {
		return "a program"
	}
	return name
}

// inArgument says whether a word's value holds a secret. What stands in <(...) reaches a program as a file.
func (t *secrets) inArgument(word *syntax.Word) bool {
	found := false
	syntax.Walk(word, func(n syntax.Node) bool {
		if n == nil || found {
			return false
		}
		if _, file := n.(*syntax.ProcSubst); file {
			return false
		}
		if sub, ok := n.(*syntax.CmdSubst); ok {
			found = t.copied(sub)
			return false
		}
		found = t.is(n)
		return !found
	})
	return found
}

// checkTrace finds secrets where set -x may be on. It follows the script from top to bottom; a branch that may have
// turned it on counts, one that may have turned it off does not. Functions may be called from wherever it is on.
func (t *secrets) checkTrace() {
	t.traces = map[string]bool{}
	for name, f := range t.functions {
		t.traces[name] = contains(f.Body, func(n syntax.Node) bool { return xtrace(n) == traceOn })
	}
	t.traced = contains(t.file, func(n syntax.Node) bool { return xtrace(n) == traceOn })
	if !t.traced {
		return
	}
	t.statements(t.file.Stmts, false)
	for _, f := range t.functions {
		t.statement(f.Body, true)
	}
}

func (t *secrets) statements(list []*syntax.Stmt, on bool) bool {
	for _, stmt := range list {
		on = t.statement(stmt, on)
	}
	return on
}

// statement returns whether xtrace may be on after it.
func (t *secrets) statement(stmt *syntax.Stmt, on bool) bool {
	if stmt == nil || stmt.Cmd == nil {
		return on
	}
	switch c := stmt.Cmd.(type) {
	case *syntax.Block:
		return t.statements(c.Stmts, on)
	case *syntax.Subshell:
		t.statements(c.Stmts, on)
		return on
	case *syntax.IfClause:
		return t.branch(c, on)
	case *syntax.WhileClause, *syntax.ForClause, *syntax.CaseClause:
		return t.maybe(c, on)
	case *syntax.BinaryCmd:
		return t.joined(c, on)
	case *syntax.TimeClause:
		return t.statement(c.Stmt, on)
	case *syntax.CoprocClause:
		t.statement(c.Stmt, on)
		return on
	case *syntax.FuncDecl:
		return on
	}
	t.use(stmt.Cmd, on)
	return t.after(stmt.Cmd, on)
}

// maybe goes through what may not run at all.
func (t *secrets) maybe(cmd syntax.Command, on bool) bool {
	switch c := cmd.(type) {
	case *syntax.WhileClause:
		after := t.statements(c.Cond, on)
		return t.statements(c.Do, after) || after
	case *syntax.ForClause:
		t.use(c.Loop, on)
		return t.statements(c.Do, on) || on
	case *syntax.CaseClause:
		t.use(c.Word, on)
		after := on
		for _, item := range c.Items {
			after = t.statements(item.Stmts, on) || after
		}
		return after
	}
	return on
}

// joined goes through a pipe, whose ends are processes of their own, or through && and ||.
func (t *secrets) joined(c *syntax.BinaryCmd, on bool) bool {
	if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
		t.statement(c.X, on)
		t.statement(c.Y, on)
		return on
	}
	after := t.statement(c.X, on)
	return t.statement(c.Y, after) || after
}

// after is whether xtrace may be on when a simple command is done.
func (t *secrets) after(cmd syntax.Command, on bool) bool {
	switch xtrace(cmd) {
	case traceOn:
		return true
	case traceOff:
		return false
	}
	if call, ok := cmd.(*syntax.CallExpr); ok {
		if name, _ := commandName(call); t.traces[name] {
			return true
		}
	}
	return on
}

func (t *secrets) branch(c *syntax.IfClause, on bool) bool {
	cond := t.statements(c.Cond, on)
	after := t.statements(c.Then, cond)
	switch {
	case c.Else == nil:
		return after || cond
	case len(c.Else.Cond) == 0:
		return t.statements(c.Else.Then, cond) || after
	}
	return t.branch(c.Else, cond) || after
}

// use reports the first secret of a command that is traced.
func (t *secrets) use(node syntax.Node, on bool) {
	if !on || node == nil {
		return
	}
	reported := false
	syntax.Walk(node, func(n syntax.Node) bool {
		if n == nil || reported {
			return false
		}
		if _, redirect := n.(*syntax.Redirect); redirect {
			return false // not part of a trace
		}
		if t.is(n) {
			reported = true
			t.report(n, Error, "secret-traced", "a secret is used where set -x may be on, which prints it: turn it off before, with { set +x; } 2>/dev/null")
		}
		return !reported
	})
}

type traceChange int

const (
	traceSame traceChange = iota
	traceOn
	traceOff
)

// xtrace is what a command does to set -x.
func xtrace(node syntax.Node) traceChange {
	call, ok := node.(*syntax.CallExpr)
	if !ok {
		return traceSame
	}
	on, off := setOptions(call)
	switch {
	case on["xtrace"]:
		return traceOn
	case off["xtrace"]:
		return traceOff
	}
	return traceSame
}

// setOptions are the options that a call of set turns on and off, by their long names.
func setOptions(call *syntax.CallExpr) (on, off map[string]bool) {
	on, off = map[string]bool{}, map[string]bool{}
	if len(call.Args) == 0 || call.Args[0].Lit() != "set" {
		return on, off
	}
	long := map[byte]string{'e': "errexit", 'u': "nounset", 'x': "xtrace"}
	for i := 1; i < len(call.Args); i++ {
		word := call.Args[i].Lit()
		if len(word) < 2 || word == "--" || word[0] != '-' && word[0] != '+' {
			break
		}
		side := on
		if word[0] == '+' {
			side = off
		}
		for _, c := range []byte(word[1:]) {
			if c == 'o' && i+1 < len(call.Args) {
				i++
				side[call.Args[i].Lit()] = true
				continue
			}
			side[long[c]] = true
		}
	}
	return on, off
}

// builtins run inside bash: their arguments are in no list of processes.
var builtins = func() map[string]bool {
	names := map[string]bool{}
	for _, name := range strings.Fields(`. : [ alias bg bind break builtin caller cd compgen complete compopt continue declare dirs
		disown echo enable eval exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf
		pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask
		unalias unset wait`) {
		names[name] = true
	}
	return names
}()
