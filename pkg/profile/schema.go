package profile

import (
	"fmt"
	"slices"
	"strings"
)

// Parameter is the schema of one variable of a script, field by field what the allowlist carries.
type Parameter struct {
	Name string
	// Type selects the built-in checks: string, endpoint, caBundle, ip, host, nodeName, uri, labels,
	// taints or token.
	Type string
	// Pattern is an RE2 expression for the whole value.
	Pattern string
	Enum    []string
	// MaxLength in bytes; 0 is the type's own limit.
	MaxLength int
	Optional  bool
	Secret    bool
	// Pins are the only values that an order may carry, when there are any.
	Pins []string
}

// Schema is the built-in schema of the standard variables of a phase, sorted by name, so that an
// author declares vars and secrets only.
func Schema(phase Phase) []Parameter {
	out := []Parameter{
		{Name: EnvHostAddress, Type: "host"},
		// A host that is dialled by name and has no nodeAddress passes that name on.
		{Name: EnvNodeAddress, Type: "host"},
	}
	if phase == Install || phase == Join {
		out = append(out,
			Parameter{Name: EnvClusterEndpoint, Type: "endpoint"},
			Parameter{Name: EnvClusterCA, Type: "caBundle"},
			Parameter{Name: EnvNodeName, Type: "nodeName"},
			Parameter{Name: EnvNodeLabels, Type: "labels"},
			// Empty when the node's own provider id is adopted; else kpssh://NAMESPACE/HOST.
			Parameter{Name: EnvProviderID, Type: "uri", Pattern: `kpssh://[a-z0-9-]+/[a-z0-9.-]+`, Optional: true},
			Parameter{Name: EnvTaints, Type: "taints"},
		)
	}
	if phase == Join {
		out = append(out, Parameter{Name: EnvBootstrapToken, Type: "token", Secret: true})
	}
	sortByName(out)
	return out
}

// Declare puts an author's declarations beside the built-in ones of a phase, or in their place.
func Declare(phase Phase, declared []Parameter) ([]Parameter, error) {
	out := Schema(phase)
	var seen []string
	for _, p := range declared {
		if slices.Contains(seen, p.Name) {
			return nil, fmt.Errorf("parameter %s of %s is declared twice", p.Name, phase)
		}
		seen = append(seen, p.Name)
		if err := checkDeclaration(phase, p); err != nil {
			return nil, err
		}
		if p.Type == "" {
			p.Type = "string"
		}
		at := slices.IndexFunc(out, func(o Parameter) bool { return o.Name == p.Name })
		if at < 0 {
			out = append(out, p)
			continue
		}
		out[at] = p
	}
	sortByName(out)
	return out, nil
}

func checkDeclaration(phase Phase, p Parameter) error {
	isVar, isSecret := strings.HasPrefix(p.Name, PrefixVar), strings.HasPrefix(p.Name, PrefixSecret)
	standard := slices.IndexFunc(Schema(phase), func(o Parameter) bool { return o.Name == p.Name }) >= 0
	switch {
	case standard:
	case phase != Install && phase != Join:
		return fmt.Errorf("parameter %.80q of %s: that phase gets the two addresses only", p.Name, phase)
	case isVar && isName(p.Name, PrefixVar), isSecret && isName(p.Name, PrefixSecret):
	default:
		return fmt.Errorf("parameter %.80q of %s is neither standard nor a %s or %s name", p.Name, phase, PrefixVar, PrefixSecret)
	}
	if secret := isSecret || p.Name == EnvBootstrapToken; secret != p.Secret {
		return fmt.Errorf("parameter %s of %s: %s and %s names are secret, and nothing else is", p.Name, phase, EnvBootstrapToken, PrefixSecret)
	}
	return nil
}

func sortByName(parameters []Parameter) {
	slices.SortFunc(parameters, func(a, b Parameter) int { return strings.Compare(a.Name, b.Name) })
}
