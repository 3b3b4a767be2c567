package shim

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const receiptsUsage = `usage: kpssh-shim receipts [--json | --export]

Lists, as root, the last 64 runs on this host, oldest first: what was ordered by whom is in the
order that the controller signed, what became of it in the receipt that this host signed.

  --json    print what the receipts say as JSON
  --export  print orders and receipts as they were signed, one line each, for "kpssh audit verify"

example:
  /usr/libexec/kpssh/kpssh-shim receipts --export > host-a.jsonl
`

func receipts(p Process, sys hostSystem, build Build, args []string) int {
	flags := flag.NewFlagSet("receipts", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	asJSON := flags.Bool("json", false, "")
	export := flags.Bool("export", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *asJSON && *export {
		return usageExit(p, err, receiptsUsage)
	}
	h, err := Open(Config{State: sys.paths.state, Build: build, Log: p.Stderr, Now: time.Now, BootID: BootID()})
	if err != nil && os.Geteuid() != 0 {
		err = fmt.Errorf("reading a host's receipts takes root: %w", err)
	}
	if err != nil {
		return fail(p.Stderr, err)
	}
	defer h.Close()
	show := h.printRuns
	switch {
	case *asJSON:
		show = h.printJSON
	case *export:
		show = h.Export
	}
	if err := show(context.Background(), p.Stdout); err != nil {
		return fail(p.Stderr, err)
	}
	return exitOK
}

// Export writes the kept runs that are over as lines of an audit trail, oldest first. One whose receipt does not verify
// is left out, and named by the error.
func (h *Host) Export(ctx context.Context, w io.Writer) error {
	runs, err := h.kept(ctx)
	if err != nil {
		return err
	}
	var bad []error
	for _, run := range runs {
		if run.Receipt == nil {
			continue
		}
		record, _, err := h.record(run)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		line, err := record.Encode()
		if err != nil {
			return err
		}
		if _, err := w.Write(line); err != nil {
			return fmt.Errorf("writing receipts: %w", err)
		}
	}
	return errors.Join(bad...)
}

// runEntry is a run as --json prints it.
type runEntry struct {
	Run uint64 `json:"run"`
	// Receipt is null while the run goes on.
	Receipt *signing.Receipt `json:"receipt"`
}

func (h *Host) entries(ctx context.Context) ([]runEntry, error) {
	runs, err := h.kept(ctx)
	if err != nil {
		return nil, err
	}
	var bad []error
	entries := []runEntry{}
	for _, run := range runs {
		e := runEntry{Run: run.Seq}
		if run.Receipt != nil {
			if _, e.Receipt, err = h.record(run); err != nil {
				bad = append(bad, err)
				continue
			}
		}
		entries = append(entries, e)
	}
	return entries, errors.Join(bad...)
}

func (h *Host) printJSON(ctx context.Context, w io.Writer) error {
	entries, err := h.entries(ctx)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return errors.Join(enc.Encode(entries), err)
}

func (h *Host) printRuns(ctx context.Context, w io.Writer) error {
	entries, err := h.entries(ctx)
	row := func(cells ...any) { fmt.Fprintf(w, "%-5v  %-20s  %-36s  %-24s  %-9s  %-19s  %-11s  %s\n", cells...) }
	row("RUN", "STARTED", "CLAIM", "PROFILE", "PHASE", "SCRIPT", "OUTCOME", "EXIT")
	for _, e := range entries {
		r := e.Receipt
		if r == nil {
			row(e.Run, "-", "-", "-", "-", "-", "running", "-")
			continue
		}
		claim := r.Claim
		if claim == "" {
			claim = "-"
		}
		exit := fmt.Sprint(r.ExitCode)
		if r.Signal != "" {
			exit = r.Signal
		}
		row(e.Run, r.Started.UTC().Format(time.RFC3339), claim, r.Profile+"@"+r.Version, string(r.Phase), shortDigest(r.Script), string(r.Outcome), exit)
	}
	return err
}

// shortDigest is enough of a digest for people to compare.
func shortDigest(digest string) string {
	const enough = len("sha256:") + 12
	if len(digest) > enough {
		return digest[:enough]
	}
	return digest
}
