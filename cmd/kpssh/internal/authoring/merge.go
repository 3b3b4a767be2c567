package authoring

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Fates of an entry when an allowlist is signed anew.
const (
	Added   = "new"
	Changed = "changed" // the same script with other parameters
	Same    = "same"
	Kept    = "kept" // of a profile or version that this signature is not about
	Dropped = "dropped"
)

// Change is what becomes of one entry.
type Change struct {
	Fate   string                `json:"fate"`
	Script signing.AllowedScript `json:"script"`
}

// Mode says what happens to the entries that are there already.
type Mode struct {
	// Add keeps other scripts of the same profile and version, for node classes signed on their own.
	Add bool
	// DropOlder drops other versions of the profiles that are signed.
	DropOlder bool
}

// Merge puts entries into an allowlist, which may be nil. Entries of other profiles stay; those of the
// same profile and version give way to the new ones.
func Merge(old *signing.Allowlist, entries []signing.AllowedScript, mode Mode) []Change {
	var changes []Change
	replaced := map[string]bool{}
	profiles := map[string]bool{}
	for _, e := range entries {
		replaced[e.Profile+"@"+e.Version] = true
		profiles[e.Profile] = true
	}
	var before []signing.AllowedScript
	if old != nil {
		before = old.Scripts
	}
	for _, e := range entries {
		fate := Added
		if i := slices.IndexFunc(before, func(o signing.AllowedScript) bool { return sameScript(o, e) }); i >= 0 {
			fate = Changed
			if sameSchema(before[i], e) {
				fate = Same
			}
		}
		changes = append(changes, Change{fate, e})
	}
	for _, o := range before {
		if slices.ContainsFunc(entries, func(e signing.AllowedScript) bool { return sameScript(o, e) }) {
			continue
		}
		fate := Kept
		switch {
		case replaced[o.Profile+"@"+o.Version]:
			if !mode.Add {
				fate = Dropped
			}
		case profiles[o.Profile] && mode.DropOlder:
			fate = Dropped
		}
		changes = append(changes, Change{fate, o})
	}
	slices.SortStableFunc(changes, func(a, b Change) int {
		return cmp.Or(
			cmp.Compare(a.Script.Profile, b.Script.Profile),
			cmp.Compare(a.Script.Version, b.Script.Version),
			cmp.Compare(slices.Index(phases(), a.Script.Phase), slices.Index(phases(), b.Script.Phase)),
			cmp.Compare(a.Script.Digest, b.Script.Digest),
		)
	})
	return changes
}

// Scripts are the entries that a merge leaves allowed.
func Scripts(changes []Change) []signing.AllowedScript {
	var out []signing.AllowedScript
	for _, c := range changes {
		if c.Fate != Dropped {
			out = append(out, c.Script)
		}
	}
	return out
}

// EditedInPlace returns the "<profile>@<version>" whose install script was replaced under the same
// version: hosts that ran the old one will not run the new one.
func EditedInPlace(changes []Change) []string {
	added, dropped := map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		name := c.Script.Profile + "@" + c.Script.Version
		if c.Script.Phase == signing.PhaseInstall {
			added[name] = added[name] || c.Fate == Added
			dropped[name] = dropped[name] || c.Fate == Dropped
		}
	}
	var out []string
	for name := range added {
		if added[name] && dropped[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Carried are the pins that a profile was signed with before, so that signing it again cannot lose them by an omitted
// flag. What classes name themselves is left out where there is more: it was pinned for their hosts, and must not open
// another cluster to the rest.
func (s Source) Carried(old *signing.Allowlist) (Pins, error) {
	var pins Pins
	if old == nil {
		return pins, nil
	}
	for _, script := range old.Scripts {
		if script.Profile != s.Profile.Name {
			continue
		}
		for _, p := range script.Parameters {
			switch p.Name {
			case profile.EnvClusterEndpoint:
				pins.Endpoints = append(pins.Endpoints, p.Pins...)
			case profile.EnvClusterCA:
				pins.CAPins = append(pins.CAPins, p.Pins...)
			}
		}
	}
	endpoints, cas, _, err := overrides(s.Classes)
	pins.Endpoints, pins.CAPins = without(pins.Endpoints, endpoints), without(pins.CAPins, cas)
	return pins, err
}

// without takes values out of a list unless nothing would stay.
func without(list, values []string) []string {
	rest := slices.DeleteFunc(slices.Clone(list), func(v string) bool { return slices.Contains(values, v) })
	if len(rest) == 0 {
		return list
	}
	return rest
}

func sameScript(a, b signing.AllowedScript) bool {
	return a.Profile == b.Profile && a.Version == b.Version && a.Phase == b.Phase && a.Digest == b.Digest
}

func sameSchema(a, b signing.AllowedScript) bool {
	if len(a.Parameters) == 0 && len(b.Parameters) == 0 {
		return a.GraceSeconds == b.GraceSeconds
	}
	return a.GraceSeconds == b.GraceSeconds && reflect.DeepEqual(a.Parameters, b.Parameters)
}
