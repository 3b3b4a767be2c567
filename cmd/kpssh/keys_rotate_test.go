package main

import (
	"testing"
	"time"
)

func TestAFinishedRotationIsNotBegunAnewByWhoOnlyLooks(t *testing.T) {
	const lately, longAgo = time.Hour, 90 * 24 * time.Hour
	for name, c := range map[string]struct {
		o    rotateOptions
		age  time.Duration
		want bool
	}{
		"finished today":                  {rotateOptions{}, lately, false},
		"finished long ago":               {rotateOptions{}, longAgo, true},
		"again, today":                    {rotateOptions{again: true}, lately, true},
		"an emergency of long ago":        {rotateOptions{emergency: true}, longAgo, false},
		"another emergency":               {rotateOptions{emergency: true, again: true}, longAgo, true},
		"a confirmation that comes late":  {rotateOptions{confirm: files{stepSwitch}}, longAgo, false},
		"a confirmation for a second one": {rotateOptions{confirm: files{stepSpread}, again: true}, lately, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.o.beginsAnew(c.age); got != c.want {
				t.Errorf("begins anew: %t, want %t", got, c.want)
			}
		})
	}
}
