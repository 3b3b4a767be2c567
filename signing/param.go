package signing

import (
	"regexp"
	"regexp/syntax"
	"slices"
)

// Bounds of a parameter's schema and values, in bytes.
const (
	// MaxValueLength is the longest value that a schema may allow: Linux takes at most 128 KiB
	// for one environment string.
	MaxValueLength = 64 << 10

	maxPattern = 1024
)

// check refuses a schema that an author cannot have meant; patterns holds the patterns that have
// been found good.
func (p *Parameter) check(patterns map[string]bool) error {
	typeLimit, _ := p.Type.builtIn()
	switch {
	case !isParameterName(p.Name):
		return refuse(ReasonMalformed, "name is not KPSSH_ and upper case letters, digits or _")
	case typeLimit == 0:
		return refuse(ReasonMalformed, "type %.40q is not known", p.Type)
	case p.MaxLength < 0 || p.MaxLength > MaxValueLength:
		return refuse(ReasonMalformed, "maxLength is %d, at most %d", p.MaxLength, MaxValueLength)
	case len(p.Enum) > maxListed || len(p.Pins) > maxListed:
		return refuse(ReasonMalformed, "more than %d values", maxListed)
	case p.Secret && len(p.Enum)+len(p.Pins) > 0:
		return refuse(ReasonMalformed, "a list of values would give the secret away")
	}
	if p.Pattern != "" && !patterns[p.Pattern] {
		if err := checkPattern(p.Pattern); err != nil {
			return err
		}
		patterns[p.Pattern] = true
	}
	return p.checkLists()
}

// checkLists holds what the lists allow against the rest of the schema.
func (p *Parameter) checkLists() error {
	rest := *p
	rest.Enum, rest.Pins = nil, nil
	fits := func(value string) bool { return rest.checkValue(value) == nil }
	if len(p.Enum) > 0 {
		// As for a value: the enum narrows a string, so that the type's own alphabet does not.
		rest.Enum = p.Enum
	}
	if i := badIndex(p.Enum, fits); i >= 0 {
		return refuse(ReasonMalformed, "enum value %d does not fit, or is there twice", i+1)
	}
	if p.Type == ParamCABundle {
		fits = isDigest
	}
	if i := badIndex(p.Pins, fits); i >= 0 {
		return refuse(ReasonMalformed, "pin %d does not fit, or is there twice", i+1)
	}
	return nil
}

// badIndex is where the first value stands that does not fit or was there before; -1 for none.
func badIndex(values []string, fits func(string) bool) int {
	for i, value := range values {
		if !fits(value) || slices.Contains(values[:i], value) {
			return i
		}
	}
	return -1
}

// checkValue holds one value against the schema. The refusal never contains the value.
func (p *Parameter) checkValue(value string) error {
	if len(p.Pins) > 0 && p.Type != ParamCABundle {
		// Before all else: another spelling of a pinned value is refused as pin, not as param.
		// A pin itself fits the schema, or the document would not have opened.
		if !slices.Contains(p.Pins, value) {
			return refuse(ReasonPin, "%s is not a pinned value", p.Name)
		}
		return nil
	}
	if err := p.checkForm(value); err != nil {
		return err
	}
	if len(p.Pins) > 0 {
		return checkBundlePins(p.Name, value, p.Pins)
	}
	return nil
}

// checkForm is checkValue without the pins.
func (p *Parameter) checkForm(value string) error {
	limit, fits := p.limits()
	switch {
	case len(value) > limit:
		return refuse(ReasonParam, "%s has %d bytes, at most %d", p.Name, len(value), limit)
	case !isText(value):
		return refuse(ReasonParam, "%s holds control characters or invalid UTF-8", p.Name)
	case value == "" && p.Optional && len(p.Pins) == 0:
		return nil
	case !fits(value):
		return refuse(ReasonParam, "%s is not of type %s", p.Name, p.Type)
	case len(p.Enum) > 0 && !slices.Contains(p.Enum, value):
		return refuse(ReasonParam, "%s is not one of the allowed values", p.Name)
	case p.Pattern != "" && !matches(p.Pattern, value):
		return refuse(ReasonParam, "%s does not match its pattern", p.Name)
	}
	return nil
}

// anchored makes a pattern match whole values only.
func anchored(pattern string) string { return `\A(?:` + pattern + `)\z` }

// limits are the type's, as far as the schema leaves them.
func (p *Parameter) limits() (maxLength int, fits func(string) bool) {
	maxLength, fits = p.Type.builtIn()
	if p.MaxLength > 0 {
		maxLength = p.MaxLength
	}
	if p.Type == ParamString && (p.Pattern != "" || len(p.Enum) > 0 || p.Secret) {
		// The author has said what the string may be, or it is only ever data.
		fits = isText
	}
	return maxLength, fits
}

func matches(pattern, value string) bool {
	re, err := regexp.Compile(anchored(pattern))
	return err == nil && re.MatchString(value)
}

// checkPattern parses a pattern on its own first, so that it cannot close the group that anchors
// it, and then anchored. Parsing is enough: what parses compiles.
func checkPattern(pattern string) error {
	if len(pattern) > maxPattern || !isText(pattern) {
		return refuse(ReasonMalformed, "pattern has more than %d bytes, or characters that do not show", maxPattern)
	}
	for _, p := range []string{pattern, anchored(pattern)} {
		if _, err := syntax.Parse(p, syntax.Perl); err != nil {
			return refuse(ReasonMalformed, "pattern: %.200v", err)
		}
	}
	return nil
}
