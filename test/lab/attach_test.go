package lab

import (
	"os"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/state"
)

func TestTheLabThatIsMeantIsChosenOrAskedFor(t *testing.T) {
	alive, err := state.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dead := alive
	dead.Boot = "another boot"
	lab := func(id string) state.Record { return state.Record{ID: id, Owner: alive, Netns: "kpssh-" + id} }
	killed := state.Record{ID: "killed", Owner: dead, Netns: "kpssh-killed"}
	apiServer := state.Record{ID: "api", Owner: alive}
	for name, c := range map[string]struct {
		records  []state.Record
		id       string
		want     string
		mistaken string
	}{
		"the only one":                      {[]state.Record{killed, lab("a"), apiServer}, "", "a", ""},
		"the one that is named":             {[]state.Record{lab("a"), lab("b")}, "b", "b", ""},
		"none is up":                        {[]state.Record{killed, apiServer}, "", "", "no lab is up"},
		"several, and none is named":        {[]state.Record{lab("a"), lab("b")}, "", "", "name one of a, b"},
		"another is up than is named":       {[]state.Record{lab("a"), killed}, "killed", "", "these are: a"},
		"a lone API server cannot be named": {[]state.Record{lab("a"), apiServer}, "api", "", "these are: a"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := choose(c.records, c.id)
			if got.ID != c.want {
				t.Errorf("it is %q, want %q", got.ID, c.want)
			}
			if (err != nil) != (c.mistaken != "") || err != nil && !strings.Contains(err.Error(), c.mistaken) {
				t.Errorf("got %v, want %q", err, c.mistaken)
			}
		})
	}
}
