package signing

import (
	"runtime"
	"strings"
	"testing"
)

// What a megabyte of payload makes of itself is bounded before anything of it is made, also for whoever has the
// author's key: a host's shim has 16 MiB for a whole session.
func TestAPayloadMakesLittleOfItself(t *testing.T) {
	p := newPool(t)
	const size = 700 << 10
	fill := func(before, element, after string) []byte {
		return []byte(before + strings.Repeat(element+",", size/(len(element)+1)) + element + after)
	}
	for name, c := range map[string]struct {
		payload []byte
		want    Reason
	}{
		"empty scripts":            {fill(`{"scripts":[`, `{}`, `]}`), ReasonTooLarge},
		"scripts with a name":      {fill(`{"scripts":[`, `{"a":0}`, `]}`), ReasonTooLarge},
		"numbers for scripts":      {fill(`{"scripts":[`, `0`, `]}`), ReasonMalformed},
		"strings for scripts":      {fill(`{"scripts":[`, `""`, `]}`), ReasonMalformed},
		"lists for scripts":        {fill(`{"scripts":[`, `[]`, `]}`), ReasonMalformed},
		"null for scripts":         {fill(`{"scripts":[`, `null`, `]}`), ReasonMalformed},
		"empty parameters":         {fill(`{"scripts":[{"parameters":[`, `{}`, `]}]}`), ReasonTooLarge},
		"the smallest that passes": {fill(`{"scripts":[`, `{"profile":"aaaaaaaaaaaaaaaa"}`, `]}`), ReasonTooLarge},
		"objects in a string":      {fill(`{"minShim":"`, `{}null`, `"}`), ReasonMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			envelope := signPayload(t, TypeAllowlist, c.payload, p.author)
			runtime.ReadMemStats(&before)
			_, err := OpenAllowlist(envelope, p.rootDoc)
			runtime.ReadMemStats(&after)
			wantReason(t, err, c.want)
			// All that is ever allocated, the parts of it that are free again included.
			if made := after.TotalAlloc - before.TotalAlloc; made > 40<<20 {
				t.Errorf("%d KiB allocated for %d KiB", made>>10, len(envelope)>>10)
			}
		})
	}
	// The largest that an author may sign is far from the bound.
	smallest := `{"name":"KPSSH_A","type":"ip"}`
	if err := plausible(fill(`{"scripts":[`, smallest, `]}`)); err != nil {
		t.Errorf("a list of the smallest parameters: %v", err)
	}
}
