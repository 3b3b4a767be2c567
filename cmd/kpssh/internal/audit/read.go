package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// Place is a line of a file.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line"`
}

// String is how compilers and grep name a line.
func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// line is a line that claims to be a record.
type line struct {
	place  Place
	record *wire.Record
	err    error // why it is none
}

// Trail is what was read and is to be verified.
type Trail struct {
	lines []line
	// Rotated says that the files do not go back to where the controller's streams begin.
	Rotated bool
	// CutOff are last lines of files that are not whole: their writer was stopped, or is writing.
	CutOff []Place
	// PassedOver is how many lines of other logs there were.
	PassedOver int
}

// maxLine is more than any record, so that what is too long is known as such.
const maxLine = 2 * wire.MaxRecord

// Read reads a file of a trail. With mixed, lines may have something before the record, as kubectl logs puts there, and
// lines without one are another log's.
func (t *Trail) Read(name string, r io.Reader, mixed bool) error {
	lines := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		text, err := lines.ReadSlice('\n')
		tooLong := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of it
			_, err = lines.ReadSlice('\n')
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		text, ended := bytes.CutSuffix(text, []byte("\n"))
		t.add(Place{name, n}, bytes.TrimSuffix(text, []byte("\r")), ended, tooLong, mixed)
		if err != nil {
			return nil
		}
	}
}

func (t *Trail) add(place Place, text []byte, ended, tooLong, mixed bool) {
	if len(text) == 0 {
		return
	}
	if mixed {
		at := bytes.Index(text, []byte(wire.RecordPrefix))
		if at < 0 {
			t.PassedOver++
			return
		}
		text = text[at:]
	}
	if tooLong {
		t.lines = append(t.lines, line{place: place, err: fmt.Errorf("it has more than %d bytes", wire.MaxRecord)})
		return
	}
	record, err := wire.DecodeRecord(text)
	if err != nil && !ended && cut(text) {
		t.CutOff = append(t.CutOff, place)
		return
	}
	t.lines = append(t.lines, line{place, record, err})
}

// cut tells a record that lacks its end from one that was changed: as far as it goes it begins like one and has no
// closing brace of its own.
func cut(text []byte) bool {
	prefix := []byte(wire.RecordPrefix)
	if len(text) < len(prefix) {
		return bytes.HasPrefix(prefix, text)
	}
	if !bytes.HasPrefix(text, prefix) {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return false // it has its end, and is not what was written
			}
		}
	}
	return true
}
