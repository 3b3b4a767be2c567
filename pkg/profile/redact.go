package profile

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Redacted stands where a secret stood.
const Redacted = "[redacted]"

// Redactor takes secrets out of text. The zero Redactor takes out nothing. It is for whole texts: a
// secret that was cut in two before is not found.
type Redactor struct{ forms []string }

// NewRedactor takes out the values of secrets (name to value) as they are and as shells, JSON and
// base64 spell them, and of a bootstrap token the secret half too. Names stay.
func NewRedactor(secrets map[string]string) Redactor {
	forms := map[string]bool{}
	for _, value := range secrets {
		addForms(forms, value)
		if id, secret, found := strings.Cut(value, "."); found && len(id) == 6 && len(secret) == 16 {
			addForms(forms, secret)
		}
	}
	return Redactor{slices.Sorted(maps.Keys(forms))}
}

// Redact returns text without the secrets.
func (r Redactor) Redact(text string) string {
	type span struct{ from, to int }
	var spans []span
	for _, form := range r.forms {
		for at := 0; ; {
			i := strings.Index(text[at:], form)
			if i < 0 {
				break
			}
			spans = append(spans, span{at + i, at + i + len(form)})
			at += i + 1
		}
	}
	if len(spans) == 0 {
		return text
	}
	// Secrets may overlap in a text: what lies under any of them goes, or a part of one would stay.
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out strings.Builder
	done := 0
	for i := 0; i < len(spans); {
		from, to := spans[i].from, spans[i].to
		for i++; i < len(spans) && spans[i].from <= to; i++ {
			to = max(to, spans[i].to)
		}
		out.WriteString(text[done:from])
		out.WriteString(Redacted)
		done = to
	}
	out.WriteString(text[done:])
	return out.String()
}

func addForms(forms map[string]bool, value string) {
	if value == "" {
		return
	}
	forms[value] = true
	forms[strings.ReplaceAll(value, "'", `'\''`)] = true
	if encoded, err := json.Marshal(value); err == nil {
		forms[string(encoded[1:len(encoded)-1])] = true
	}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		forms[encoding.EncodeToString([]byte(value))] = true
		// What echo makes of it.
		forms[encoding.EncodeToString([]byte(value+"\n"))] = true
	}
}
