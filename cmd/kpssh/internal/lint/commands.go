package lint

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// checkStrictMode wants set -euo pipefail before the first command that does something.
func (s *script) checkStrictMode() {
	want := []string{"errexit", "nounset", "pipefail"}
	on := map[string]bool{}
	var late syntax.Node
	for _, stmt := range s.file.Stmts {
		call, ok := stmt.Cmd.(*syntax.CallExpr)
		if ok {
			now, _ := setOptions(call)
			for name := range now {
				on[name] = true
			}
		}
		missing := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return on[name] })
		if len(missing) == 0 {
			s.strict = true
			if late != nil {
				s.report(late, Warning, "strict-mode", "commands before set -euo pipefail may fail unseen: set it first")
			}
			return
		}
		if late == nil && !harmless(stmt) {
			late = stmt
		}
	}
	s.strict = on["nounset"]
	missing := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return on[name] })
	at := syntax.Node(s.file)
	if len(s.file.Stmts) > 0 {
		at = s.file.Stmts[0]
	}
	s.report(at, Error, "strict-mode", "%s not set: a step that fails would not end the script; begin it with set -euo pipefail", strings.Join(missing, ", "))
}

// harmless holds for what nobody minds before strict mode.
func harmless(stmt *syntax.Stmt) bool {
	switch c := stmt.Cmd.(type) {
	case *syntax.FuncDecl, *syntax.DeclClause:
		return true
	case *syntax.CallExpr:
		if len(c.Args) == 0 {
			return true
		}
		return slices.Contains([]string{"set", "umask", "shopt", "trap", ":", "export", "unset"}, c.Args[0].Lit())
	}
	return false
}

// checkDownloads finds what is fetched and run, or fetched and not compared with a checksum.
func (s *script) checkDownloads() {
	checked := contains(s.file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		return ok && slices.ContainsFunc(call.Args, func(w *syntax.Word) bool {
			return slices.Contains([]string{
				"sha256sum", "sha384sum", "sha512sum", "shasum", "b2sum", "gpg", "gpgv", "cosign", "minisign", "signify", "openssl",
			}, w.Lit())
		})
	})
	for node := range syntax.Preorder(s.file) {
		switch n := node.(type) {
		case *syntax.BinaryCmd:
			if n.Op == syntax.Pipe || n.Op == syntax.PipeAll {
				s.checkPipe(n)
			}
		case *syntax.CallExpr:
			if runs(n) && slices.ContainsFunc(n.Args, fetchesInside) {
				s.report(n, Error, "download-runs", "what is fetched runs as root unseen: download it, compare its checksum, then run it")
			}
			if fetches(n) && !checked && !asks(n) {
				s.report(n, Warning, "download-unchecked", "what is fetched is compared with no checksum: use sha256sum -c against a digest in the script")
			}
		}
	}
}

// checkPipe finds curl ... | bash.
func (s *script) checkPipe(pipe *syntax.BinaryCmd) {
	reader, ok := pipe.Y.Cmd.(*syntax.CallExpr)
	if !ok || !runs(reader) {
		return
	}
	if contains(pipe.X, func(n syntax.Node) bool { call, ok := n.(*syntax.CallExpr); return ok && fetches(call) }) {
		s.report(pipe, Error, "download-runs", "what is fetched runs as root unseen: download it, compare its checksum, then run it")
	}
}

// runs holds for what executes the text that it is given.
func runs(call *syntax.CallExpr) bool {
	name, _ := commandName(call)
	switch name {
	case "bash", "sh", "dash", "ksh", "zsh", "source", ".", "eval", "python", "python3", "perl", "ruby", "node":
		return true
	}
	return false
}

// fetchesInside holds for <(curl ...) and $(curl ...).
func fetchesInside(word *syntax.Word) bool {
	return contains(word, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		return ok && fetches(call)
	})
}

// fetches holds for what can bring something from elsewhere.
func fetches(call *syntax.CallExpr) bool {
	name, _ := commandName(call)
	return name == "curl" || name == "wget"
}

// asks holds for a request whose answer is no software: to the host itself or its cluster, or without a body.
func asks(call *syntax.CallExpr) bool {
	return slices.ContainsFunc(call.Args, func(w *syntax.Word) bool {
		text := wordText(w)
		_, rest, found := strings.Cut(text, "://")
		if !found {
			rest = text
		}
		cluster := contains(w, func(n syntax.Node) bool {
			p, ok := n.(*syntax.ParamExp)
			return ok && p.Param != nil && p.Param.Value == profile.EnvClusterEndpoint
		})
		return cluster || slices.Contains([]string{"--head", "-I", "--version", "/dev/null", "--unix-socket"}, text) ||
			strings.HasPrefix(rest, "127.") || strings.HasPrefix(rest, "localhost") || strings.HasPrefix(rest, "[::1]")
	})
}

// checkLeave wants that a host which left does not come back with its next boot.
func (s *script) checkLeave() {
	var words []string
	for node := range syntax.Preorder(s.file) {
		if word, ok := node.(*syntax.Word); ok {
			words = append(words, strings.Fields(wordText(word))...)
		}
	}
	has := func(names ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool {
			w = strings.TrimSuffix(w[strings.LastIndexByte(w, '/')+1:], ".service")
			return slices.Contains(names, w)
		})
	}
	if has("nodeadm", "k3s-agent-uninstall.sh", "rke2-uninstall.sh") {
		return // tools that do it all
	}
	var missing []string
	for _, part := range []struct {
		what string
		ok   bool
	}{
		{"stop", has("stop", "--now")},
		{"disable", has("disable", "mask")},
		{"kubelet", has("kubelet", "k3s", "k3s-agent", "rke2-agent", "k0sworker", "snap.kubelet.daemon")},
		{"containerd", has("containerd", "crio", "cri-o", "k3s", "k3s-agent", "rke2-agent", "k0sworker")},
	} {
		if !part.ok {
			missing = append(missing, part.what)
		}
	}
	if len(missing) > 0 {
		s.report(s.file, Warning, "leave-stops", "no sign of %s: leave must stop and disable kubelet and containerd, or the host joins again when it boots", strings.Join(missing, ", "))
	}
}
