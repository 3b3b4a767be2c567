package documents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Peek reads a root document for people to look at, and tells which of its root keys have signed it.
// Nothing of it may be believed: it may miss signatures.
func Peek(envelope []byte) (*signing.Root, []signing.Key, error) {
	in, err := inspect(envelope)
	if err != nil {
		return nil, nil, err
	}
	if in.Type != signing.TypeRoot {
		return nil, nil, fmt.Errorf("it is a %q, not a root document", in.Type)
	}
	var root signing.Root
	if err := json.Unmarshal(in.Payload, &root); err != nil {
		return nil, nil, err
	}
	return &root, in.SignedBy, nil
}

// PeekAllowlist reads an allowlist for people to look at. Nothing of it may be believed: it may miss signatures.
func PeekAllowlist(envelope []byte) (*signing.Allowlist, error) {
	in, err := inspect(envelope)
	if err != nil {
		return nil, err
	}
	if in.Type != signing.TypeAllowlist {
		return nil, fmt.Errorf("it is a %q, not an allowlist", in.Type)
	}
	var list signing.Allowlist
	if err := json.Unmarshal(in.Payload, &list); err != nil {
		return nil, err
	}
	return &list, nil
}

// inspect is signing.Inspect, with a word for what an interrupted copy or an empty pipe leaves.
func inspect(envelope []byte) (*signing.Inspection, error) {
	if len(bytes.TrimSpace(envelope)) == 0 {
		return nil, errors.New("it is empty")
	}
	return signing.Inspect(envelope)
}

// OpenUnderAny verifies an allowlist under the newest root of a chain that it holds under, for looking back: what holds
// under an earlier root alone, no host accepts that knows a later one.
func (s *Set) OpenUnderAny(envelope []byte) (*signing.Allowlist, error) {
	var list *signing.Allowlist
	var err error
	for _, root := range slices.Backward(s.Roots) {
		if list, err = signing.OpenAllowlist(envelope, root); err == nil {
			return list, nil
		}
	}
	return nil, err
}
