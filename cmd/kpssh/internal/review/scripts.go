package review

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

type comparison struct {
	text func(digest string) ([]byte, bool)
	// first says that nothing was allowed before, so that nothing is wider than it was.
	first bool
}

// scripts pairs the entries of two allowlists: first those with the same bytes in the same place, then those of the
// same place, and what is new with the newest that the profile had in that phase.
func (c *comparison) scripts(old, next []signing.AllowedScript) []Script {
	var out []Script
	left, came := unpaired(old, next, func(a, b *signing.AllowedScript) {
		if schema := c.schema(a, b); len(schema) > 0 {
			out = append(out, Script{
				Change: Changed, Profile: b.Profile, Version: b.Version, Phase: b.Phase, OldDigest: a.Digest, NewDigest: b.Digest, Schema: schema,
			})
		}
	})
	for _, b := range came {
		same := slices.DeleteFunc(slices.Clone(left), func(a *signing.AllowedScript) bool {
			return a.Profile != b.Profile || a.Phase != b.Phase || a.Version != b.Version
		})
		if a := c.closest(same, b); a != nil {
			left = slices.DeleteFunc(left, func(o *signing.AllowedScript) bool { return o == a })
			out = append(out, c.pair(Changed, a, b))
			continue
		}
		out = append(out, c.added(old, b))
	}
	for _, a := range left {
		out = append(out, Script{Change: Removed, Profile: a.Profile, Version: a.Version, Phase: a.Phase, OldDigest: a.Digest})
	}
	slices.SortStableFunc(out, func(a, b Script) int {
		return cmp.Or(
			cmp.Compare(a.Profile, b.Profile), compareVersions(a.Version, b.Version),
			cmp.Compare(phaseOrder(a.Phase), phaseOrder(b.Phase)), cmp.Compare(a.Change, b.Change),
			cmp.Compare(a.NewDigest, b.NewDigest), cmp.Compare(a.OldDigest, b.OldDigest),
		)
	})
	return out
}

// unpaired returns the entries of either side that have no twin on the other, after showing the twins.
func unpaired(old, next []signing.AllowedScript, twins func(a, b *signing.AllowedScript)) (left, came []*signing.AllowedScript) {
	type place struct {
		profile, version string
		phase            signing.Phase
		digest           string
	}
	at := func(s *signing.AllowedScript) place { return place{s.Profile, s.Version, s.Phase, s.Digest} }
	before := map[place]*signing.AllowedScript{}
	for i := range old {
		before[at(&old[i])] = &old[i]
	}
	for i := range next {
		b := &next[i]
		if a := before[at(b)]; a != nil {
			delete(before, at(b))
			twins(a, b)
			continue
		}
		came = append(came, b)
	}
	for i := range old {
		if before[at(&old[i])] != nil {
			left = append(left, &old[i])
		}
	}
	return left, came
}

// added is a script in a place where there was none, or that stands beside those that were there.
func (c *comparison) added(old []signing.AllowedScript, b *signing.AllowedScript) Script {
	a := c.closest(relatives(old, b), b)
	s := c.pair(Added, a, b)
	switch {
	case a != nil && a.Version == b.Version:
		s.Widens = "one more script for this phase, beside those that stay"
	case a == nil && !c.first:
		s.Widens = fmt.Sprintf("nothing of %s could run as %s before", b.Profile, b.Phase)
	}
	if a != nil {
		s.OldVersion = a.Version
	}
	return s
}

// relatives are the scripts of a profile's phase under the same version, or else under the newest one.
func relatives(old []signing.AllowedScript, b *signing.AllowedScript) []*signing.AllowedScript {
	var out []*signing.AllowedScript
	version := ""
	for i := range old {
		a := &old[i]
		if a.Profile != b.Profile || a.Phase != b.Phase {
			continue
		}
		out = append(out, a)
		if version != b.Version && (version == "" || a.Version == b.Version || compareVersions(a.Version, version) > 0) {
			version = a.Version
		}
	}
	return slices.DeleteFunc(out, func(a *signing.AllowedScript) bool { return a.Version != version })
}

// pair compares two scripts; a is nil for one that has no predecessor.
func (c *comparison) pair(change string, a, b *signing.AllowedScript) Script {
	s := Script{Change: change, Profile: b.Profile, Version: b.Version, Phase: b.Phase, NewDigest: b.Digest}
	name := func(e *signing.AllowedScript) string {
		// An allowlist that nobody has verified yet may have line ends in its names.
		return cli.Visible(fmt.Sprintf("%s@%s/%s %s", e.Profile, e.Version, e.Phase, e.Digest))
	}
	var from, to []byte
	fromName := "/dev/null"
	var known bool
	if a == nil {
		s.Schema = c.schema(nil, b)
	} else {
		s.OldDigest, fromName, s.Schema = a.Digest, name(a), c.schema(a, b)
		if a.Digest == b.Digest {
			return s
		}
		if from, known = c.text(a.Digest); !known {
			s.NoText = append(s.NoText, a.Digest)
		}
	}
	if to, known = c.text(b.Digest); !known {
		s.NoText = append(s.NoText, b.Digest)
	}
	if len(s.NoText) > 0 {
		return s
	}
	_, body, _ := bytes.Cut(diff.Diff(fromName, from, name(b), to), []byte("\n")) // the first line is a command
	s.Diff = string(body)
	s.AddedLines, s.RemovedLines = lines(s.Diff)
	return s
}

// lines counts the lines of a unified diff that came and that went.
func lines(text string) (came, went int) {
	for i, line := range strings.Split(text, "\n") {
		switch {
		case i < 2: // the names
		case strings.HasPrefix(line, "+"):
			came++
		case strings.HasPrefix(line, "-"):
			went++
		}
	}
	return came, went
}

// closest is the candidate that has the most lines in common, the first one where no text is at hand.
func (c *comparison) closest(candidates []*signing.AllowedScript, b *signing.AllowedScript) *signing.AllowedScript {
	if len(candidates) < 2 {
		return slices.Concat(candidates, []*signing.AllowedScript{nil})[0]
	}
	var best *signing.AllowedScript
	most := -1
	to, _ := c.text(b.Digest)
	for _, a := range candidates {
		n := len(to) + 1
		if a.Digest != b.Digest {
			from, _ := c.text(a.Digest)
			n = common(from, to)
		}
		if n > most {
			best, most = a, n
		}
	}
	return best
}

func common(a, b []byte) int {
	count := map[string]int{}
	for line := range bytes.Lines(a) {
		count[string(line)]++
	}
	n := 0
	for line := range bytes.Lines(b) {
		if count[string(line)] > 0 {
			count[string(line)]--
			n++
		}
	}
	return n
}
