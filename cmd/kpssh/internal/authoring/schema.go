package authoring

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// maxSecret is how long a secret may be that only its Secret's manifest declares.
const maxSecret = 16 << 10

// maxPins is how many values an allowlist lists for a parameter (signing refuses more).
const maxPins = 64

// schema is the parameters of one script: the standard ones, replaced by what the profile declares
// under the same name, then what the classes add.
func (s Source) schema(script Script, pins Pins) ([]signing.Parameter, error) {
	var mine []profile.Parameter
	for _, d := range declared(s.Profile, script.Phase) {
		mine = append(mine, profile.Parameter{
			Name: d.Name, Type: d.Type, Pattern: d.Pattern, Enum: d.Enum, MaxLength: int(d.MaxLength),
			Optional: d.Optional, Secret: d.Secret, Pins: d.Pin,
		})
	}
	all, err := profile.Declare(profile.Phase(script.Phase), mine)
	if err != nil {
		return nil, err
	}
	var parameters []signing.Parameter
	for _, p := range all {
		parameters = append(parameters, signing.Parameter{
			Name: p.Name, Type: signing.ParamType(p.Type), Pattern: p.Pattern, Enum: p.Enum, MaxLength: p.MaxLength,
			Optional: p.Optional, Secret: p.Secret, Pins: p.Pins,
		})
	}
	if !member(script.Phase) {
		return parameters, nil
	}
	classes := s.classesOf(script)
	if parameters, err = addVars(parameters, classes); err != nil {
		return nil, err
	}
	if parameters, err = s.addSecrets(parameters, classes); err != nil {
		return nil, err
	}
	return pinCluster(parameters, classes, pins)
}

// member says whether a phase gets more than the two addresses.
func member(phase signing.Phase) bool {
	return phase == signing.PhaseInstall || phase == signing.PhaseJoin
}

// variables are what a class gives to a script: its vars by name, and the names of its secrets.
func variables(class *v1beta1.SSHNodeClass, secretKeys []string) (vars map[string]string, secrets []string, err error) {
	in := profile.Input{Phase: profile.Install, Vars: class.Spec.Vars, Secrets: map[string][]byte{}}
	for _, key := range secretKeys {
		in.Secrets[key] = nil
	}
	params, named, err := profile.Environment(in)
	if err != nil {
		return nil, nil, fmt.Errorf("class %q: %w", class.Name, err)
	}
	vars = map[string]string{}
	for name, value := range params {
		if strings.HasPrefix(name, profile.PrefixVar) {
			vars[name] = value
		}
	}
	return vars, slices.Sorted(maps.Keys(named)), nil
}

func (s Source) classesOf(script Script) []*v1beta1.SSHNodeClass {
	var out []*v1beta1.SSHNodeClass
	for _, class := range s.Classes {
		if slices.Contains(script.Classes, class.Name) {
			out = append(out, class)
		}
	}
	return out
}

// addVars pins the vars of classes that the profile does not declare to the values that they have.
func addVars(parameters []signing.Parameter, classes []*v1beta1.SSHNodeClass) ([]signing.Parameter, error) {
	values := map[string][]string{}
	for _, class := range classes {
		vars, _, err := variables(class, nil)
		if err != nil {
			return nil, err
		}
		for name, value := range vars {
			values[name] = append(values[name], value)
		}
	}
	for name, all := range values {
		if has(parameters, name) {
			continue
		}
		everywhere := len(all) == len(classes)
		slices.Sort(all)
		all = slices.Compact(all)
		if len(all) > maxPins {
			return nil, cli.Hint(fmt.Errorf("%s has %d different values in the node classes, and an allowlist holds at most %d", name, len(all), maxPins),
				"declare it in spec.parameters of the profile, with a pattern for all of them")
		}
		// Equality is what narrows the value; without a pattern some characters would be refused.
		p := signing.Parameter{Name: name, Type: signing.ParamString, Pattern: ".*", MaxLength: 1}
		for _, value := range all {
			p.MaxLength = max(p.MaxLength, len(value))
		}
		if everywhere {
			p.Pins = all
		} else {
			// A pinned parameter must be there, and some class does not have it.
			p.Enum, p.Optional = all, true
		}
		parameters = append(parameters, p)
	}
	return parameters, nil
}

// addSecrets declares the keys of join Secrets whose manifests were given.
func (s Source) addSecrets(parameters []signing.Parameter, classes []*v1beta1.SSHNodeClass) ([]signing.Parameter, error) {
	owners := map[string]int{}
	for _, class := range classes {
		if class.Spec.JoinSecretRef == nil {
			continue
		}
		keys, given := s.SecretKeys[class.Name]
		if !given && !slices.ContainsFunc(parameters, func(p signing.Parameter) bool { return strings.HasPrefix(p.Name, profile.PrefixSecret) }) {
			return nil, cli.Hint(fmt.Errorf("class %q has the join Secret %q, and nothing says which keys it holds", class.Name, class.Spec.JoinSecretRef.Name),
				"declare them in spec.parameters of the profile (name: %s<KEY>, secret: true), or give the Secret's manifest: only its keys are read", profile.PrefixSecret)
		}
		_, names, err := variables(class, keys)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			owners[name]++
		}
	}
	for name, n := range owners {
		if !has(parameters, name) {
			parameters = append(parameters, signing.Parameter{
				Name: name, Type: signing.ParamString, Secret: true, MaxLength: maxSecret, Optional: n < len(classes),
			})
		}
	}
	return parameters, nil
}

// pinCluster pins endpoint and CA: to what a profile declares, to what classes override, and for
// classes that leave it to cluster-info to what the author was asked for.
func pinCluster(parameters []signing.Parameter, classes []*v1beta1.SSHNodeClass, pins Pins) ([]signing.Parameter, error) {
	endpoints, cas, open, err := overrides(classes)
	if err != nil {
		return nil, err
	}
	for i := range parameters {
		var wanted, asked []string
		switch parameters[i].Name {
		case profile.EnvClusterEndpoint:
			wanted, asked = endpoints, pins.Endpoints
		case profile.EnvClusterCA:
			wanted, asked = cas, pins.CAPins
		default:
			continue
		}
		if open {
			wanted = append(wanted, asked...)
		}
		switch {
		case len(parameters[i].Pins) > 0 || pins.None && open: // the author has spoken
		case open && len(asked) == 0:
			return nil, ErrNoPins
		default:
			slices.Sort(wanted)
			parameters[i].Pins, parameters[i].Optional = slices.Compact(wanted), false
		}
	}
	return sorted(parameters), nil
}

// overrides are the endpoints and CA pins that classes name themselves; open says that some class
// leaves one of them to cluster-info.
func overrides(classes []*v1beta1.SSHNodeClass) (endpoints, cas []string, open bool, err error) {
	open = len(classes) == 0
	for _, class := range classes {
		c := class.Spec.Cluster
		if c == nil {
			c = &v1beta1.ClusterSpec{}
		}
		open = open || c.Endpoint == "" || len(c.CABundle) == 0
		if c.Endpoint != "" {
			endpoints = append(endpoints, c.Endpoint)
		}
		if len(c.CABundle) > 0 {
			found, err := cluster.CAPins(c.CABundle)
			if err != nil {
				return nil, nil, false, fmt.Errorf("class %q: %w", class.Name, err)
			}
			cas = append(cas, found...)
		}
	}
	return endpoints, cas, open, nil
}

func has(parameters []signing.Parameter, name string) bool {
	return slices.ContainsFunc(parameters, func(p signing.Parameter) bool { return p.Name == name })
}

func sorted(parameters []signing.Parameter) []signing.Parameter {
	slices.SortFunc(parameters, func(a, b signing.Parameter) int { return strings.Compare(a.Name, b.Name) })
	return parameters
}
