package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// sides are the measurements of one figure: ours[i] and other[i] were taken one right after the other.
type sides struct{ ours, other []float64 }

func (s *sides) add(ours, other time.Duration) {
	s.ours = append(s.ours, ours.Seconds())
	s.other = append(s.other, other.Seconds())
}

// quantile is the value at q, between 0 and 1, with the ranks between two values interpolated (Hyndman and Fan's type
// 7). values is sorted in place and must not be empty.
func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	at := q * float64(len(values)-1)
	low := int(math.Floor(at))
	if low+1 >= len(values) {
		return values[len(values)-1]
	}
	return values[low] + (at-float64(low))*(values[low+1]-values[low])
}

// ratio is the q-quantile of ours over the same quantile of the other side.
func (s *sides) ratio(q float64) float64 {
	return quantile(slices.Clone(s.ours), q) / quantile(slices.Clone(s.other), q)
}

// best is the ratio of the two minima: what is left when nothing disturbs.
func (s *sides) best() float64 { return slices.Min(s.ours) / slices.Min(s.other) }

const (
	resamples  = 4000
	confidence = 0.95
)

// interval is the 95 % interval of ratio(q), by the percentile bootstrap. Pairs are drawn and not values, so that
// what a pair met together stays together. The same measurements give the same interval.
func (s *sides) interval(q float64) (low, high float64) {
	random := rand.New(rand.NewPCG(1, 2))
	n := len(s.ours)
	drawn := sides{ours: make([]float64, n), other: make([]float64, n)}
	ratios := make([]float64, resamples)
	for i := range ratios {
		for j := range n {
			k := random.IntN(n)
			drawn.ours[j], drawn.other[j] = s.ours[k], s.other[k]
		}
		ratios[i] = quantile(drawn.ours, q) / quantile(drawn.other, q)
	}
	tail := (1 - confidence) / 2
	return quantile(ratios, tail), quantile(ratios, 1-tail)
}
