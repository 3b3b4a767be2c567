//go:build faults

package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

var (
	kills = flag.Int("kills", 100, "at how many points the controller is killed")
	cuts  = flag.String("cuts", "10s,90s,10m", "how long networks are cut, with commas between them")
	seed  = flag.Uint64("seed", 0, "of the random points; 0 is another one each time")
)

// on is the stage that all tests of this package play on, one after the other. Each leaves it as it found it: the
// controller up, all hosts Available, no NodeClaims.
var on *stage.Stage

// deadline bounds one wait for something that takes seconds where nothing is broken. A host that failed is not offered
// for half a minute, a dead one is given up after minutes.
const deadline = 6 * time.Minute

// results are what the tests found, for the table at the end.
var results []string

func TestMain(m *testing.M) { flag.Parse(); os.Exit(play(m)) }

func play(m *testing.M) int {
	ctx := context.Background()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	fmt.Printf("  seed %d\n", *seed)
	repo, err := filepath.Abs("../..")
	if err == nil {
		// Often killed, it would each time wait for the lease of its predecessor.
		args := []string{"--probe-interval", "10s", "--disable-leader-election"}
		on, err = stage.Up(ctx, stage.Options{Repo: repo, Hosts: 2, ControllerArgs: args, Log: func(format string, args ...any) {
			fmt.Printf("  "+format+"\n", args...)
		}})
	}
	if err != nil {
		fmt.Printf("setting the stage: %v\n", err)
		return 1
	}
	code := m.Run()
	fmt.Printf("%s\n", strings.Join(results, "\n"))
	if code != 0 {
		if err := on.KeepLogs(); err == nil {
			fmt.Printf("The logs of all processes are kept in %s\n", on.LogDir())
		}
	}
	if err := on.Close(); err != nil {
		fmt.Printf("taking the stage down: %v\n", err)
		return 1
	}
	return code
}

// random is a source that depends on the seed and on the test alone, so that one run alone meets the same points.
func random(t *testing.T) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(t.Name()) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(*seed, h))
}

// spread is n moments of a duration, one in each n-th of it, in no order.
func spread(r *rand.Rand, n int, over time.Duration) []time.Duration {
	points := make([]time.Duration, n)
	for i, place := range r.Perm(n) {
		points[i] = time.Duration((float64(place) + r.Float64()) / float64(n) * float64(over))
	}
	return points
}

func durations(t *testing.T) []time.Duration {
	t.Helper()
	var all []time.Duration
	for text := range strings.SplitSeq(*cuts, ",") {
		d, err := time.ParseDuration(text)
		must(t, err)
		all = append(all, d)
	}
	return all
}

// within returns a context that ends at the deadline; clean-up needs one too, when the test's own has ended.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// must fails the test at once.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine is the lab's host of that name.
func machine(t *testing.T, name string) *lab.Host {
	t.Helper()
	for _, h := range on.Hosts() {
		if h.Name == name {
			return h
		}
	}
	t.Fatalf("there is no host %q", name)
	return nil
}

// counted is the shipped profile with scripts that leave a trace of each of their runs, signed, applied and Ready.
func counted(t *testing.T, name string) *stage.Pool {
	t.Helper()
	p, err := on.NewPool(name)
	must(t, err)
	must(t, p.Count())
	must(t, p.Sign(within(t)))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := p.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	must(t, p.Apply(within(t)))
	must(t, p.WaitReady(within(t)))
	return p
}
