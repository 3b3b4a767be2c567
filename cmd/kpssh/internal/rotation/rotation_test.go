package rotation

import (
	"errors"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func key(name byte) signing.Key {
	return signing.Key{Algorithm: signing.AlgorithmEd25519, Public: []byte{name}}
}

func keysOf(names string) []signing.Key {
	var keys []signing.Key
	for i := range len(names) {
		keys = append(keys, key(names[i]))
	}
	return keys
}

// chain is a chain of roots whose dispatch keys are these, one letter a key.
func chain(versions ...string) []*signing.Root {
	var roots []*signing.Root
	for i, names := range versions {
		roots = append(roots, &signing.Root{
			Version: int64(i + 1), Expires: time.Unix(int64(1000-i), 0),
			Author: signing.RoleKeys{Keys: keysOf("Z")}, Dispatch: signing.RoleKeys{Keys: keysOf(names)},
		})
	}
	return roots
}

func dispatch(r *signing.Root) signing.RoleKeys { return r.Dispatch }

func TestTheDocumentsSayHowFarARotationHasCome(t *testing.T) {
	for name, c := range map[string]struct {
		chain     []string
		held      string
		old       string
		want      Phase
		from, to  string
		version   int64
		atOnce    bool
		wantError error
	}{
		"a new folder":    {chain: []string{"A"}, held: "A", want: Idle, from: "A"},
		"a key was made":  {chain: []string{"A"}, held: "AB", want: Made, from: "A", to: "B"},
		"both are listed": {chain: []string{"A", "AB"}, held: "AB", want: Listed, from: "A", to: "B", version: 2},
		"both are listed, and other roles changed":    {chain: []string{"A", "AB", "AB", "AB"}, held: "AB", want: Listed, from: "A", to: "B", version: 2},
		"the old one is dropped":                      {chain: []string{"A", "AB", "B"}, held: "AB", want: Dropped, from: "A", to: "B", version: 3},
		"replaced at once":                            {chain: []string{"A", "B"}, held: "AB", want: Dropped, from: "A", to: "B", version: 2, atOnce: true},
		"the next one is begun":                       {chain: []string{"A", "AB", "B"}, held: "ABC", want: Made, from: "B", to: "C"},
		"the next one is listed":                      {chain: []string{"A", "AB", "B", "BC"}, held: "ABC", want: Listed, from: "B", to: "C", version: 4},
		"two keys for good, of which we made neither": {chain: []string{"A", "AB"}, held: "A", old: "A", want: Idle, from: "A"},
		"which of the two":                            {chain: []string{"A", "AB"}, held: "A", wantError: ErrSeveralOld},
		"one of two is replaced":                      {chain: []string{"AB"}, held: "ABC", old: "B", want: Made, from: "B", to: "C"},
		"one of two, listed":                          {chain: []string{"AB", "ABC"}, held: "ABC", old: "B", want: Listed, from: "B", to: "C", version: 2},
		"one of two, without being told":              {chain: []string{"AB", "ABC"}, held: "ABC", wantError: ErrSeveralOld},
		"a key of another role is no new one":         {chain: []string{"A"}, held: "AZ", want: Idle, from: "A"},
		"a key that was dropped is no new one":        {chain: []string{"A", "AB", "B"}, held: "A", want: Dropped, from: "A", version: 3},
		"two new ones":                                {chain: []string{"A"}, held: "ABC", wantError: ErrSeveralNew},
		"not a key of the role":                       {chain: []string{"A"}, held: "A", old: "Q", wantError: ErrNotListed},
	} {
		t.Run(name, func(t *testing.T) {
			var old *signing.Key
			if c.old != "" {
				k := key(c.old[0])
				old = &k
			}
			got, err := Of(chain(c.chain...), dispatch, keysOf(c.held), old)
			if c.wantError != nil || err != nil {
				if !errors.Is(err, c.wantError) {
					t.Errorf("error %v, want %v", err, c.wantError)
				}
				return
			}
			if got.Phase != c.want || string(got.Old.Public) != c.from || string(got.New.Public) != c.to || got.Version != c.version || got.AtOnce != c.atOnce {
				t.Errorf("got phase %d, %q to %q, version %d, at once %t", got.Phase, got.Old.Public, got.New.Public, got.Version, got.AtOnce)
			}
		})
	}
}

func TestADroppedKeyIsBelievedUntilTheLastRootThatListsItExpires(t *testing.T) {
	roots := chain("A", "AB", "B")
	if got := Exposed(roots, dispatch, key('A')); !got.Equal(time.Unix(1000, 0)) {
		t.Errorf("until %s", got)
	}
	if got := Exposed(roots, dispatch, key('Q')); !got.IsZero() {
		t.Errorf("a key that was never listed: until %s", got)
	}
}
