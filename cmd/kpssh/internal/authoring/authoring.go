// Package authoring turns join profiles, and the node classes that use them, into the entries of an
// allowlist: which bytes may run, and with which values.
//
// What an author leaves open is filled in as tightly as the manifests allow. The standard variables
// have a built-in schema, a class's vars are pinned to their values unless the profile declares them,
// and the cluster is pinned to one endpoint and its certificates, so that a stolen dispatch key cannot
// send a host to another API server.
package authoring

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Script is one rendered script and where it comes from.
type Script struct {
	Profile, Version string
	Phase            signing.Phase
	// Classes are the node classes whose values give these bytes; empty when no class was given.
	Classes []string
	Content []byte
	Digest  string
}

// Source is a profile with the classes that use it.
type Source struct {
	Profile *v1beta1.SSHJoinProfile
	Classes []*v1beta1.SSHNodeClass
	// SecretKeys are the keys of each class's join Secret, by class, where its manifest was given.
	SecretKeys map[string][]string
}

// Sources pairs profiles with the classes that use them.
func Sources(o *manifest.Objects) ([]Source, error) {
	if len(o.Profiles) == 0 {
		return nil, cli.Hint(errors.New("there is no SSHJoinProfile in the manifests"), "name its file, or - for stdin")
	}
	var sources []Source
	used := map[string]bool{}
	for i := range o.Profiles {
		s := Source{Profile: &o.Profiles[i], SecretKeys: map[string][]string{}}
		for j := range o.Classes {
			class := &o.Classes[j]
			if class.Spec.JoinProfileRef.Name != s.Profile.Name {
				continue
			}
			used[class.Name] = true
			s.Classes = append(s.Classes, class)
			if ref := class.Spec.JoinSecretRef; ref != nil {
				if keys, given := o.SecretKeys(ref.Name); given {
					s.SecretKeys[class.Name] = keys
				}
			}
		}
		sources = append(sources, s)
	}
	for j := range o.Classes {
		if class := &o.Classes[j]; !used[class.Name] {
			return nil, cli.Hint(fmt.Errorf("SSHNodeClass %q uses SSHJoinProfile %q, which is not in the manifests", class.Name, class.Spec.JoinProfileRef.Name),
				"give the profile's manifest as well")
		}
	}
	return sources, nil
}

// Validate finds what admission would refuse, so that it is not signed first.
func (s Source) Validate() error {
	for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave} {
		if source(s.Profile, phase) == "" {
			return fmt.Errorf("profile %q has no %s script", s.Profile.Name, phase)
		}
	}
	for _, class := range s.Classes {
		if err := profile.CheckVars(class.Spec.Vars); err != nil {
			return fmt.Errorf("vars of class %q: %w", class.Name, err)
		}
	}
	return nil
}

// Render renders every script of a source, once per distinct result.
func (s Source) Render() ([]Script, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	var out []Script
	for _, phase := range phases() {
		scripts, err := s.RenderPhase(phase)
		if err != nil {
			return nil, err
		}
		out = append(out, scripts...)
	}
	return out, nil
}

// RenderPhase renders the script of one phase, once per distinct result; a phase without a script gives none.
func (s Source) RenderPhase(phase signing.Phase) ([]Script, error) {
	text := source(s.Profile, phase)
	if text == "" {
		return nil, nil
	}
	var out []Script
	add := func(class string, vars map[string]string) error {
		content, err := profile.Render([]byte(text), profile.Values{Vars: vars})
		if err != nil {
			return s.renderError(class, phase, err)
		}
		digest := signing.Digest(content)
		same := slices.IndexFunc(out, func(o Script) bool { return o.Digest == digest })
		if same < 0 {
			out = append(out, Script{Profile: s.Profile.Name, Version: s.Version(), Phase: phase, Content: content, Digest: digest})
			same = len(out) - 1
		}
		if class != "" {
			out[same].Classes = append(out[same].Classes, class)
		}
		return nil
	}
	if len(s.Classes) == 0 {
		err := add("", nil)
		return out, err
	}
	for _, class := range s.Classes {
		if err := add(class.Name, class.Spec.Vars); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CheckTemplate says what is wrong with the script of a phase whatever the values of a class are.
func (s Source) CheckTemplate(phase signing.Phase) error {
	return profile.CheckTemplate([]byte(source(s.Profile, phase)))
}

func (s Source) renderError(class string, phase signing.Phase, err error) error {
	if class == "" {
		return cli.Hint(fmt.Errorf("rendering the %s script of profile %q: %w", phase, s.Profile.Name, err),
			"if it uses values of a node class, give the SSHNodeClass manifest as well")
	}
	return fmt.Errorf("rendering the %s script of profile %q for class %q: %w", phase, s.Profile.Name, class, err)
}

// Texts renders whatever can be rendered of manifests that need not belong together, such as an old and a new profile of
// the same name. It is for finding the text of a digest: what it cannot render it leaves out.
func Texts(sets []*manifest.Objects) [][]byte {
	var profiles []*v1beta1.SSHJoinProfile
	var classes []*v1beta1.SSHNodeClass
	for _, o := range sets {
		for i := range o.Profiles {
			profiles = append(profiles, &o.Profiles[i])
		}
		for i := range o.Classes {
			classes = append(classes, &o.Classes[i])
		}
	}
	var out [][]byte
	for _, p := range profiles {
		for _, phase := range phases() {
			vars := []map[string]string{nil}
			for _, class := range classes {
				if class.Spec.JoinProfileRef.Name == p.Name {
					vars = append(vars, class.Spec.Vars)
				}
			}
			for _, v := range vars {
				if content, err := profile.Render([]byte(source(p, phase)), profile.Values{Vars: v}); err == nil {
					out = append(out, content)
				}
			}
		}
	}
	return out
}

// Pins are what the author pins the cluster to, beside what node classes say themselves.
type Pins struct {
	Endpoints []string
	CAPins    []string
	// None leaves the cluster open, on the author's word.
	None bool
}

// Add adds the identity of a cluster.
func (p *Pins) Add(id cluster.Identity) {
	p.Endpoints = append(p.Endpoints, id.Endpoint)
	p.CAPins = append(p.CAPins, id.CAPins...)
}

// ErrNoPins says that nothing pins the cluster of a profile.
var ErrNoPins = errors.New("nothing pins the cluster that hosts may join")

// Entry is what an allowlist will say of a script, without the pins of a cluster that its manifests leave open.
func (s Source) Entry(script Script) (signing.AllowedScript, error) {
	schema, err := s.schema(script, Pins{None: true})
	return signing.AllowedScript{
		Profile: script.Profile, Version: script.Version, Phase: script.Phase, Digest: script.Digest, Parameters: schema,
	}, err
}

// Entries makes the allowlist entries of a source. grace is how long after expiry hosts may still leave.
func (s Source) Entries(pins Pins, graceSeconds int64) ([]signing.AllowedScript, error) {
	scripts, err := s.Render()
	if err != nil {
		return nil, err
	}
	var entries []signing.AllowedScript
	for _, script := range scripts {
		schema, err := s.schema(script, pins)
		if err != nil {
			return nil, fmt.Errorf("making the schema of the %s script of profile %q: %w", script.Phase, s.Profile.Name, err)
		}
		entry := signing.AllowedScript{
			Profile: script.Profile, Version: script.Version, Phase: script.Phase, Digest: script.Digest, Parameters: schema,
		}
		if script.Phase == signing.PhaseLeave {
			entry.GraceSeconds = graceSeconds
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

func phases() []signing.Phase {
	return []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave, signing.PhaseUninstall}
}

func source(p *v1beta1.SSHJoinProfile, phase signing.Phase) string {
	switch phase {
	case signing.PhaseInstall:
		return p.Spec.Scripts.Install
	case signing.PhaseJoin:
		return p.Spec.Scripts.Join
	case signing.PhaseLeave:
		return p.Spec.Scripts.Leave
	case signing.PhaseUninstall:
		return p.Spec.Scripts.Uninstall
	}
	return ""
}

func declared(p *v1beta1.SSHJoinProfile, phase signing.Phase) []v1beta1.Parameter {
	if p.Spec.Parameters == nil {
		return nil
	}
	switch phase {
	case signing.PhaseInstall:
		return p.Spec.Parameters.Install
	case signing.PhaseJoin:
		return p.Spec.Parameters.Join
	case signing.PhaseLeave:
		return p.Spec.Parameters.Leave
	case signing.PhaseUninstall:
		return p.Spec.Parameters.Uninstall
	}
	return nil
}

// Version is the profile's version with the API's default, since a manifest may leave it out.
func (s Source) Version() string { return cmp.Or(s.Profile.Spec.Version, profile.DefaultVersion) }
