//go:build e2e

package threats

import (
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// at is a clock that is wrong by a constant.
func at(offset time.Duration) func(time.Time) time.Time {
	return func(now time.Time) time.Time { return now.Add(offset) }
}

func stopped(when time.Time) func(time.Time) time.Time {
	return func(time.Time) time.Time { return when }
}

// ordered orders a join on a host whose clock is wrong.
func (h *host) ordered(t *testing.T, clock func(time.Time) time.Time, claim string, fence int64) (answer, time.Time) {
	t.Helper()
	s := h.trace(&tracer{clock: clock})
	if err := s.greet(); err != nil {
		t.Fatalf("hello: %v; log: %s", err, s.logged())
	}
	s.submit(s.plan(join, claim, fence))
	a, err := s.read()
	if err != nil {
		t.Fatalf("%v; log: %s", err, s.logged())
	}
	s.end()
	return a, s.hello.Clock
}

// The shipped shim is told another time by its kernel, call by call; nobody sets the clock of this machine. Orders are
// fresh by their challenge, whatever the clock says, and documents expire by the latest time that an author signed.
func TestA18_AWrongClockLetsNothingIn(t *testing.T) {
	t.Parallel()
	now := time.Now()
	w := newWorld(t, join)
	w.List.Issued, w.List.Expires = now.Add(-day), now.Add(day)
	w.ListEnv = sign(t, &w.List, w.Author)
	h := newHost(t, w)
	y2038 := time.Unix(math.MaxInt32+1, 0)
	fence := int64(0)
	for _, c := range []struct {
		name  string
		clock func(time.Time) time.Time
		want  signing.Reason
	}{
		{"A18 1970", stopped(time.Unix(0, 0)), ""},
		{"A18 before 1970", stopped(time.Unix(-1, 0)), ""},
		{"A18 a year ago", at(-year), ""},
		{"A18 an hour ahead", at(hour), ""},
		{"A18 a leap second back", at(-time.Second), ""},
		{"A18 ten years ahead", at(10 * year), signing.ReasonExpired},
		{"A18 after 2038", stopped(y2038), signing.ReasonExpired},
		{"A18 after 2106", stopped(time.Unix(math.MaxUint32+1, 0)), signing.ReasonExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			fence++
			marks := h.marks()
			a, told := h.ordered(t, c.clock, "uid-1", fence)
			if off := told.Sub(c.clock(time.Now())).Abs(); off > time.Minute {
				t.Fatalf("the hello tells %v: the shim did not see this clock", told)
			}
			ran := h.marks() - marks
			if a.Reason != c.want || (a.Outcome == signing.OutcomeOK) != (c.want == "") || (ran == 1) != (c.want == "") {
				t.Errorf("%s %q, %d runs", a.Outcome, a.Reason, ran)
			}
		})
	}
	// A recorded order is no better under the clock under which it was made.
	s := h.open()
	p := s.plan(join, "uid-1", 90)
	s.submit(p)
	s.answered()
	s.end()
	again := h.trace(&tracer{clock: at(-time.Minute)})
	if err := again.greet(); err != nil {
		t.Fatal(err)
	}
	again.raw(s.sent.Bytes())
	if a := again.answered(); a.Reason != signing.ReasonStaleChallenge {
		t.Errorf("A18 a replay with the clock set back: %s %q", a.Outcome, a.Reason)
	}
	again.end()

	// Set back, a clock does not revive what had expired when the author signed last: of the documents that the host
	// has, the newest says what time it is at least.
	late := newWorld(t, join)
	late.RootDoc.Issued, late.RootDoc.Expires = now.Add(-3*day), now.Add(-2*day)
	late.Roots[1] = sign(t, &late.RootDoc, late.Root...)
	late.List.Issued, late.List.Expires = now.Add(-day), now.Add(year)
	late.ListEnv = sign(t, &late.List, late.Author)
	old := newHost(t, late)
	for name, clock := range map[string]func(time.Time) time.Time{
		"A18 a root that expired, in 1970": stopped(time.Unix(0, 0)), "A18 a root that expired, a year ago": at(-year),
	} {
		t.Run(name, func(t *testing.T) {
			if a, _ := old.ordered(t, clock, "uid-1", 1); a.Reason != signing.ReasonExpired || old.marks() != 0 {
				t.Errorf("%s %q, %d runs", a.Outcome, a.Reason, old.marks())
			}
		})
	}
}

// A clock that jumps while a script runs ends no run and lengthens none: deadlines go by a clock that nobody sets.
func TestA18_AClockThatJumpsDuringARunChangesNothing(t *testing.T) {
	t.Parallel()
	script := "join: " + mark + `; read -r _ < "$KPSSH_GATE"`
	for name, jump := range map[string]time.Duration{"A18 an hour ahead": hour, "A18 an hour back": -hour, "A18 ten years ahead": 10 * year} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, newWorld(t, script))
			gate := h.gate()
			var jumped atomic.Bool
			s := h.trace(&tracer{clock: func(now time.Time) time.Time {
				if jumped.Load() {
					return now.Add(jump)
				}
				return now
			}})
			if err := s.greet(); err != nil {
				t.Fatal(err)
			}
			p := s.plan(script, "uid-1", 1)
			p.Params["KPSSH_GATE"] = gate.name
			p.Order.TimeoutSeconds = 60
			begin := time.Now()
			s.submit(p)
			eventually(t, "the script", func() bool { return h.marks() == 1 })
			jumped.Store(true)
			gate.open()
			a := s.answered()
			took := time.Since(begin)
			s.end()
			if a.Outcome != signing.OutcomeOK || time.Duration(a.DurationMillis)*time.Millisecond > took+time.Second {
				t.Errorf("%s after %d ms by the receipt, %v by this test", a.Outcome, a.DurationMillis, took)
			}
			if apart := a.Finished.Sub(a.Started); (apart - jump).Abs() > time.Minute {
				t.Errorf("the receipt's clock went by %v: the shim did not see the jump", apart)
			}
		})
	}
	t.Run("A18 the deadline itself, the clock an hour back", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, newWorld(t, script))
		gate := h.gate()
		var jumped atomic.Bool
		s := h.trace(&tracer{clock: func(now time.Time) time.Time {
			if jumped.Load() {
				return now.Add(-hour)
			}
			return now
		}})
		if err := s.greet(); err != nil {
			t.Fatal(err)
		}
		p := s.plan(script, "uid-1", 1)
		p.Params["KPSSH_GATE"] = gate.name
		p.Order.TimeoutSeconds = 1
		s.submit(p)
		eventually(t, "the script", func() bool { return h.marks() == 1 })
		jumped.Store(true)
		if a := s.answered(); a.Outcome != signing.OutcomeTimeout || a.DurationMillis < 1000 || a.DurationMillis > 30_000 {
			t.Errorf("%s after %d ms", a.Outcome, a.DurationMillis)
		}
		s.end()
	})
}
