package main

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestQuantile(t *testing.T) {
	for name, tc := range map[string]struct {
		values []float64
		q      float64
		want   float64
	}{
		"the median of an odd number":           {[]float64{9, 1, 5}, 0.5, 5},
		"the median of an even number":          {[]float64{4, 1, 3, 2}, 0.5, 2.5},
		"of one value":                          {[]float64{7}, 0.99, 7},
		"the least":                             {[]float64{3, 2, 8}, 0, 2},
		"the greatest":                          {[]float64{3, 2, 8}, 1, 8},
		"between two ranks":                     {[]float64{0, 10}, 0.99, 9.9},
		"a tail that is longer than the sample": {[]float64{1, 2, 3, 4, 5}, 0.975, 4.9},
	} {
		t.Run(name, func(t *testing.T) {
			if got := quantile(tc.values, tc.q); math.Abs(got-tc.want) > 1e-9 {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// sample draws n pairs whose medians have the ratio, each side with noise of its own and both with noise that a pair
// shares.
func sample(random *rand.Rand, n int, ratio, own, shared float64) *sides {
	s := &sides{}
	for range n {
		common := math.Exp(shared * random.NormFloat64())
		s.ours = append(s.ours, ratio*common*math.Exp(own*random.NormFloat64()))
		s.other = append(s.other, common*math.Exp(own*random.NormFloat64()))
	}
	return s
}

func TestTheIntervalHoldsTheTruthAsOftenAsItSays(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	const truth, rounds = 1.5, 40
	held := 0
	for range rounds {
		low, high := sample(random, 60, truth, 0.2, 0.5).interval(0.5)
		if low > high {
			t.Fatalf("%v … %v", low, high)
		}
		if low <= truth && truth <= high {
			held++
		}
	}
	// 38 of 40 are due. The numbers are the same in every run, so that this is no matter of luck.
	if held < 36 {
		t.Errorf("held the truth %d times of %d", held, rounds)
	}
}

func TestWhatAPairMetTogetherDoesNotBlurTheRatio(t *testing.T) {
	s := sample(rand.New(rand.NewPCG(5, 6)), 100, 2, 0, 1)
	low, high := s.interval(0.5)
	if math.Abs(low-2) > 1e-9 || math.Abs(high-2) > 1e-9 {
		t.Errorf("%v … %v, and every pair has the ratio 2", low, high)
	}
}

func TestMorePairsTellMore(t *testing.T) {
	width := func(n int) float64 {
		low, high := sample(rand.New(rand.NewPCG(7, 8)), n, 1, 0.3, 0).interval(0.5)
		return high - low
	}
	if few, many := width(20), width(500); many >= few/2 {
		t.Errorf("%v wide with 20 pairs, %v with 500", few, many)
	}
}

func TestTheSameMeasurementsGiveTheSameInterval(t *testing.T) {
	s := sample(rand.New(rand.NewPCG(9, 10)), 30, 1, 0.3, 0.3)
	low, high := s.interval(0.99)
	if again, top := s.interval(0.99); again != low || top != high {
		t.Errorf("%v … %v, then %v … %v", low, high, again, top)
	}
}

func TestOneSlowRunChangesNoMedian(t *testing.T) {
	s := sample(rand.New(rand.NewPCG(11, 12)), 101, 1, 0.1, 0)
	before := s.ratio(0.5)
	s.ours[0] = 1000
	if after := s.ratio(0.5); math.Abs(after-before) > 0.02 {
		t.Errorf("%v, and %v with one run that took ages", before, after)
	}
	if s.ours[0] != 1000 {
		t.Error("the measurements were put into another order, which takes pairs apart")
	}
}
