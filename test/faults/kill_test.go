//go:build faults

package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// undisturbed measures a cold join and a leave in which nothing breaks.
func undisturbed(t *testing.T, p *stage.Pool) (join, leave time.Duration) {
	t.Helper()
	tr := try(t, p)
	began := time.Now()
	tr.up()
	tr.running()
	join, began = time.Since(began), time.Now()
	tr.down()
	tr.idle()
	leave = time.Since(began)
	tr.check()
	return join, leave
}

func killController(t *testing.T) {
	t.Helper()
	on.Controller().Kill9()
	must(t, on.StartController(t.Context()))
}

// TestTheControllerIsKilled kills it at random points, as many in each part of a join and of a leave as that part takes
// of it, and starts it again at once.
func TestTheControllerIsKilled(t *testing.T) {
	p := counted(t, "killed")
	undisturbed(t, p) // the first run of a program on a machine takes its time
	join, leave := undisturbed(t, p)
	t.Logf("undisturbed, a join takes %.1f s and a leave %.1f s", join.Seconds(), leave.Seconds())
	n := (*kills + 1) / 2
	r := random(t)
	joins, leaves := spread(r, n, join), spread(r, n, leave)
	met := map[string]int{}
	all := newRounds(t)
	for i := range n {
		all.run(fmt.Sprintf("%02d: %.1f s into join and %.1f s into leave", i, joins[i].Seconds(), leaves[i].Seconds()), func(t *testing.T) {
			tr := try(t, p)
			tr.up()
			<-time.After(joins[i])
			met["join, "+tr.now()]++
			killController(t)
			tr.running()
			tr.down()
			<-time.After(leaves[i])
			met["leave, "+tr.now()]++
			killController(t)
			tr.check()
		})
	}
	t.Logf("killed at these moments: %v", met)
}
