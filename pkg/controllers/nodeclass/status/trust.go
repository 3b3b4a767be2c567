package status

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Reasons beside those of the API: what an order would be refused for.
const (
	// ReasonParameterNotAllowed: a variable that the signed schema does not have, or not with this value.
	ReasonParameterNotAllowed = "ParameterNotAllowed"
	// ReasonPinMismatch: a pinned variable with another value.
	ReasonPinMismatch = "PinMismatch"
)

// applyTrust is what to do about documents that are not there or not whole.
const applyTrust = "apply manifests/10-trust.yaml of the folder that \"kpssh init\" made"

// checkTrust holds the class's scripts against the signed documents, and the controller's key against the
// root. A class all of whose hosts are in Raw needs neither.
func (c *Controller) checkTrust(_ context.Context, v *view) (*problem, error) {
	if v.raw() {
		if !c.AllowRaw {
			return found(v1beta1.ReasonRawExecDisabled, "all hosts of the class are in execMode Raw, which the controller was not started with --allow-raw-exec for"), nil
		}
		return nil, nil
	}
	root, list, p := c.documents()
	if p != nil {
		return p, nil
	}
	now := c.Clock.Now()
	if err := signing.CheckExpiry(root.Expires, now); err != nil {
		return found(v1beta1.ReasonTrustExpired, "root document %d: %v: sign a new one with \"kpssh root new\"", root.Version, err), nil
	}
	if err := signing.CheckExpiry(list.Expires, now); err != nil {
		return found(v1beta1.ReasonTrustExpired, "allowlist %d: %v: sign a new one with \"kpssh profile sign\"", list.Version, err), nil
	}
	key, err := c.DispatchKey()
	if err != nil {
		return found(v1beta1.ReasonDispatchKeyMissing, "%v: apply the manifest of the dispatch key that \"kpssh init\" made, or let the controller use the key that its --dispatch-key names", err), nil
	}
	if !slices.ContainsFunc(root.Dispatch.Keys, key.Equal) {
		return found(v1beta1.ReasonDispatchKeyUnknown, "root document %d does not list the controller's dispatch key %s: give the controller a key that it lists, or list this one with \"kpssh root new\"", root.Version, key.ID()), nil
	}
	for _, phase := range slices.Sorted(maps.Keys(v.scripts)) {
		digest := signing.Digest(v.scripts[phase])
		if _, err := list.Find(v.profile.Name, membership.Version(v.profile), signing.Phase(phase), digest); err != nil {
			return found(v1beta1.ReasonScriptNotSigned, "the %s script of profile %q version %q (%s) is not in allowlist %d: sign it with \"kpssh profile sign\"",
				phase, v.profile.Name, membership.Version(v.profile), digest, list.Version), nil
		}
	}
	return nil, nil
}

// documents opens the newest root and the allowlist.
func (c *Controller) documents() (*signing.Root, *signing.Allowlist, *problem) {
	roots, envelope, err := c.Trust.Documents()
	if err != nil {
		return nil, nil, found(v1beta1.ReasonTrustNotFound, "%v: "+applyTrust, err)
	}
	if len(roots) == 0 || len(envelope) == 0 {
		return nil, nil, found(v1beta1.ReasonTrustNotFound, "ConfigMap %s has no root document or no allowlist: run \"kpssh init\" and \"kpssh profile sign\"", c.TrustConfigMap)
	}
	var root *signing.Root
	for i, version := range slices.Sorted(maps.Keys(roots)) {
		if i == 0 {
			root, err = signing.OpenFirstRoot(roots[version])
		} else {
			root, err = signing.NextRoot(root, roots[version])
		}
		if err == nil && root.Version != version {
			err = fmt.Errorf("it is version %d", root.Version)
		}
		if err != nil {
			return nil, nil, found(v1beta1.ReasonTrustInvalid, "root document %d: %v: "+applyTrust, version, err)
		}
	}
	list, err := signing.OpenAllowlist(envelope, root)
	if err != nil {
		return nil, nil, found(v1beta1.ReasonTrustInvalid, "allowlist: %v: "+applyTrust, err)
	}
	return root, list, nil
}

// checkParameters is what a host would say of an order with these variables.
func (c *Controller) checkParameters(v *view, phase signing.Phase, params map[string]string, secrets []string) *problem {
	_, list, p := c.documents()
	if p != nil {
		return p
	}
	entry, err := list.Find(v.profile.Name, membership.Version(v.profile), phase, signing.Digest(v.scripts[profile.Phase(phase)]))
	if err != nil {
		return found(v1beta1.ReasonScriptNotSigned, "%v", err)
	}
	slices.Sort(secrets)
	if err := entry.Check(params, secrets); err != nil {
		reason := ReasonParameterNotAllowed
		if signing.ReasonOf(err) == signing.ReasonPin {
			reason = ReasonPinMismatch
		}
		return found(reason, "%s: %v: give the node class what the author allowed, or have it signed with \"kpssh profile sign\"", phase, err)
	}
	return nil
}
