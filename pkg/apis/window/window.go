// Package window says when maintenance windows are open.
//
// A schedule is read in the wall-clock time of its zone. A time that the clocks skip when they are put forward opens the
// window at that moment; a time that comes twice when they are put back opens it the first time. A window stays open for
// its duration of real time, and windows that overlap are one.
package window

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // zones mean the same wherever the controller runs

	"github.com/robfig/cron/v3"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Status is what windows say at a moment.
type Status struct {
	// Open says whether one of them is open; Message which one, and until when.
	Open    bool
	Message string
	// Next is when to ask again: nothing changes before. Zero when there are no windows.
	Next time.Time
}

// At returns the status of the windows. An error says which of them cannot be read; nothing is known then.
func At(windows []v1beta1.MaintenanceWindow, now time.Time) (Status, error) {
	var s Status
	for i := range windows {
		w, err := parse(&windows[i])
		if err != nil {
			return Status{}, err
		}
		edge, open := w.edge(now)
		if open && !s.Open {
			s.Open = true
			s.Message = fmt.Sprintf("the maintenance window %q (%s) is open until %s", windows[i].Schedule, w.zone, edge.UTC().Format(time.RFC3339))
		}
		if s.Next.IsZero() || edge.Before(s.Next) {
			s.Next = edge
		}
	}
	return s, nil
}

// parsed is a window that can be read.
type parsed struct {
	schedule cron.Schedule
	zone     *time.Location
	duration time.Duration
}

// What a schedule may be written in: five fields, or @daily and its like.
var grammar = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

func parse(w *v1beta1.MaintenanceWindow) (*parsed, error) {
	fail := func(err error) (*parsed, error) {
		return nil, fmt.Errorf("reading the maintenance window %q (%s): %w", w.Schedule, w.TimeZone, err)
	}
	name := w.TimeZone
	if name == "" {
		name = "UTC"
	}
	if name == "Local" { // of which machine?
		return fail(errors.New("the time zone must be a name of the IANA database"))
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return fail(err)
	}
	if strings.Contains(w.Schedule, "=") || strings.HasPrefix(w.Schedule, "@every") { // TZ=…, which timeZone is for
		return fail(errors.New("the schedule must be five fields, or @daily and its like"))
	}
	schedule, err := grammar.Parse(w.Schedule)
	if err != nil {
		return fail(err)
	}
	if w.Duration.Duration < time.Minute || w.Duration.Duration > maxDuration {
		return fail(fmt.Errorf("the duration must be between 1m and %s", maxDuration))
	}
	if schedule.Next(time.Unix(0, 0).UTC()).IsZero() {
		return fail(errors.New("the schedule never comes"))
	}
	return &parsed{schedule: schedule, zone: zone, duration: w.Duration.Duration}, nil
}

// maxDuration of a window, a week as in the schema.
const maxDuration = 168 * time.Hour

// slack is more than clocks are ever put forward or back.
const slack = 3 * time.Hour

// edge says whether the window is open and when to look again: when it may close, or when it opens.
func (w *parsed) edge(now time.Time) (edge time.Time, open bool) {
	now = now.In(w.zone)
	// Schedules are followed in UTC with the wall clock's figures, where every day has 24 hours.
	for wall := wallClock(now.Add(-w.duration)).Add(-slack); ; {
		wall = w.schedule.Next(wall)
		if wall.IsZero() {
			return now.Add(maxDuration), false // five years without one
		}
		opens := instant(wall, w.zone)
		closes := opens.Add(w.duration)
		switch {
		case !closes.After(now):
		case !opens.After(now):
			return closes, true
		case edge.IsZero() || opens.Before(edge):
			edge = opens
		}
		if !edge.IsZero() && wall.Sub(wallClock(edge)) > slack {
			return edge, false
		}
	}
}

// wallClock is what a clock on the wall shows, as if that were UTC.
func wallClock(t time.Time) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant is when clocks in the zone show the time: the first time, or when they skip it.
func instant(wall time.Time, zone *time.Location) time.Time {
	year, month, day := wall.Date()
	t := time.Date(year, month, day, wall.Hour(), wall.Minute(), 0, 0, zone)
	start, end := t.ZoneBounds()
	if shown := wallClock(t); !shown.Equal(wall) { // skipped
		if shown.After(wall) {
			return start
		}
		return end
	}
	if start.IsZero() {
		return t
	}
	_, offset := t.Zone()
	_, before := start.Add(-time.Second).Zone()
	if first := t.Add(-time.Duration(before-offset) * time.Second); first.Before(start) && wallClock(first).Equal(wall) {
		return first
	}
	return t
}
