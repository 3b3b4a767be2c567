package review

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// schema compares what two scripts may be given; a is nil for a script without predecessor, whose parameters are all new.
func (c *comparison) schema(a, b *signing.AllowedScript) []Difference {
	var out []Difference
	before := map[string]*signing.Parameter{}
	grace := int64(0)
	if a != nil {
		grace = a.GraceSeconds
		for i := range a.Parameters {
			before[a.Parameters[i].Name] = &a.Parameters[i]
		}
	}
	if grace != b.GraceSeconds {
		d := Difference{Field: "grace", Old: seconds(grace), New: seconds(b.GraceSeconds)}
		if a != nil && b.GraceSeconds > grace {
			d.Widens = "it runs for longer after the allowlist has expired"
		}
		out = append(out, d)
	}
	for i := range b.Parameters {
		p := &b.Parameters[i]
		if old := before[p.Name]; old != nil {
			out = append(out, parameter(old, p)...)
			delete(before, p.Name)
			continue
		}
		out = append(out, c.newParameter(a, p))
	}
	for _, old := range before {
		out = append(out, Difference{Parameter: old.Name, Field: "parameter", Old: describe(old)})
	}
	slices.SortStableFunc(out, func(a, b Difference) int { return cmp.Compare(a.Parameter, b.Parameter) })
	return out
}

func (c *comparison) newParameter(a *signing.AllowedScript, p *signing.Parameter) Difference {
	d := Difference{Parameter: p.Name, Field: "parameter", New: describe(p)}
	cluster := p.Name == profile.EnvClusterEndpoint || p.Name == profile.EnvClusterCA
	switch {
	case cluster && len(p.Pins) == 0:
		d.Widens = "the cluster is not pinned: whoever has the dispatch key says which one hosts join"
	case a != nil && len(p.Pins)+len(p.Enum) == 0:
		d.Widens = "orders may carry a value that the script did not get before"
	}
	return d
}

// parameter compares two schemas of one variable.
func parameter(a, b *signing.Parameter) []Difference {
	var out []Difference
	add := func(field, old, next string, wider bool, widens string) {
		if old == next {
			return
		}
		if !wider {
			widens = ""
		}
		out = append(out, Difference{Parameter: b.Name, Field: field, Old: old, New: next, Widens: widens})
	}
	// Where the values are listed, nothing else decides which ones there are.
	open := len(b.Pins)+len(b.Enum) == 0
	more := refusedBefore(a, b)
	given := "orders may carry what was refused before: " + list(more)
	add("secret", yes(a.Secret), yes(b.Secret), a.Secret, "a secret became a plain parameter: it travels and is shown in the clear")
	add("type", string(a.Type), string(b.Type), open && a.Type != signing.ParamString, "other values fit the new type")
	add("pattern", quoted(a.Pattern), quoted(b.Pattern), open && a.Pattern != "", patternChange(b.Pattern))
	add("maxLength", length(a.MaxLength), length(b.MaxLength), open && longer(a.MaxLength, b.MaxLength), "longer values fit")
	add("optional", yes(a.Optional), yes(b.Optional), b.Optional && len(b.Pins) == 0, "orders may leave it out")
	switch {
	case open:
		add("enum", list(a.Enum), "", true, "no list of values narrows it any more")
		add("pins", list(a.Pins), "", true, "no pin narrows it any more")
	case len(b.Pins) == 0:
		add("enum", list(a.Enum), list(b.Enum), len(more) > 0, given)
		add("pins", list(a.Pins), "", len(more) > 0, given)
	default:
		add("enum", list(a.Enum), list(b.Enum), false, "")
		add("pins", list(a.Pins), list(b.Pins), len(more) > 0, given)
	}
	return out
}

// refusedBefore are the values that b lists and that a would refuse. Pins of a CA bundle are no values themselves.
func refusedBefore(a, b *signing.Parameter) []string {
	values := b.Pins
	if len(values) == 0 {
		values = b.Enum
	}
	var out []string
	for _, value := range values {
		entry := signing.AllowedScript{Parameters: []signing.Parameter{*a}}
		fits := !a.Secret && entry.Check(map[string]string{a.Name: value}, nil) == nil
		if b.Type == signing.ParamCABundle {
			fits = len(a.Pins) == 0 || slices.Contains(a.Pins, value)
		}
		if !fits {
			out = append(out, value)
		}
	}
	return out
}

func patternChange(next string) string {
	if next == "" {
		return "no pattern narrows it any more"
	}
	return "whether the new pattern is narrower, only a reader can tell"
}

// shortDefault is the smallest limit that free text has when its schema names none.
const shortDefault = 512

func longer(a, b int) bool {
	switch {
	case a == 0:
		return b > shortDefault
	case b == 0:
		return a < shortDefault
	}
	return b > a
}

// describe is a schema on one line.
func describe(p *signing.Parameter) string {
	out := []string{string(p.Type)}
	if p.Secret {
		out = append(out, "secret")
	}
	if p.Optional {
		out = append(out, "optional")
	}
	if p.MaxLength > 0 {
		out = append(out, "at most "+length(p.MaxLength))
	}
	for _, part := range []struct{ name, text string }{
		{"pattern", quoted(p.Pattern)}, {"one of", list(p.Enum)}, {"pinned to", list(p.Pins)},
	} {
		if part.text != "" {
			out = append(out, part.name+" "+part.text)
		}
	}
	return strings.Join(out, ", ")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func quoted(s string) string {
	if s == "" {
		return ""
	}
	return strconv.Quote(s)
}

func list(values []string) string {
	var out []string
	for _, v := range values {
		out = append(out, strconv.Quote(v))
	}
	return strings.Join(out, " ")
}

func length(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d bytes", n)
}

func seconds(n int64) string {
	switch {
	case n == 0:
		return ""
	case n%(24*3600) == 0:
		return fmt.Sprintf("%d days", n/(24*3600))
	}
	return fmt.Sprintf("%d s", n)
}
