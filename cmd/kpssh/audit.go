package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/audit"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

const auditUsage = `
Usage: @kpssh audit VERB [flags]

The audit trail: every order that the controller signed, with the receipt that the
host signed for it.
`

const auditVerifyUsage = `
Usage: @kpssh audit verify --hosts FILE... [flags] TRAIL...

Checks audit trails ("-": stdin) offline: the log of the controller (--audit-log) and
what hosts keep ("kpssh-shim receipts --export"), in any mixture. Each order must be
signed by a dispatch key of the chain of roots, also by one that was dropped since;
each receipt by the host that it names; the one must answer the other. Lines about
the same run are shown as one. Exit code 1 means that a line does not verify; it is
named on stderr with the reason. So are numbers that are missing, from 1 on in a
controller's log, and those that two lines have; these change no exit code.

VERDICT is ok, refused, or one of: unanswered (there is no receipt), no-order (a
receipt without its order), raw (nothing was signed).

Flags:
  --hosts FILE         manifests of SSHHosts, statements of "kpssh-shim enroll --json",
                       or a folder of them; repeat for more
  --receipt-key KEY    a host's receipt key, where there is no manifest of it; repeat
  --dir DIR            trust folder (default $KPSSH_DIR, else "trust"), for its roots
  --root FILE          in its place: a root document; repeat for a chain, oldest first
  --allowlist FILE     refuse scripts that no allowlist given here holds; repeat
  --mixed              TRAIL is a log with other lines too, as kubectl logs prints it
  --rotated            the controller's first lines were rotated away: do not say
                       that they are missing
  -o, --output FMT     table (default), json or yaml

Example:
    $ kubectl -n kpssh-system get sshhosts -o yaml > hosts.yaml
    $ kubectl -n kpssh-controller logs deploy/karpenter-provider-ssh |
        @kpssh audit verify --hosts hosts.yaml --mixed -
    $ ssh root@host-a /usr/libexec/kpssh/kpssh-shim receipts --export > host-a.jsonl
    $ @kpssh audit verify --hosts hosts.yaml host-a.jsonl
`

type auditOptions struct {
	dir, output                    string
	roots, hosts, keys, allowlists files
	mixed, rotated                 bool
}

func auditCommand() *cli.Command {
	return &cli.Command{
		Name: "audit", Short: "check what ran on hosts, and who ordered it", Usage: auditUsage,
		Sub: []*cli.Command{auditVerifyCommand()},
	}
}

func auditVerifyCommand() *cli.Command {
	o := &auditOptions{}
	return &cli.Command{
		Name: "verify", Short: "check audit trails offline", Usage: auditVerifyUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.Var(&o.roots, "root", "")
			fs.Var(&o.hosts, "hosts", "")
			fs.Var(&o.keys, "receipt-key", "")
			fs.Var(&o.allowlists, "allowlist", "")
			fs.BoolVar(&o.mixed, "mixed", false, "")
			fs.BoolVar(&o.rotated, "rotated", false, "")
			outputFlag(fs, &o.output)
		},
		Run: o.run,
	}
}

func (o *auditOptions) run(_ context.Context, env *cli.Env, args []string) error {
	if err := cli.Check(
		cli.Rule{Broken: len(args) == 0, Message: "no audit trail is given"},
		cli.Rule{Broken: len(o.hosts)+len(o.keys) == 0, Message: "--hosts or --receipt-key is needed: without the hosts' keys nothing can be checked"},
		cli.Rule{Broken: len(o.roots) > 0 && o.dir != "", Message: "--root takes the place of --dir: give one of them"},
	); err != nil {
		return err
	}
	trust, err := o.trust(env)
	if err != nil {
		return err
	}
	trail := &audit.Trail{Rotated: o.rotated}
	for _, path := range args {
		if err := readTrail(env, trail, path, o.mixed); err != nil {
			return err
		}
	}
	report := trust.Verify(trail, env.Now())
	if err := env.Print(o.output, report, func() *cli.Table { return auditTable(report) }); err != nil {
		return err
	}
	sayAudit(env, report)
	if report.Verdict != audit.OK {
		return cli.ErrVerdict
	}
	return nil
}

func readTrail(env *cli.Env, trail *audit.Trail, path string, mixed bool) error {
	if path == "-" {
		return trail.Read("stdin", env.Stdin, mixed)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return trail.Read(path, io.Reader(f), mixed)
}

// trust reads all that the trail is held against.
func (o *auditOptions) trust(env *cli.Env) (*audit.Trust, error) {
	chain, err := o.chain(env)
	if err != nil {
		return nil, err
	}
	trust, err := audit.NewTrust(chain)
	if err != nil {
		return nil, err
	}
	for _, path := range o.allowlists {
		data, err := env.Read(path)
		if err != nil {
			return nil, err
		}
		if err := trust.AddAllowlist(data); err != nil {
			return nil, fmt.Errorf("opening allowlist %s: %w", path, err)
		}
	}
	for _, key := range o.keys {
		if err := trust.AddKey(key); err != nil {
			return nil, cli.Usagef("--receipt-key %.80q: %v", key, err)
		}
	}
	for _, path := range o.hosts {
		if err := addHosts(env, trust, path); err != nil {
			return nil, err
		}
	}
	if trust.Hosts() == 0 {
		return nil, cli.Hint(fmt.Errorf("%s: no host with a receipt key is in there", strings.Join(o.hosts, ", ")),
			"take the manifests that '%s host enroll' printed, or those of 'kubectl get sshhosts -o yaml'", env.Prog)
	}
	return trust, nil
}

func (o *auditOptions) chain(env *cli.Env) ([][]byte, error) {
	if len(o.roots) == 0 {
		d, err := trustdir.Open(env, o.dir)
		if err != nil {
			return nil, err
		}
		return d.RootDocuments()
	}
	var chain [][]byte
	for _, path := range o.roots {
		data, err := env.Read(path)
		if err != nil {
			return nil, err
		}
		chain = append(chain, data)
	}
	return chain, nil
}

// addHosts takes a file, or all manifests and statements of a folder.
func addHosts(env *cli.Env, trust *audit.Trust, path string) error {
	paths := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		paths = nil
		for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
			found, err := filepath.Glob(filepath.Join(path, pattern))
			if err != nil {
				return err
			}
			paths = append(paths, found...)
		}
		sort.Strings(paths)
	}
	for _, path := range paths {
		data, err := env.Read(path)
		if err != nil {
			return err
		}
		if err := trust.AddHosts(data); err != nil {
			return fmt.Errorf("reading hosts from %s: %w", path, err)
		}
	}
	return nil
}

func auditTable(report *audit.Report) *cli.Table {
	t := cli.NewTable("WHEN", "HOST", "NODECLAIM", "PROFILE", "PHASE", "SCRIPT", "PARAMETERS", "OUTCOME", "ROOT", "SOURCE", "VERDICT")
	for _, r := range report.Runs {
		when, roots, version := "-", "-", ""
		if !r.Time.IsZero() {
			when = r.Time.UTC().Format(time.RFC3339)
		}
		switch {
		case r.FirstRoot != r.LastRoot:
			roots = fmt.Sprintf("%d-%d", r.FirstRoot, r.LastRoot)
		case r.FirstRoot > 0:
			roots = fmt.Sprint(r.FirstRoot)
		}
		if r.Version != "" {
			version = "@" + r.Version
		}
		t.Row(when, either(r.Host, r.HostID), either(r.NodeClaim, r.Claim), either(r.Profile+version), either(r.Phase),
			either(shortDigest(r.Script)), either(shortDigest(r.Parameters)), auditOutcome(r), roots, either(strings.Join(r.Sources, "+")), string(r.Verdict))
	}
	return t
}

func auditOutcome(r *audit.Run) string {
	switch {
	case r.Reason != "":
		return r.Outcome + " " + r.Reason
	case r.Signal != "":
		return r.Outcome + " " + r.Signal
	case r.ExitCode != 0:
		return fmt.Sprintf("%s %d", r.Outcome, r.ExitCode)
	}
	return either(r.Outcome)
}

// either is the first text that is not empty, and a dash where all are.
func either(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return "-"
}

// sayNumbers says which records are missing, and which stand in the place of others.
func sayNumbers(env *cli.Env, report *audit.Report) {
	for _, g := range report.Gaps {
		env.Warnf("%s %s: records %d to %d are missing", g.Source, g.Stream, g.From, g.To)
	}
	beginsLate := func(g audit.Gap) bool { return g.Source == wire.SourceController && g.From == 1 }
	if slices.ContainsFunc(report.Gaps, beginsLate) {
		env.Hintf("where the log's first files were rotated away, give the rest of them, or --rotated")
	}
	for _, t := range report.Twice {
		env.Warnf("%s %s: number %d is there more than once, for different things: %s", t.Source, t.Stream, t.Seq, placesOf(t.Lines))
	}
}

func placesOf(lines []audit.Place) string {
	var all []string
	for _, place := range lines {
		all = append(all, place.String())
	}
	return listed(all)
}

// sayAudit says what does not fit into a table.
func sayAudit(env *cli.Env, report *audit.Report) {
	counts := map[audit.Verdict]int{}
	for _, r := range report.Runs {
		counts[r.Verdict]++
		for _, note := range r.Notes {
			env.Warnf("%s: %s", r.Lines[0], note)
		}
		if r.Verdict == audit.Refused {
			env.Progress("refused: %s: %s", r.Lines[0], r.Why)
		}
	}
	sayNumbers(env, report)
	for _, place := range report.CutOff {
		env.Warnf("%s: the last line is cut off: its writer was stopped, or is still writing", place)
	}
	if n := counts[audit.NoOrder]; n > 0 {
		env.Warnf("%d receipts stand without their order: the trails of their hosts have it", n)
	}
	if n := counts[audit.Raw]; n > 0 {
		env.Warnf("%d runs were in Raw mode: nobody signed them", n)
	}
	if report.PassedOver > 0 {
		env.Progress("passed over %d lines of other logs", report.PassedOver)
	}
	if len(report.Runs) == 0 {
		env.Warnf("no record of a run is in these files: nothing was checked")
	}
	env.Progress("%d runs: %d ok, %d unanswered, %d refused", len(report.Runs), counts[audit.OK], counts[audit.Unanswered], counts[audit.Refused])
}
