//go:build faults

package pool_test

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"testing"
)

// TestAHundredThousandInterleavings takes as many walks as issue 4 asks for, short ones, and counts those that differ in
// who did what in which order.
func TestAHundredThousandInterleavings(t *testing.T) {
	const (
		shards = 64
		each   = 1600
		steps  = 40
		asked  = 100_000
	)
	var mu sync.Mutex
	histories, seen := map[uint64]bool{}, map[string]int{}
	key := maphash.MakeSeed()
	t.Run("walks", func(t *testing.T) {
		for shard := range int64(shards) {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for i := range int64(each) {
					m := walk(t, 1000+shard*each+i, steps)
					mu.Lock()
					histories[maphash.String(key, strings.Join(m.trail, "\n"))] = true
					for what, n := range m.seen {
						seen[what] += n
					}
					mu.Unlock()
				}
			})
		}
	})
	if len(histories) < asked {
		t.Errorf("%d different interleavings, %d are asked", len(histories), asked)
	}
	t.Logf("%d different interleavings of %d steps; %v", len(histories), steps, seen)
}
