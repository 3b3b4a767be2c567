package window_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/window"
)

func windows(schedule string, duration time.Duration, zone string) []v1beta1.MaintenanceWindow {
	return []v1beta1.MaintenanceWindow{{Schedule: schedule, Duration: metav1.Duration{Duration: duration}, TimeZone: zone}}
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// The clocks of 2026: Berlin is put forward on 29 March at 02:00 (01:00 UTC) and back on 25 October at 03:00 (01:00 UTC);
// New York forward on 8 March at 02:00 (07:00 UTC) and back on 1 November at 02:00 (06:00 UTC).
func TestWhenAWindowIsOpen(t *testing.T) {
	for name, tt := range map[string]struct {
		windows []v1beta1.MaintenanceWindow
		// opens and closes are the first window at or after from, in UTC.
		from, opens, closes string
	}{
		"on a day like any other": {
			windows("0 2 * * *", time.Hour, "Europe/Berlin"), "2026-01-10T12:00:00Z", "2026-01-11T01:00:00Z", "2026-01-11T02:00:00Z",
		},
		"in UTC when no zone is named": {
			windows("0 2 * * 6", 2*time.Hour, ""), "2026-01-05T00:00:00Z", "2026-01-10T02:00:00Z", "2026-01-10T04:00:00Z",
		},
		"at a time that the clocks skip, when they are put forward (east)": {
			windows("30 2 * * *", time.Hour, "Europe/Berlin"), "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z",
		},
		"at a time that the clocks skip, when they are put forward (west)": {
			windows("30 2 * * *", time.Hour, "America/New_York"), "2026-03-07T12:00:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z",
		},
		"at a time that comes twice, the first time (east)": {
			windows("30 2 * * *", time.Hour, "Europe/Berlin"), "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z",
		},
		"at a time that comes twice, the first time (west)": {
			windows("30 1 * * *", time.Hour, "America/New_York"), "2026-10-31T12:00:00Z", "2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z",
		},
		"for its duration of real time over a night that is an hour longer": {
			windows("0 22 * * 6", 8*time.Hour, "Europe/Berlin"), "2026-10-24T12:00:00Z", "2026-10-24T20:00:00Z", "2026-10-25T04:00:00Z",
		},
		"for its duration of real time over a night that is an hour shorter": {
			windows("0 22 * * 6", 8*time.Hour, "Europe/Berlin"), "2026-03-28T12:00:00Z", "2026-03-28T21:00:00Z", "2026-03-29T05:00:00Z",
		},
		"on the day after the clocks changed": {
			windows("30 2 * * *", time.Hour, "Europe/Berlin"), "2026-03-29T12:00:00Z", "2026-03-30T00:30:00Z", "2026-03-30T01:30:00Z",
		},
		"by a name": {
			windows("@monthly", 168*time.Hour, "UTC"), "2026-01-20T00:00:00Z", "2026-02-01T00:00:00Z", "2026-02-08T00:00:00Z",
		},
		"once in years": {
			windows("0 0 29 2 *", time.Hour, "UTC"), "2026-01-20T00:00:00Z", "2028-02-29T00:00:00Z", "2028-02-29T01:00:00Z",
		},
	} {
		t.Run(name, func(t *testing.T) {
			opens, closes := at(t, tt.opens), at(t, tt.closes)
			now := at(t, tt.from)
			for steps := 0; now.Before(opens); steps++ { // as the controller does: from one edge to the next
				s, err := window.At(tt.windows, now)
				if err != nil || s.Open || !s.Next.After(now) || s.Next.After(opens) || steps > 3 {
					t.Fatalf("at %s: %+v, %v", now, s, err)
				}
				now = s.Next
			}
			for _, tick := range []struct {
				at   time.Time
				open bool
			}{{opens.Add(-time.Second), false}, {opens, true}, {closes.Add(-time.Second), true}, {closes, false}} {
				s, err := window.At(tt.windows, tick.at)
				if err != nil || s.Open != tick.open {
					t.Errorf("at %s: open %v, %v", tick.at, s.Open, err)
				}
				if s.Open && (!s.Next.Equal(closes) || !strings.Contains(s.Message, tt.closes)) {
					t.Errorf("at %s: %+v", tick.at, s)
				}
			}
		})
	}
}

func TestWindowsThatOverlapAreOne(t *testing.T) {
	both := append(windows("0 2 * * *", 2*time.Hour, "UTC"), windows("0 3 * * *", 2*time.Hour, "UTC")...)
	for now, end := at(t, "2026-01-10T02:00:00Z"), at(t, "2026-01-10T05:00:00Z"); now.Before(end); {
		s, err := window.At(both, now)
		if err != nil || !s.Open || !s.Next.After(now) || s.Next.After(end) {
			t.Fatalf("at %s: %+v, %v", now, s, err)
		}
		now = s.Next
	}
	if s, err := window.At(both, at(t, "2026-01-10T05:00:00Z")); err != nil || s.Open {
		t.Errorf("at the end: %+v, %v", s, err)
	}
	always := windows("* * * * *", 168*time.Hour, "Europe/Berlin")
	for _, day := range []string{"2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z", "2026-06-01T00:00:30Z"} {
		if s, err := window.At(always, at(t, day)); err != nil || !s.Open {
			t.Errorf("at %s: %+v, %v", day, s, err)
		}
	}
}

func TestNoWindowsAreNeverOpen(t *testing.T) {
	if s, err := window.At(nil, time.Now()); err != nil || s.Open || !s.Next.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAWindowThatCannotBeReadSaysWhich(t *testing.T) {
	for name, tt := range map[string][]v1beta1.MaintenanceWindow{
		"an hour that there is not": windows("0 25 * * *", time.Hour, "UTC"),
		"a day that never comes":    windows("0 0 31 2 *", time.Hour, "UTC"),
		"no such zone":              windows("0 2 * * *", time.Hour, "Europe/Atlantis"),
		"a zone of some machine":    windows("0 2 * * *", time.Hour, "Local"),
		"a path":                    windows("0 2 * * *", time.Hour, "../../etc/passwd"),
		"a zone in the schedule":    windows("TZ=UTC 0 2 * *", time.Hour, "UTC"),
		"half a zone":               windows("TZ=0", time.Hour, "UTC"),
		"an interval":               windows("@every 1h", time.Hour, "UTC"),
		"no duration":               windows("0 2 * * *", 0, "UTC"),
		"a duration of a month":     windows("0 2 * * *", 720*time.Hour, "UTC"),
	} {
		t.Run(name, func(t *testing.T) {
			fine := windows("0 2 * * *", time.Hour, "UTC")
			s, err := window.At(append(fine, tt...), at(t, "2026-01-10T02:30:00Z"))
			if err == nil || !strings.Contains(err.Error(), tt[0].Schedule) || s.Open {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}
