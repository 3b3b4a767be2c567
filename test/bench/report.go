package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Result is one line of the table.
type Result struct {
	// Figure is the name of a goal; a further word tells its parts apart.
	Figure string `json:"figure"`
	// What is "ours / other".
	What string `json:"what"`
	// Ratio has the 95 % interval Low to High. Best is the ratio of the two minima.
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Best  float64 `json:"min"`
	Pairs int     `json:"pairs"`
	Goal  float64 `json:"goal"`
	// Asked is the goal that was set first, where Goal is another one; docs/design says why it is.
	Asked float64 `json:"asked,omitempty"`
	// Required says that missing the goal is a failure and not a report.
	Required bool   `json:"required"`
	Verdict  string `json:"verdict"`
	// Ours and Other are the two quantiles that Ratio is made of, in Unit. They mean nothing on another machine.
	Ours  float64 `json:"ours"`
	Other float64 `json:"other"`
	Unit  string  `json:"unit"`
}

// goal is what a figure is held to.
type goal struct {
	figure, what string
	most         float64
	asked        float64 // 0 where most was asked for
	required     bool
	quantile     float64
	unit         string
}

// judge makes a line of measurements.
func (g goal) judge(s *sides) Result {
	low, high := s.interval(g.quantile)
	r := Result{
		Figure: g.figure, What: g.what, Goal: g.most, Asked: g.asked, Required: g.required, Unit: g.unit,
		Ratio: s.ratio(g.quantile), Low: low, High: high, Best: s.best(), Pairs: len(s.ours),
		Ours: quantile(s.ours, g.quantile), Other: quantile(s.other, g.quantile),
	}
	r.Verdict = r.verdict()
	return r
}

// Verdicts.
const (
	reached    = "reached"
	notReached = "not reached"
	undecided  = "undecided"
)

// verdict says "not reached" only when the interval excludes the goal: a noisy machine is no regression.
func (r Result) verdict() string {
	verdict := undecided
	switch {
	case r.Ratio <= r.Goal:
		verdict = reached
	case r.Low > r.Goal:
		verdict = notReached
	}
	if !r.Required {
		return "reported: " + verdict
	}
	return verdict
}

func (r Result) fails() bool { return r.Required && r.Low > r.Goal }

// figure is the name that --only goes by.
func (r Result) figure() string {
	name, _, _ := strings.Cut(r.Figure, " ")
	return name
}

func writeTable(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "figure\tours / other\tratio\t95 % interval\tmin\tpairs\tgoal\tverdict")
	for _, r := range results {
		goal := fmt.Sprintf("≤ %.2f", r.Goal)
		if r.Asked > 0 {
			goal += fmt.Sprintf(" (asked: %.2f)", r.Asked)
		}
		fmt.Fprintf(table, "%s\t%s\t%.3f\t%.3f … %.3f\t%.3f\t%d\t%s\t%s\n",
			r.Figure, r.What, r.Ratio, r.Low, r.High, r.Best, r.Pairs, goal, r.Verdict)
	}
	return table.Flush()
}

func writeJSON(w io.Writer, results []Result) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(results)
}
