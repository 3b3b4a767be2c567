package signing

import (
	"slices"
	"time"
)

// OpenFirstRoot opens the root that a host was provisioned with: it is trusted because it is
// there, and must carry the threshold of its own root keys.
func OpenFirstRoot(envelope []byte) (_ *Root, err error) {
	defer refusePanic(&err)
	o, err := openEnvelope(envelope, TypeRoot)
	if err != nil {
		return nil, err
	}
	root := new(Root)
	if err := decode(o.payload, root); err != nil {
		return nil, err
	}
	if err := o.verify(root.Root); err != nil {
		return nil, err
	}
	return root, nil
}

// NextRoot opens the successor of current: exactly one version on, and signed by the threshold of
// current's root keys and of its own (TUF 5.3). It does not look at expiry: an expired root is
// still followed by a newer one.
func NextRoot(current *Root, envelope []byte) (_ *Root, err error) {
	defer refusePanic(&err)
	if current == nil {
		return nil, refuse(ReasonUntrusted, "no root to follow")
	}
	next := new(Root)
	o, err := openUnder(envelope, next, current.Root)
	if err != nil {
		return nil, err
	}
	if next.Version-1 != current.Version {
		return nil, refuse(ReasonRollback, "root version %d does not follow %d", next.Version, current.Version)
	}
	if err := o.verify(next.Root); err != nil {
		return nil, err
	}
	return next, nil
}

// OpenAllowlist opens an allowlist that carries the threshold of root's author keys. Whether it
// may replace the one that is known (version floor, expiry) is the caller's to check.
func OpenAllowlist(envelope []byte, root *Root) (_ *Allowlist, err error) {
	defer refusePanic(&err)
	if root == nil {
		return nil, refuse(ReasonUntrusted, "no root")
	}
	list := new(Allowlist)
	if _, err := openUnder(envelope, list, root.Author); err != nil {
		return nil, err
	}
	return list, nil
}

// OpenOrder opens an order that carries the threshold of root's dispatch keys. That it is meant
// for this host, session and claim is the caller's to check.
func OpenOrder(envelope []byte, root *Root) (_ *Order, err error) {
	defer refusePanic(&err)
	if root == nil {
		return nil, refuse(ReasonUntrusted, "no root")
	}
	order := new(Order)
	if _, err := openUnder(envelope, order, root.Dispatch); err != nil {
		return nil, err
	}
	return order, nil
}

// OpenHello opens a host's hello under the key that it was enrolled with.
func OpenHello(envelope []byte, host Key) (_ *Hello, err error) {
	defer refusePanic(&err)
	hello := new(Hello)
	if _, err := openUnder(envelope, hello, RoleKeys{Keys: []Key{host}, Threshold: 1}); err != nil {
		return nil, err
	}
	return hello, nil
}

// OpenReceipt opens a host's receipt under the key that it was enrolled with. That it answers the
// order in question is the caller's to check.
func OpenReceipt(envelope []byte, host Key) (_ *Receipt, err error) {
	defer refusePanic(&err)
	receipt := new(Receipt)
	if _, err := openUnder(envelope, receipt, RoleKeys{Keys: []Key{host}, Threshold: 1}); err != nil {
		return nil, err
	}
	return receipt, nil
}

// PayloadDigest is the digest of an envelope's payload, for references to it. Nothing is verified.
func PayloadDigest(envelope []byte) (_ string, err error) {
	defer refusePanic(&err)
	o, err := openEnvelope(envelope, "")
	if err != nil {
		return "", err
	}
	return Digest(o.payload), nil
}

// openUnder does the checks in their order: bounds, envelope, type, signatures, strict payload.
func openUnder(envelope []byte, doc document, role RoleKeys) (*opened, error) {
	o, err := openEnvelope(envelope, doc.payloadType())
	if err != nil {
		return nil, err
	}
	if err := o.verify(role); err != nil {
		return nil, err
	}
	if err := decode(o.payload, doc); err != nil {
		return nil, err
	}
	return o, nil
}

// verify demands the signatures of a role's threshold of distinct keys. Signatures that fit no key
// are passed over, so that a document can be signed by old and new keys alike.
func (o *opened) verify(role RoleKeys) error {
	if role.Threshold < 1 || role.Threshold > len(role.Keys) || len(role.Keys) > MaxKeys {
		return refuse(ReasonUntrusted, "role has %d keys and threshold %d", len(role.Keys), role.Threshold)
	}
	message := o.pae()
	var counted []Key
	tries := o.maxTries(role)
	for _, t := range o.candidates(role.Keys) {
		if contains(counted, t.key) {
			continue
		}
		if tries == 0 {
			break
		}
		tries--
		if !t.key.Verify(message, t.sig) {
			continue
		}
		if counted = append(counted, t.key); len(counted) == role.Threshold {
			return nil
		}
	}
	return refuse(ReasonUntrusted, "%d of %d needed signatures are by keys of the role", len(counted), role.Threshold)
}

// maxTries bounds the work on a hostile envelope. The documents of a session are signed by just
// the keys that must, so there it is tight; root and allowlist may carry signatures of keys that
// only another root knows.
func (o *opened) maxTries(role RoleKeys) int {
	if o.payloadType == TypeRoot || o.payloadType == TypeAllowlist {
		return MaxSignatures * MaxKeys
	}
	return len(role.Keys) * (role.Threshold + 1)
}

type candidate struct {
	key Key
	sig []byte
}

// candidates pairs signatures with the keys whose form they have. A keyid only says which pairs
// come first; it is never believed.
func (o *opened) candidates(keys []Key) []candidate {
	var hinted, others []candidate
	for _, s := range o.signatures {
		for _, k := range keys {
			switch {
			case !k.fits(s.sig):
			case s.keyID != "" && s.keyID == k.ID():
				hinted = append(hinted, candidate{k, s.sig})
			default:
				others = append(others, candidate{k, s.sig})
			}
		}
	}
	return append(hinted, others...)
}

// CheckExpiry refuses when expires is not after the latest of floors: the clock, the build time,
// the newest time that an author signed. A host with its clock at 1970 is so still held to a date.
func CheckExpiry(expires time.Time, floors ...time.Time) error {
	if len(floors) == 0 {
		return refuse(ReasonExpired, "no time to compare with")
	}
	now := slices.MaxFunc(floors, time.Time.Compare)
	if !now.Before(expires) {
		return refuse(ReasonExpired, "expired at %s, now is %s",
			expires.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}
