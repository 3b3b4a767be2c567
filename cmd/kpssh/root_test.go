package main

import (
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func TestAWaitingRootIsSignedOnlyWithDatesThatThisCallCouldHaveGiven(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	root := func(version int64, issued, expires time.Duration) *signing.Root {
		return &signing.Root{Version: version, Issued: now.Add(issued), Expires: now.Add(expires)}
	}
	current, next := root(4, -30*day, 30*day), root(5, 0, 365*day)
	for name, c := range map[string]struct {
		waiting *signing.Root
		good    bool
	}{
		"made by a call of yesterday":          {root(5, -day, 364*day), true},
		"on a clock that goes before":          {root(5, time.Minute, 365*day+time.Minute), true},
		"made with fewer days":                 {root(5, -day, 10*day), true},
		"of another version":                   {root(6, -day, 364*day), false},
		"issued in the future":                 {root(5, day, 364*day), false},
		"issued before the root in effect":     {root(5, -31*day, 300*day), false},
		"valid for longer than this call says": {root(5, -day, 366*day), false},
		"expired":                              {root(5, -2*day, -day), false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := checkWaiting(c.waiting, current, next); (err == nil) != c.good {
				t.Errorf("error %v, want one: %t", err, !c.good)
			}
		})
	}
}
