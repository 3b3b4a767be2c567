// Package review says what changed between two allowlists: scripts as a diff, schema and pins value by value, and of
// each change whether it gives more rights than there were.
//
// An allowlist holds digests only. The texts may come from anywhere, as a text counts only under the digest that was
// signed: see [Library].
package review

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// What became of a script.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// Header is an allowlist as a whole.
type Header struct {
	Version int64     `json:"version"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	MinShim string    `json:"minShim,omitempty"`
	Scripts int       `json:"scripts"`
}

// Difference is one thing that is not as before.
type Difference struct {
	// Parameter is the variable that it is about, empty for the script or the allowlist itself.
	Parameter string `json:"parameter,omitempty"`
	// Field of the schema or of the document; "parameter" when the whole of it came or went.
	Field string `json:"field"`
	Old   string `json:"old,omitempty"`
	New   string `json:"new,omitempty"`
	// Widens says which right there is now that was not there before; empty when there is none.
	Widens string `json:"widens,omitempty"`
}

// Script is what became of one script.
type Script struct {
	Change  string        `json:"change"`
	Profile string        `json:"profile"`
	Version string        `json:"version"`
	Phase   signing.Phase `json:"phase"`
	// OldVersion is the profile's version that a script of a new version is compared with.
	OldVersion string       `json:"oldVersion,omitempty"`
	OldDigest  string       `json:"oldDigest,omitempty"`
	NewDigest  string       `json:"newDigest,omitempty"`
	Widens     string       `json:"widens,omitempty"`
	Schema     []Difference `json:"schema,omitempty"`
	// Diff is a unified diff of the texts, AddedLines and RemovedLines its size.
	Diff         string `json:"diff,omitempty"`
	AddedLines   int    `json:"addedLines,omitempty"`
	RemovedLines int    `json:"removedLines,omitempty"`
	// NoText are the digests whose text is not at hand, so that there is no diff.
	NoText []string `json:"noText,omitempty"`
}

// Report is all that changed. Old is nil when nothing was allowed before.
type Report struct {
	Old      *Header      `json:"old"`
	New      *Header      `json:"new"`
	Document []Difference `json:"document"`
	Scripts  []Script     `json:"scripts"`
	// Widens is how many of the changes give more rights.
	Widens int `json:"widens"`
}

// Same says that nothing changed.
func (r *Report) Same() bool { return len(r.Document)+len(r.Scripts) == 0 }

// Compare compares two allowlists; old may be nil. text gives the script with a digest, if it is at hand.
func Compare(old, next *signing.Allowlist, text func(digest string) ([]byte, bool)) *Report {
	r := &Report{New: header(next), Document: []Difference{}, Scripts: []Script{}}
	before := &signing.Allowlist{}
	if old != nil {
		before = old
		r.Old = header(old)
		r.Document = documents(old, next)
	}
	c := &comparison{text: text, first: old == nil}
	r.Scripts = append(r.Scripts, c.scripts(before.Scripts, next.Scripts)...)
	if old != nil && old.Version == next.Version && (len(r.Document) > 0 || !reflect.DeepEqual(old.Scripts, next.Scripts)) {
		r.Document = append(r.Document, Difference{
			Field: "version", Old: fmt.Sprint(old.Version), New: fmt.Sprint(next.Version),
			Widens: "two allowlists have the same version: hosts keep the one that they saw first",
		})
	}
	r.Widens = r.count()
	return r
}

func header(a *signing.Allowlist) *Header {
	return &Header{a.Version, a.Issued.UTC(), a.Expires.UTC(), a.MinShim, len(a.Scripts)}
}

func (r *Report) count() int {
	n := widening(r.Document)
	for _, s := range r.Scripts {
		n += widening(s.Schema)
		if s.Widens != "" {
			n++
		}
	}
	return n
}

func widening(list []Difference) int {
	n := 0
	for _, d := range list {
		if d.Widens != "" {
			n++
		}
	}
	return n
}

// documents compares what an allowlist says of itself.
func documents(old, next *signing.Allowlist) []Difference {
	out := []Difference{}
	if next.Version < old.Version {
		out = append(out, Difference{Field: "version", Old: fmt.Sprint(old.Version), New: fmt.Sprint(next.Version)})
	}
	if !old.Expires.Equal(next.Expires) {
		d := Difference{Field: "expires", Old: old.Expires.UTC().Format(time.RFC3339), New: next.Expires.UTC().Format(time.RFC3339)}
		// Each signature moves the end. What counts is for how long a frozen host could be held to it.
		if before, after := days(old), days(next); after > before {
			d.Widens = fmt.Sprintf("it holds for %d days, before for %d", after, before)
		}
		out = append(out, d)
	}
	if old.MinShim != next.MinShim {
		d := Difference{Field: "minShim", Old: old.MinShim, New: next.MinShim}
		if next.MinShim == "" || old.MinShim != "" && compareVersions(next.MinShim, old.MinShim) < 0 {
			d.Widens = "hosts with an older kpssh-shim run orders again"
		}
		out = append(out, d)
	}
	return out
}

// days rounds to whole days, so that a leap second or a daylight saving time is no change.
func days(a *signing.Allowlist) int {
	return int((a.Expires.Sub(a.Issued) + 12*time.Hour).Hours() / 24)
}

// compareVersions orders versions as people count: runs of digits by their number.
func compareVersions(a, b string) int {
	for a != "" && b != "" {
		x, y := run(a), run(b)
		a, b = a[len(x):], b[len(y):]
		if c := cmp.Or(compareRuns(x, y), cmp.Compare(x, y)); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

func compareRuns(x, y string) int {
	if !digit(x[0]) || !digit(y[0]) {
		return 0
	}
	for len(x) > 1 && x[0] == '0' {
		x = x[1:]
	}
	for len(y) > 1 && y[0] == '0' {
		y = y[1:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// run is the longest beginning of s that is all digits or has none.
func run(s string) string {
	n := 1
	for n < len(s) && digit(s[n]) == digit(s[0]) {
		n++
	}
	return s[:n]
}

func phaseOrder(p signing.Phase) int {
	return slices.Index([]signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave, signing.PhaseUninstall}, p)
}
