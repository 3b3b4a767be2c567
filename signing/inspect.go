package signing

// Inspection is what an envelope says, for people to look at before they sign and for status
// output. Nothing may be decided by Payload: it is well formed, and not verified.
type Inspection struct {
	// Type is the payload type, one of the five.
	Type string
	// Payload is the canonical JSON of the document.
	Payload []byte
	// SignedBy are the keys that have signed, of those asked for and, for a root, of its own.
	SignedBy []Key
	// Signatures is how many signatures the envelope carries.
	Signatures int
}

// Inspect takes an envelope apart and tells which of keys have signed it. It refuses what Open
// would refuse for its form.
func Inspect(envelope []byte, keys ...Key) (_ *Inspection, err error) {
	defer refusePanic(&err)
	o, err := openEnvelope(envelope, "")
	if err != nil {
		return nil, err
	}
	doc := newDocument(o.payloadType)
	if err := decode(o.payload, doc); err != nil {
		return nil, err
	}
	if root, ok := doc.(*Root); ok {
		keys = append(append([]Key{}, keys...), root.Root.Keys...)
	}
	message := o.pae()
	in := &Inspection{Type: o.payloadType, Payload: o.payload, Signatures: len(o.signatures)}
	for _, k := range keys {
		if !contains(in.SignedBy, k) && o.signedBy(k, message) {
			in.SignedBy = append(in.SignedBy, k)
		}
	}
	return in, nil
}

func (o *opened) signedBy(k Key, message []byte) bool {
	for _, s := range o.signatures {
		if k.Verify(message, s.sig) {
			return true
		}
	}
	return false
}

// Reseal writes an envelope as Sign would have: what nobody signed (unknown fields, white space, keyids) is gone, and
// it opens as it did before. Nothing is verified.
func Reseal(envelope []byte) (_ []byte, err error) {
	defer refusePanic(&err)
	o, err := openEnvelope(envelope, "")
	if err != nil {
		return nil, err
	}
	return seal(o.payloadType, o.payload, o.bare())
}
