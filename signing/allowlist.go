package signing

import (
	"maps"
	"slices"
)

// Find is the entry for a script by all four of its marks, or a not-allowed refusal.
func (a *Allowlist) Find(profile, version string, phase Phase, digest string) (*AllowedScript, error) {
	if a != nil {
		for i := range a.Scripts {
			s := &a.Scripts[i]
			if s.Digest == digest && s.Phase == phase && s.Profile == profile && s.Version == version {
				return s, nil
			}
		}
	}
	return nil, refuse(ReasonNotAllowed, "the %.40s script of profile %.80q version %.80q with digest %.80q is not in the allowlist",
		phase, profile, version, digest)
}

// Check holds the parameters of an order, and the names of its secrets, against the schema and
// the pins: unknown names, missing ones and values that do not fit are refused with param, a
// pinned parameter that is missing or has any other value with pin.
func (s *AllowedScript) Check(params map[string]string, secretNames []string) error {
	plain := make(map[string]bool, len(s.Parameters))
	secret := make(map[string]bool, len(secretNames))
	for i := range s.Parameters {
		p := &s.Parameters[i]
		plain[p.Name], secret[p.Name] = !p.Secret, p.Secret
		if err := p.checkGiven(params, secretNames); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(params)) { // the same refusal each time
		if !plain[name] {
			return refuse(ReasonParam, "%.80q is not a parameter of the script, or is secret", name)
		}
	}
	for _, name := range secretNames {
		if !secret[name] {
			return refuse(ReasonParam, "%.80q is not a secret of the script, or is named twice", name)
		}
		secret[name] = false
	}
	return nil
}

// checkGiven looks for one parameter among those given.
func (p *Parameter) checkGiven(params map[string]string, secretNames []string) error {
	value, given := params[p.Name]
	switch {
	case p.Secret:
		given = slices.Contains(secretNames, p.Name)
	case given:
		return p.checkValue(value)
	case len(p.Pins) > 0:
		return refuse(ReasonPin, "%s is pinned and missing", p.Name)
	}
	if !given && !p.Optional {
		return refuse(ReasonParam, "%s is missing", p.Name)
	}
	return nil
}

// CheckSecrets holds the values of secrets against the schema. Errors never contain a value.
func (s *AllowedScript) CheckSecrets(values map[string]string) error {
	for i := range s.Parameters {
		p := &s.Parameters[i]
		if value, given := values[p.Name]; p.Secret && given {
			if err := p.checkValue(value); err != nil {
				return err
			}
		}
	}
	return nil
}
