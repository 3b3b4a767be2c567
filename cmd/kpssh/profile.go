package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/authoring"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const profileRenderUsage = `
Usage: @kpssh profile render [flags] MANIFEST...

Renders the scripts of join profiles with the values of the node classes that
use them: exactly the bytes that the controller sends and that an author allows.

Flags:
  --phase PHASE      print one script: install, join, leave or uninstall
  --class NAME       of this SSHNodeClass, where classes give different scripts
  --out DIR          write all of them to DIR/PROFILE.PHASE[.N].sh
  -o, --output FMT   list them as table (default), json or yaml

Example:
    $ @kpssh profile render --phase join profile.yaml nodeclass.yaml | shellcheck -
`

const profileVerifyUsage = `
Usage: @kpssh profile verify [flags] MANIFEST...

Says for each script of join profiles, and each node class that uses it, whether
the allowlist lets it run. The trust documents come from a ConfigMap kpssh-trust
among the manifests, else from the folder. Exit code 1 when something is not
allowed.

Flags:
  --dir DIR          trust folder (default $KPSSH_DIR, else "trust")
  -o, --output FMT   table (default), json or yaml

Example:
    $ kubectl get cm,sjp,snc -n kpssh-controller -o yaml | @kpssh profile verify -
`

type profileOptions struct {
	dir, phase, class, out, output string
}

type renderedScript struct {
	Profile string        `json:"profile"`
	Version string        `json:"version"`
	Phase   signing.Phase `json:"phase"`
	Classes []string      `json:"classes,omitempty"`
	Digest  string        `json:"digest"`
	Bytes   int           `json:"bytes"`
}

func profileRenderCommand() *cli.Command {
	o := &profileOptions{}
	return &cli.Command{
		Name: "render", Short: "show the scripts as they will run", Usage: profileRenderUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.phase, "phase", "", "")
			fs.StringVar(&o.class, "class", "", "")
			fs.StringVar(&o.out, "out", "", "")
			outputFlag(fs, &o.output)
		},
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no manifest is given")
			}
			if o.phase != "" && !slices.Contains(profile.Phases(), profile.Phase(o.phase)) {
				return cli.Usagef("--phase must be install, join, leave or uninstall, not %q", o.phase)
			}
			scripts, err := o.scripts(env, args)
			if err != nil {
				return err
			}
			switch {
			case o.phase != "":
				return printScript(env, scripts, o.phase)
			case o.out != "":
				return o.write(env, scripts)
			}
			return o.list(env, scripts)
		},
	}
}

func (o *profileOptions) scripts(env *cli.Env, args []string) ([]authoring.Script, error) {
	objects, err := manifest.Load(env, args)
	if err != nil {
		return nil, err
	}
	sources, err := authoring.Sources(objects)
	if err != nil {
		return nil, err
	}
	var out []authoring.Script
	for _, source := range sources {
		scripts, err := source.Render()
		if err != nil {
			return nil, err
		}
		for _, s := range scripts {
			if o.wanted(s) {
				out = append(out, s)
			}
		}
	}
	if len(out) == 0 {
		return nil, cli.Hint(errors.New("no script matches"), "without --phase and --class you see which there are")
	}
	return out, nil
}

func (o *profileOptions) wanted(s authoring.Script) bool {
	if o.phase != "" && string(s.Phase) != o.phase {
		return false
	}
	if o.class == "" {
		return true
	}
	for _, class := range s.Classes {
		if class == o.class {
			return true
		}
	}
	return false
}

func printScript(env *cli.Env, scripts []authoring.Script, phase string) error {
	if len(scripts) > 1 {
		return cli.Hint(fmt.Errorf("there are %d different %s scripts", len(scripts), phase), "choose by --class, or give one profile only")
	}
	_, err := env.Stdout.Write(scripts[0].Content)
	return err
}

func (o *profileOptions) write(env *cli.Env, scripts []authoring.Script) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	seen := map[string]int{}
	for _, s := range scripts {
		name := fmt.Sprintf("%s.%s", s.Profile, s.Phase)
		seen[name]++
		if n := seen[name]; n > 1 {
			name = fmt.Sprintf("%s.%d", name, n)
		}
		path := filepath.Join(o.out, name+".sh")
		if err := cli.WriteFile(path, s.Content, 0o644); err != nil {
			return err
		}
		env.Progress("%s  %s", s.Digest, path)
	}
	return nil
}

func (o *profileOptions) list(env *cli.Env, scripts []authoring.Script) error {
	var list []renderedScript
	for _, s := range scripts {
		list = append(list, renderedScript{s.Profile, s.Version, s.Phase, s.Classes, s.Digest, len(s.Content)})
	}
	return env.Print(o.output, list, func() *cli.Table {
		t := cli.NewTable("PROFILE", "VERSION", "PHASE", "CLASSES", "BYTES", "DIGEST")
		for _, s := range list {
			t.Row(s.Profile, s.Version, string(s.Phase), orDash(s.Classes), fmt.Sprint(s.Bytes), s.Digest)
		}
		return t
	})
}

func profileVerifyCommand() *cli.Command {
	o := &profileOptions{}
	return &cli.Command{
		Name: "verify", Short: "say whether the allowlist lets join profiles run", Usage: profileVerifyUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			outputFlag(fs, &o.output)
		},
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no manifest is given")
			}
			return o.verify(env, args)
		},
	}
}

func (o *profileOptions) verify(env *cli.Env, args []string) error {
	objects, err := manifest.Load(env, args)
	if err != nil {
		return err
	}
	sources, err := authoring.Sources(objects)
	if err != nil {
		return err
	}
	set, err := o.trust(env, objects)
	if err != nil {
		return err
	}
	var verdicts []authoring.Verdict
	for _, source := range sources {
		v, err := source.Check(set.Allowlist)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, v...)
	}
	allowed := true
	for _, v := range verdicts {
		allowed = allowed && v.Allowed
	}
	if err := env.Print(o.output, verdicts, func() *cli.Table { return verdictTable(verdicts) }); err != nil {
		return err
	}
	if !allowed {
		env.Hintf("'%s profile sign' allows what it is given; look at the scripts first with '%s profile render'", env.Prog, env.Prog)
		return cli.ErrVerdict
	}
	return nil
}

func (o *profileOptions) trust(env *cli.Env, objects *manifest.Objects) (*documents.Set, error) {
	var set *documents.Set
	var err error
	if objects.Trust != nil {
		set, err = documents.Open(manifest.TrustDocuments(objects.Trust))
	} else {
		var d *trustdir.Dir
		if d, err = trustdir.Open(env, o.dir); err == nil {
			set, err = documents.Read(d)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := set.CheckRoot(env.Now()); err != nil {
		return nil, err
	}
	if set.Allowlist != nil {
		if err := signing.CheckExpiry(set.Allowlist.Expires, env.Now()); err != nil {
			return nil, cli.Hint(fmt.Errorf("allowlist version %d: %w", set.Allowlist.Version, err), "sign the profiles again: '%s profile sign'", env.Prog)
		}
	}
	return set, nil
}

func verdictTable(verdicts []authoring.Verdict) *cli.Table {
	t := cli.NewTable("PROFILE", "VERSION", "PHASE", "CLASS", "VERDICT", "DETAIL")
	for _, v := range verdicts {
		word := "allowed"
		if !v.Allowed {
			word = "refused"
		}
		class := v.Class
		if class == "" {
			class = "-"
		}
		t.Row(v.Profile, v.Version, string(v.Phase), class, word, v.Detail)
	}
	return t
}

func orDash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	out := list[0]
	for _, s := range list[1:] {
		out += "," + s
	}
	return out
}
