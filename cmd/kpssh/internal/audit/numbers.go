package audit

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// What the numbers of records tell: what is missing, and what stands where something else should.

// Gap are numbers that are missing in a stream.
type Gap struct {
	Source string `json:"source"`
	// Stream is a host's id, or a controller's process.
	Stream string `json:"stream"`
	From   uint64 `json:"from"`
	To     uint64 `json:"to"`
}

// Twice is a number of a stream under which different things are told. One of them was not written by who counts; or a
// host counts anew, from an old copy of its disk.
type Twice struct {
	Source string  `json:"source"`
	Stream string  `json:"stream"`
	Seq    uint64  `json:"seq"`
	Lines  []Place `json:"lines"`
}

// stream is who counts: a host, or a process of a controller.
type stream struct{ source, name string }

func compareStreams(a, b stream) int {
	return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.name, b.name))
}

// numbers are the lines of a stream by their number, each of what is told once: copies are one.
type numbers map[uint64][]line

func streamsOf(lines []line) map[stream]numbers {
	streams := map[stream]numbers{}
	for _, l := range lines {
		if l.record == nil {
			continue
		}
		s := stream{l.record.Source, l.record.Stream}
		if s.source == wire.SourceHost {
			s.name = l.record.HostID
		}
		if streams[s] == nil {
			streams[s] = numbers{}
		}
		same := func(other line) bool { return told(other.record) == told(l.record) }
		if known := streams[s][l.record.Seq]; !slices.ContainsFunc(known, same) {
			streams[s][l.record.Seq] = append(known, l)
		}
	}
	return streams
}

// told is what a line is about: a host numbers runs, and another version of its shim may tell one in other words; a
// controller numbers lines.
func told(r *wire.Record) string {
	if r.Source == wire.SourceHost {
		return r.OrderDigest
	}
	return r.Sum
}

// gaps finds the numbers that are missing before the last of each stream. A host keeps its newest runs only, so that its
// trail begins anywhere; a controller's begins with 1, unless its first lines were rotated away.
func gaps(streams map[stream]numbers, rotated bool) []Gap {
	found := []Gap{}
	for _, s := range slices.SortedFunc(maps.Keys(streams), compareStreams) {
		sorted := slices.Sorted(maps.Keys(streams[s]))
		before := sorted[0]
		if s.source == wire.SourceController && !rotated {
			before = 0
		}
		for _, n := range sorted {
			if n > before+1 {
				found = append(found, Gap{s.source, s.name, before + 1, n - 1})
			}
			before = n
		}
	}
	return found
}

// twice finds the numbers under which more than one thing is told.
func twice(streams map[stream]numbers) []Twice {
	found := []Twice{}
	for _, s := range slices.SortedFunc(maps.Keys(streams), compareStreams) {
		for _, n := range slices.Sorted(maps.Keys(streams[s])) {
			lines := streams[s][n]
			if len(lines) < 2 {
				continue
			}
			t := Twice{Source: s.source, Stream: s.name, Seq: n}
			for _, l := range lines {
				t.Lines = append(t.Lines, l.place)
			}
			found = append(found, t)
		}
	}
	return found
}
