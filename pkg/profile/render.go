package profile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
)

// Values are what a template may use, none of them specific to a node.
type Values struct {
	// Vars of the node class.
	Vars map[string]string
}

// Render gives the bytes that run: the script with {{.Vars.key}} replaced. It is deterministic, a
// script without "{{" renders to itself, and a variable that the class does not have is an error.
//
// Templates know values, {{if}}, {{with}}, eq, ne, and, or, not, and quote, which makes one shell
// word of a value. Nothing loops or grows, so that who may write a profile cannot stall the controller.
func Render(script []byte, values Values) ([]byte, error) {
	parsed, err := parseScript(script)
	if err != nil {
		return nil, err
	}
	if parsed == nil {
		return bytes.Clone(script), nil
	}
	var out limited
	if err := parsed.Execute(&out, values); err != nil {
		return nil, fmt.Errorf("rendering: %w", err)
	}
	if err := Check(out.Bytes()); err != nil {
		return nil, fmt.Errorf("rendered %w", err)
	}
	return out.Bytes(), nil
}

// CheckTemplate says what is wrong with a script whatever the values of a node class are.
func CheckTemplate(script []byte) error {
	_, err := parseScript(script)
	return err
}

// parseScript returns nil for a script that is no template.
func parseScript(script []byte) (*template.Template, error) {
	if err := Check(script); err != nil {
		return nil, err
	}
	if !bytes.Contains(script, []byte("{{")) {
		return nil, nil
	}
	parsed, err := template.New("script").Option("missingkey=error").
		Funcs(template.FuncMap{"quote": quote}).Parse(string(script))
	if err != nil {
		return nil, fmt.Errorf("reading the template: %w", err)
	}
	if len(parsed.Templates()) > 1 {
		return nil, errors.New("reading the template: define and block are not available")
	}
	if parsed.Tree == nil {
		return nil, errors.New("script is empty when rendered")
	}
	if err := checkNode(parsed.Root); err != nil {
		return nil, fmt.Errorf("reading the template: %w", err)
	}
	return parsed, nil
}

// RenderAll renders the scripts of a profile; phases without one are left out. The error names the phase.
func RenderAll(scripts map[Phase]string, values Values) (map[Phase][]byte, error) {
	out := make(map[Phase][]byte, len(scripts))
	for _, phase := range Phases() {
		script := scripts[phase]
		if script == "" {
			if phase != Uninstall {
				return nil, fmt.Errorf("%s: script is missing", phase)
			}
			continue
		}
		rendered, err := Render([]byte(script), values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", phase, err)
		}
		out[phase] = rendered
	}
	return out, nil
}

// quote makes one shell word of a value. Quotes of quotes grow threefold each time, so that it has a limit of its own.
func quote(value string) (string, error) {
	if len(value) > MaxScript {
		return "", fmt.Errorf("quoted value has more than %d bytes", MaxScript)
	}
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'", nil
}

// limited is a buffer that refuses to grow beyond MaxScript.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > MaxScript {
		return 0, fmt.Errorf("script has more than %d bytes", MaxScript)
	}
	return l.Buffer.Write(p)
}

// checkNode refuses what could loop, recurse or build values without bound.
func checkNode(node parse.Node) error {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, child := range n.Nodes {
			if err := checkNode(child); err != nil {
				return err
			}
		}
		return nil
	case *parse.TextNode, *parse.CommentNode:
		return nil
	case *parse.ActionNode:
		return checkPipe(n.Pipe)
	case *parse.IfNode:
		return checkBranch(&n.BranchNode)
	case *parse.WithNode:
		return checkBranch(&n.BranchNode)
	default:
		return fmt.Errorf("%.60q is not available", node.String())
	}
}

func checkBranch(n *parse.BranchNode) error {
	if err := checkPipe(n.Pipe); err != nil {
		return err
	}
	if err := checkNode(n.List); err != nil {
		return err
	}
	return checkNode(n.ElseList)
}

func checkPipe(pipe *parse.PipeNode) error {
	if len(pipe.Decl) > 0 {
		return fmt.Errorf("%.60q: variables are not available", pipe.String())
	}
	for _, command := range pipe.Cmds {
		for _, arg := range command.Args {
			if err := checkArg(arg); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkArg(arg parse.Node) error {
	switch n := arg.(type) {
	case *parse.FieldNode, *parse.DotNode, *parse.StringNode, *parse.BoolNode:
		return nil
	case *parse.PipeNode:
		return checkPipe(n)
	case *parse.IdentifierNode:
		if slices.Contains([]string{"quote", "eq", "ne", "and", "or", "not"}, n.Ident) {
			return nil
		}
	}
	return fmt.Errorf("%.60q is not available", arg.String())
}
