package main

import (
	"context"
	"flag"
	"fmt"
	"os/exec"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/authoring"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/lint"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const profileLintUsage = `
Usage: @kpssh profile lint [flags] MANIFEST...

Looks for what goes wrong on hosts or gives secrets away: scripts without
set -euo pipefail, unquoted variables, secrets in a trace or in the arguments of
a program, variables that a phase does not get, a leave that lets the host join
again, rm -rf of what may be /, downloads that nobody checks. Scripts are read as
they run, rendered with the values of the node classes among the manifests;
shellcheck is asked too where it is installed.

A comment turns rules off, for the whole script above its first command, else for
the command below it or on its line:  # kpssh-lint: disable=RULE[,RULE...]

Flags:
  --class FILE       manifests of node classes; repeat for more
  --no-shellcheck    only kpssh's own rules
  -o, --output FMT   table (default), json or yaml

Exit code 1 when there is an error; warnings alone are 0. Lines and columns are
those of 'profile render'.

Example:
    $ @kpssh profile lint profile.yaml nodeclass.yaml
`

type lintOptions struct {
	classes      files
	noShellcheck bool
	output       string
}

func profileLintCommand() *cli.Command {
	o := &lintOptions{}
	return &cli.Command{
		Name: "lint", Short: "look for mistakes in join profiles", Usage: profileLintUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.Var(&o.classes, "class", "")
			fs.BoolVar(&o.noShellcheck, "no-shellcheck", false, "")
			outputFlag(fs, &o.output)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no manifest is given")
			}
			return o.run(ctx, env, append(args, o.classes...))
		},
	}
}

func (o *lintOptions) run(ctx context.Context, env *cli.Env, paths []string) error {
	objects, err := manifest.Load(env, paths)
	if err != nil {
		return err
	}
	sources, err := authoring.Sources(objects)
	if err != nil {
		return err
	}
	findings := []lint.Finding{}
	tools := o.tools(ctx, env)
	for _, source := range sources {
		findings = append(findings, lint.Check(source, tools...)...)
	}
	if len(findings) > 0 || o.output != "table" {
		if err := env.Print(o.output, findings, func() *cli.Table { return findingTable(findings) }); err != nil {
			return err
		}
	}
	errors, warnings := countFindings(findings)
	env.Progress("errors: %d, warnings: %d", errors, warnings)
	if errors > 0 {
		return cli.ErrVerdict
	}
	return nil
}

func (o *lintOptions) tools(ctx context.Context, env *cli.Env) []lint.Tool {
	if o.noShellcheck {
		return nil
	}
	path, err := exec.LookPath("shellcheck")
	if err != nil {
		env.Hintf("shellcheck is not installed: with it, lint finds more")
		return nil
	}
	return []lint.Tool{lint.Shellcheck(ctx, path)}
}

func countFindings(findings []lint.Finding) (errors, warnings int) {
	for _, f := range findings {
		if f.Severity == lint.Error {
			errors++
		}
	}
	return errors, len(findings) - errors
}

func findingTable(findings []lint.Finding) *cli.Table {
	t := cli.NewTable("PROFILE", "PHASE", "LINE", "SEVERITY", "RULE", "WHAT")
	for _, f := range findings {
		t.Row(f.Profile+"@"+f.Version, orEmpty(f.Phase), place(f), string(f.Severity), f.Rule, f.Message)
	}
	return t
}

func orEmpty(phase signing.Phase) string {
	if phase == "" {
		return "-"
	}
	return string(phase)
}

// place is where in a script a finding is; which of several scripts a phase has, its classes tell.
func place(f lint.Finding) string {
	text := "-"
	if f.Line > 0 {
		text = fmt.Sprintf("%d:%d", f.Line, f.Column)
	}
	if len(f.Classes) > 0 {
		text += " (" + strings.Join(f.Classes, ",") + ")"
	}
	return text
}

// maxSaid is how many errors sign repeats before it points at lint.
const maxSaid = 5

// sayFindings warns an author of what lint finds in profiles that are about to be signed. Signing is his decision: a rule
// may be wrong, and nothing that hosts enforce depends on it.
func sayFindings(env *cli.Env, sources []authoring.Source) {
	var findings []lint.Finding
	for _, source := range sources {
		findings = append(findings, lint.Check(source)...)
	}
	errors, warnings := countFindings(findings)
	said := 0
	for _, f := range findings {
		if f.Severity == lint.Error && said < maxSaid {
			said++
			env.Warnf("lint: %s@%s %s %s: %s [%s]", f.Profile, f.Version, orEmpty(f.Phase), place(f), f.Message, f.Rule)
		}
	}
	if said < errors || warnings > 0 {
		env.Hintf("'%s profile lint' shows all that it found: errors: %d, warnings: %d", env.Prog, errors, warnings)
	}
}
