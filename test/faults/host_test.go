//go:build faults

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestAHostLosesPower cuts it in each phase and gives it back at once, as a machine whose plug was pulled comes back.
func TestAHostLosesPower(t *testing.T) {
	each(t, "power", []moment{installing, joining, inUse, leaving}, func(t *testing.T, tr *trial, m moment) {
		h := machine(t, tr.reach(m))
		h.PowerCut()
		must(t, h.Start(within(t)))
		tr.finish(m)
	})
}

// TestAHostIsCutOff takes the network from it for as long as -cuts says. Its node may be given up meanwhile, and another
// host take its place.
func TestAHostIsCutOff(t *testing.T) {
	for _, long := range durations(t) {
		t.Run(fmt.Sprint("for ", long), func(t *testing.T) {
			each(t, "cut-"+fmt.Sprint(int(long.Seconds())), []moment{joining, inUse, leaving}, func(t *testing.T, tr *trial, m moment) {
				h := machine(t, tr.reach(m))
				must(t, h.CutNetwork(within(t)))
				t.Cleanup(func() { _ = h.RestoreNetwork(context.Background()) }) // when it fails meanwhile
				<-time.After(long)
				must(t, h.RestoreNetwork(within(t)))
				tr.finish(m)
			})
		})
	}
}
