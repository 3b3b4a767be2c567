package signing

import (
	"bytes"
	"encoding/json"
	jsonv2 "encoding/json/v2"
	"slices"
	"time"
	"unicode/utf8"
)

// document is what the five have in common.
type document interface {
	payloadType() string
	// normalise brings the document into the one form that is encoded: UTC times in whole
	// seconds, empty lists and maps instead of null, sets sorted. It replaces what it changes.
	normalise()
	check() error
}

// newDocument is an empty document of a known type.
func newDocument(payloadType string) document {
	switch payloadType {
	case TypeRoot:
		return new(Root)
	case TypeAllowlist:
		return new(Allowlist)
	case TypeHello:
		return new(Hello)
	case TypeOrder:
		return new(Order)
	default:
		return new(Receipt)
	}
}

func (r *Root) payloadType() string      { return TypeRoot }
func (a *Allowlist) payloadType() string { return TypeAllowlist }
func (h *Hello) payloadType() string     { return TypeHello }
func (o *Order) payloadType() string     { return TypeOrder }
func (r *Receipt) payloadType() string   { return TypeReceipt }

func (r *Root) normalise() {
	r.Issued, r.Expires = wholeSeconds(r.Issued), wholeSeconds(r.Expires)
	for _, role := range []*RoleKeys{&r.Root, &r.Author, &r.Dispatch} {
		role.Keys = notNil(role.Keys)
	}
}

func (a *Allowlist) normalise() {
	a.Issued, a.Expires = wholeSeconds(a.Issued), wholeSeconds(a.Expires)
	a.Scripts = notNil(slices.Clone(a.Scripts))
	for i := range a.Scripts {
		a.Scripts[i].Parameters = notNil(a.Scripts[i].Parameters)
	}
}

func (h *Hello) normalise() {
	h.Clock = wholeSeconds(h.Clock)
	h.Challenge = notNil(h.Challenge)
	h.Scripts = notNil(h.Scripts)
	h.Findings = notNil(slices.Clone(h.Findings))
	slices.Sort(h.Findings)
	h.Findings = slices.Compact(h.Findings)
}

func (o *Order) normalise() {
	o.Challenge = notNil(o.Challenge)
	if o.Secrets == nil {
		o.Secrets = map[string]string{}
	}
}

func (r *Receipt) normalise() {
	r.Started, r.Finished = wholeSeconds(r.Started), wholeSeconds(r.Finished)
	r.Challenge = notNil(r.Challenge)
}

func wholeSeconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// encode is the canonical encoding: encoding/json in the order of the fields, map keys sorted, no
// HTML escapes, no white space.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, refuse(ReasonMalformed, "document cannot be encoded: %.200v", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decode accepts a payload only if it is its own canonical encoding, byte for byte. That closes
// every way in which two JSON parsers could read one text differently.
func decode(payload []byte, doc document) error {
	if !utf8.Valid(payload) {
		return refuse(ReasonMalformed, "payload is not UTF-8")
	}
	if err := plausible(payload); err != nil {
		return err
	}
	// The second version of the package, because it stops at the first thing wrong: the first one goes on, and makes
	// hundreds of megabytes of a megabyte of elements that are none.
	if err := jsonv2.Unmarshal(payload, doc); err != nil {
		return refuse(ReasonMalformed, "payload cannot be read: %.200v", err)
	}
	if list, ok := doc.(*Allowlist); ok && len(list.Scripts) > maxScripts {
		// Here and not only in check: encoding them again would take as much memory once more.
		return refuse(ReasonTooLarge, "allowlist has %d scripts, at most %d", len(list.Scripts), maxScripts)
	}
	doc.normalise()
	again, err := encode(doc)
	if err != nil {
		return err
	}
	if !bytes.Equal(again, payload) {
		return refuse(ReasonMalformed, "payload is not in canonical form")
	}
	return doc.check()
}

// plausible looks at how much a payload would make of itself, at no cost: whether JSON text has no more objects than any
// document of its size, and no null, which canonical text never has. The smallest object, a parameter, is 31 bytes as
// text and four times that in memory; an empty one, or none, is that in memory too.
func plausible(payload []byte) error {
	const smallest, few = 30, 16
	left := few + len(payload)/smallest
	quoted := false
	for i := 0; i < len(payload); i++ {
		switch payload[i] {
		case '"':
			quoted = !quoted
		case '\\':
			i++
		case '{':
			if !quoted {
				left--
			}
		case 'n':
			if !quoted {
				return refuse(ReasonMalformed, "payload holds null")
			}
		}
	}
	if left < 0 {
		return refuse(ReasonTooLarge, "payload has more objects than a document of its size")
	}
	return nil
}
