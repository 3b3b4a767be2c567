package authoring

import (
	"encoding/base64"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Verdict is whether one script of one class is allowed as it is.
type Verdict struct {
	Profile string        `json:"profile"`
	Version string        `json:"version"`
	Phase   signing.Phase `json:"phase"`
	Class   string        `json:"class,omitempty"`
	Digest  string        `json:"digest"`
	Allowed bool          `json:"allowed"`
	Detail  string        `json:"detail,omitempty"`
}

// Check says for every script, and every class that uses it, whether an allowlist lets it run with the
// values of that class. What is only known when a host joins is not looked at.
func (s Source) Check(list *signing.Allowlist) ([]Verdict, error) {
	scripts, err := s.Render()
	if err != nil {
		return nil, err
	}
	var out []Verdict
	for _, script := range scripts {
		classes := s.classesOf(script)
		if len(classes) == 0 {
			classes = []*v1beta1.SSHNodeClass{nil}
		}
		for _, class := range classes {
			v := Verdict{Profile: script.Profile, Version: script.Version, Phase: script.Phase, Digest: script.Digest, Allowed: true}
			err := allowed(list, script, class)
			if class != nil {
				v.Class = class.Name
			}
			if err != nil {
				v.Allowed, v.Detail = false, err.Error()
			}
			out = append(out, v)
		}
	}
	return out, nil
}

func allowed(list *signing.Allowlist, script Script, class *v1beta1.SSHNodeClass) error {
	entry, err := list.Find(script.Profile, script.Version, script.Phase, script.Digest)
	if err != nil || class == nil || !member(script.Phase) {
		return err
	}
	values, _, err := variables(class, nil)
	if err != nil {
		return err
	}
	if c := class.Spec.Cluster; c != nil {
		if c.Endpoint != "" {
			values[profile.EnvClusterEndpoint] = c.Endpoint
		}
		if len(c.CABundle) > 0 {
			values[profile.EnvClusterCA] = base64.StdEncoding.EncodeToString(c.CABundle)
		}
	}
	// Only what a class decides is checked: an entry cut down to those parameters.
	part := signing.AllowedScript{}
	for _, p := range entry.Parameters {
		_, given := values[p.Name]
		if given || strings.HasPrefix(p.Name, profile.PrefixVar) {
			part.Parameters = append(part.Parameters, p)
		}
	}
	return part.Check(values, nil)
}
