package dispatch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Words of a Tolerance that are no findings.
const (
	tolerateAll  = "all"
	tolerateNone = "none"
)

// Tolerance says which findings of a host's doctor do not keep orders from the host. The zero value tolerates those
// that leave another wall standing, see wire.Finding.
type Tolerance struct {
	set   bool
	all   bool
	names []string
}

// DefaultTolerance is the zero Tolerance as ParseTolerance reads it.
func DefaultTolerance() string {
	var names []string
	for _, f := range wire.Findings() {
		if !f.Bypass {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// ParseTolerance reads names of findings with commas between them, "none" or "all". A name that is not known is taken
// for one of a newer shim.
func ParseTolerance(text string) (Tolerance, error) {
	t := Tolerance{set: true}
	for name := range strings.SplitSeq(text, ",") {
		switch name = strings.TrimSpace(name); {
		case name == tolerateAll:
			t.all = true
		case name == "" || name == tolerateNone:
		case !isFinding(name):
			return Tolerance{}, fmt.Errorf("%q is not the name of a finding, such as %q", name, wire.FindingTTY)
		default:
			t.names = append(t.names, name)
		}
	}
	if words := strings.Split(text, ","); len(words) > 1 && (t.all || slices.Contains(words, tolerateNone)) {
		return Tolerance{}, fmt.Errorf("%q and %q stand alone", tolerateAll, tolerateNone)
	}
	return t, nil
}

func isFinding(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' })
}

// refused are the findings that are not tolerated.
func (t Tolerance) refused(findings []string) []wire.Finding {
	var out []wire.Finding
	for _, name := range findings {
		f := wire.FindingOf(name)
		tolerated := t.all || slices.Contains(t.names, name)
		if !t.set {
			tolerated = !f.Bypass
		}
		if !tolerated {
			out = append(out, f)
		}
	}
	return out
}

// unfit says why a host, by its own signed word, is to be given no order but to leave; nil when it is fit. docs may be
// nil when there are none.
func (d *Dispatcher) unfit(hello *signing.Hello, docs *documents) *Error {
	if docs != nil && wire.OlderThan(hello.ShimVersion, docs.list.MinShim) {
		return &Error{
			Class: Refused, Reason: string(signing.ReasonShimTooOld), Detail: fmt.Sprintf(
				"the host's shim is version %s, allowlist %d asks for %s: run \"kpssh host enroll\" with a newer one, or upgrade its package",
				hello.ShimVersion, docs.list.Version, docs.list.MinShim),
		}
	}
	refused := d.options.Tolerated.refused(hello.Findings)
	if len(refused) == 0 {
		return nil
	}
	names := make([]string, len(refused))
	for i, f := range refused {
		names[i] = f.Name
	}
	detail := fmt.Sprintf("its doctor found %s, not in --tolerated-findings. Run \"%s doctor\" there", strings.Join(names, ", "), wire.ShimPath)
	for _, f := range refused {
		if fix := "; " + f.Name + ": " + f.Fix; len(detail)+len(fix) <= maxDetail {
			detail += fix
		}
	}
	return &Error{Class: NotHardened, Reason: ReasonFindings, Detail: detail}
}

// leaving tells the phases that are never kept from a host: what is wrong with it is a reason to have it leave.
func leaving(phase signing.Phase) bool {
	return phase == signing.PhaseLeave || phase == signing.PhaseUninstall
}
