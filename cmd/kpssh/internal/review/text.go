package review

import (
	"fmt"
	"io"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

// Style says how a report is printed.
type Style struct {
	// Brief leaves out the diffs of scripts and the parameters of new ones.
	Brief bool
	// Colour is for terminals.
	Colour bool
}

// Print writes a report for people. Lines that begin with "!" are changes that give more rights. Text of scripts always
// stands behind a mark of its own, and what would not show is spelled out, so that no script can write a line of the report.
func (r *Report) Print(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	if r.Old == nil {
		p.line("", "allowlist version %d; nothing was allowed before", r.New.Version)
	} else {
		p.line("", "allowlist version %d → %d", r.Old.Version, r.New.Version)
	}
	for _, d := range r.Document {
		p.difference(d)
	}
	for i := range r.Scripts {
		s := &r.Scripts[i]
		for c, cell := range columns(s) {
			p.widths[c] = max(p.widths[c], len([]rune(cli.Visible(cell))))
		}
	}
	for i := range r.Scripts {
		p.script(&r.Scripts[i])
	}
	p.summary(r)
	return p.err
}

type printer struct {
	w     io.Writer
	style Style
	// widths are those of the columns that the lines about scripts begin with.
	widths [3]int
	err    error
}

const (
	red    = "31"
	green  = "32"
	yellow = "1;33"
	cyan   = "36"
	bold   = "1"
)

func (p *printer) line(colour, format string, args ...any) {
	text := cli.Visible(fmt.Sprintf(format, args...))
	if p.style.Colour && colour != "" {
		text = "\x1b[" + colour + "m" + text + "\x1b[0m"
	}
	if _, err := fmt.Fprintln(p.w, text); p.err == nil {
		p.err = err
	}
}

func (p *printer) difference(d Difference) {
	subject := d.Field
	if d.Parameter != "" {
		subject = d.Parameter
		if d.Field != "parameter" {
			subject += " " + d.Field
		}
	}
	var text string
	switch {
	case d.Field == "parameter" && d.Old == "":
		text = fmt.Sprintf("%s: new: %s", subject, d.New)
	case d.Field == "parameter":
		text = fmt.Sprintf("%s: gone: %s", subject, d.Old)
	default:
		text = fmt.Sprintf("%s: %s → %s", subject, orNone(d.Old), orNone(d.New))
	}
	if d.Widens == "" {
		p.line("", "    %s", text)
		return
	}
	p.line(yellow, "!   %s", text)
	p.line(yellow, "!     MORE RIGHTS: %s", d.Widens)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func (p *printer) script(s *Script) {
	if !p.style.Brief {
		p.line("", "")
	}
	p.line(map[string]string{Added: green, Removed: red, Changed: bold}[s.Change], "%s", p.title(s))
	if s.Widens != "" {
		p.line(yellow, "!     MORE RIGHTS: %s", s.Widens)
	}
	for _, d := range s.Schema {
		if !p.style.Brief || s.OldDigest != "" || d.Widens != "" {
			p.difference(d)
		}
	}
	for _, digest := range s.NoText {
		p.line(yellow, "    no diff: the text of %s is not at hand", digest)
	}
	if !p.style.Brief {
		p.diff(s.Diff)
	}
}

func columns(s *Script) [3]string {
	return [3]string{s.Change, s.Profile + "@" + s.Version, string(s.Phase)}
}

// title is what became of a script, on one line.
func (p *printer) title(s *Script) string {
	title := ""
	for c, cell := range columns(s) {
		title += fmt.Sprintf("%-*s ", p.widths[c], cli.Visible(cell))
	}
	switch {
	case s.Change == Removed:
		title += " " + short(s.OldDigest)
	case s.OldDigest == "":
		title += " " + short(s.NewDigest)
	case s.OldDigest == s.NewDigest && s.OldVersion != "":
		title += fmt.Sprintf(" the script of version %s", s.OldVersion)
	case s.OldDigest == s.NewDigest:
		title += " same script, other parameters"
	default:
		title += fmt.Sprintf(" %s → %s", short(s.OldDigest), short(s.NewDigest))
	}
	if s.OldVersion != "" && s.OldDigest != s.NewDigest {
		title += fmt.Sprintf(", compared with version %s", s.OldVersion)
	}
	if s.AddedLines+s.RemovedLines > 0 {
		title += fmt.Sprintf("  +%d -%d", s.AddedLines, s.RemovedLines)
	}
	return title
}

func (p *printer) diff(text string) {
	if text == "" {
		return
	}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		colour := ""
		switch {
		case i < 2:
			colour = bold
		case strings.HasPrefix(line, "+"):
			colour = green
		case strings.HasPrefix(line, "-"):
			colour = red
		case strings.HasPrefix(line, "@"):
			colour = cyan
		}
		p.line(colour, "%s", line)
	}
}

func (p *printer) summary(r *Report) {
	if !p.style.Brief {
		p.line("", "")
	}
	if r.Same() {
		p.line("", "nothing changed")
		return
	}
	count := map[string]int{}
	for _, s := range r.Scripts {
		count[s.Change]++
	}
	text := fmt.Sprintf("scripts: %d added, %d removed, %d changed", count[Added], count[Removed], count[Changed])
	if r.Widens == 0 {
		p.line("", "%s", text)
		return
	}
	p.line(yellow, "%s; %d of the changes give more rights (!)", text, r.Widens)
}

// short is enough of a digest to tell scripts apart.
func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }
