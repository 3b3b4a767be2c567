// Package lint finds in join profiles what their authors would rather not have signed: scripts that go on after an
// error, secrets that end in a trace or in the list of processes, a leave that asks for what it does not get.
//
// It reads scripts as they run, rendered with the values of the node classes, with a shell parser. It is advice: what it
// does not find may still be wrong. Each rule has a name that stays; a comment in the script turns it off:
//
//	# kpssh-lint: disable=RULE[,RULE...]
//
// above the first command for the whole script, elsewhere for the command below it, at the end of a line for that line.
package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/authoring"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Severity says whether a finding is wrong for sure or wants a look.
type Severity string

// Severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Finding is one thing that a rule has found.
type Finding struct {
	Profile string        `json:"profile"`
	Version string        `json:"version"`
	Phase   signing.Phase `json:"phase,omitempty"`
	// Classes whose values give the script, where there are several scripts of the phase.
	Classes []string `json:"classes,omitempty"`
	// Line and Column in the rendered script, from 1; 0 when the finding has no place. Columns count bytes.
	Line     uint     `json:"line,omitempty"`
	Column   uint     `json:"column,omitempty"`
	Severity Severity `json:"severity"`
	// Rule is the name that stays, or "shellcheck:SC<number>".
	Rule    string `json:"rule"`
	Message string `json:"message"`
}

// Tool checks the text of one bash script in a way of its own; what it finds has line, column, severity, rule and message.
type Tool func(text []byte) []Finding

// Check lints a profile with the classes that use it. tools are asked about each script too.
func Check(source authoring.Source, tools ...Tool) []Finding {
	findings := checkDeclarations(source.Profile)
	for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave, signing.PhaseUninstall} {
		findings = append(findings, checkPhase(source, phase, tools)...)
	}
	for i := range findings {
		findings[i].Profile, findings[i].Version = source.Profile.Name, source.Version()
	}
	return findings
}

// HasErrors says whether a finding is an error.
func HasErrors(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Error })
}

func checkPhase(source authoring.Source, phase signing.Phase, tools []Tool) []Finding {
	scripts, err := source.RenderPhase(phase)
	if err != nil {
		f := Finding{Phase: phase, Severity: Error, Rule: "template", Message: err.Error()}
		if len(source.Classes) == 0 && source.CheckTemplate(phase) == nil {
			f.Severity, f.Rule = Warning, "not-rendered"
			f.Message = "it uses values of a node class, so that only the template was checked: give the class's manifest too"
		}
		return []Finding{f}
	}
	var findings []Finding
	for _, rendered := range scripts {
		var classes []string
		if len(scripts) > 1 {
			classes = rendered.Classes
		}
		for _, f := range checkScript(source, rendered, tools) {
			f.Phase, f.Classes = phase, classes
			findings = append(findings, f)
		}
	}
	return findings
}

func checkScript(source authoring.Source, rendered authoring.Script, tools []Tool) []Finding {
	s := &script{phase: rendered.Phase, text: rendered.Content, classes: len(source.Classes)}
	entry, err := source.Entry(rendered)
	if err != nil {
		s.report(nil, Error, "declaration", "%v", err)
	}
	s.parameters, s.schemaKnown = entry.Parameters, err == nil
	s.checkText()
	if s.parse() {
		s.checkStrictMode()
		s.checkQuoting()
		s.checkSecrets()
		s.checkParameters()
		s.checkRemovals()
		s.checkDownloads()
		if s.phase == signing.PhaseLeave {
			s.checkLeave()
		}
	}
	for _, tool := range tools {
		s.findings = append(s.findings, tool(s.text)...)
	}
	off := s.directives() // which may find something itself
	findings := off.apply(s.findings)
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Rule, b.Rule))
	})
	return slices.CompactFunc(findings, func(a, b Finding) bool {
		return a.Line == b.Line && a.Column == b.Column && a.Rule == b.Rule && a.Message == b.Message
	})
}

// checkDeclarations looks at what a profile declares, apart from its scripts.
func checkDeclarations(p *v1beta1.SSHJoinProfile) []Finding {
	var out []Finding
	if p.Spec.Parameters == nil {
		return nil
	}
	used := p.Spec.Scripts.Install + p.Spec.Scripts.Join
	both := map[signing.Phase][]v1beta1.Parameter{
		signing.PhaseInstall: p.Spec.Parameters.Install, signing.PhaseJoin: p.Spec.Parameters.Join,
	}
	for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseJoin} {
		other := signing.PhaseJoin
		if phase == signing.PhaseJoin {
			other = signing.PhaseInstall
		}
		for i := range both[phase] {
			d := &both[phase][i]
			for _, f := range checkDeclaration(d, strings.Contains(used, d.Name), hasName(both[other], d.Name), other) {
				f.Phase = phase
				out = append(out, f)
			}
		}
	}
	return out
}

func hasName(list []v1beta1.Parameter, name string) bool {
	return slices.ContainsFunc(list, func(d v1beta1.Parameter) bool { return d.Name == name })
}

func checkDeclaration(d *v1beta1.Parameter, used, inOther bool, other signing.Phase) []Finding {
	var out []Finding
	add := func(rule, format string, args ...any) {
		out = append(out, Finding{Severity: Warning, Rule: rule, Message: fmt.Sprintf(format, args...)})
	}
	if d.Optional && len(d.Pin) > 0 {
		add("optional-pin", "%s is pinned, so that orders cannot leave it out: drop optional, or use enum in place of pin", d.Name)
	}
	if !isOwn(d.Name) {
		if isOpen(d) && loosens(d) {
			add("loosened-parameter", "%s is declared wider than it is without a declaration: give it its type, a pattern or pins", d.Name)
		}
		return out
	}
	if !used {
		add("unused-parameter", "%s is declared, and neither install nor join uses it: take it out", d.Name)
	}
	if !inOther {
		add("one-sided-parameter", "%s is declared for one phase, and class values reach install and join alike: declare it for %s too, or signing pins it there", d.Name, other)
	}
	if isOpen(d) && (d.Type == string(signing.ParamURI) || isRepository(d.Name)) {
		add("open-repository", "%s says where things come from that run as root, and any value fits: pin it, or list values in enum", d.Name)
	}
	return out
}

// isOpen says that nothing but its type narrows a parameter.
func isOpen(d *v1beta1.Parameter) bool {
	return len(d.Pin)+len(d.Enum) == 0 && d.Pattern == "" && !d.Secret
}

// isRepository goes by the names that people give to where software comes from.
func isRepository(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "_"), func(word string) bool {
		return slices.Contains([]string{"URL", "URI", "REPO", "REPOS", "REPOSITORY", "MIRROR", "REGISTRY", "IMAGE", "SOURCE"}, word)
	})
}
