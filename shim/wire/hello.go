package wire

import (
	"bytes"
	"fmt"
	"io"
)

// MaxNoise bounds what may come before the hello: banners, motd, a shell's complaints.
const MaxNoise = 64 << 10

// maxCandidates bounds how many hellos a stream may offer, each of which costs a signature check.
const maxCandidates = 64

// NoHelloError is returned when a stream holds no hello that verifies. The dispatcher tells by
// Refused whether something spoke the protocol (another host, another key) or nothing did.
type NoHelloError struct {
	Noise   []byte // what came instead, at most 512 bytes, raw text of a peer
	Refused error  // why the last candidate was not believed, nil when there was none
	Cause   error  // why reading ended
}

// Error implements error; it leaves out the noise, which is unsanitised text of a peer.
func (e *NoHelloError) Error() string {
	if e.Refused != nil {
		return fmt.Sprintf("finding hello: %v", e.Refused)
	}
	return fmt.Sprintf("finding hello: %v after %d bytes that are none", e.Cause, len(e.Noise))
}

// Unwrap lets a caller see a cut connection or the refusal.
func (e *NoHelloError) Unwrap() error {
	if e.Refused != nil {
		return e.Refused
	}
	return e.Cause
}

// Hello finds the hello in a stream that may begin with noise and leaves the reader behind it.
// verify is asked about every candidate until it believes one. Every place that looks like a
// beginning is tried on its own, so that a forged beginning in a banner, complete or cut short,
// cannot hide the real one.
func (r *Reader) Hello(verify func(envelope []byte) error) error {
	s := search{buf: append([]byte(nil), r.ahead...)}
	r.ahead = nil
	chunk := make([]byte, 4<<10)
	for {
		if end := s.scan(verify); end > 0 {
			r.ahead = s.buf[end:]
			return nil
		}
		if cause := s.more(r.r, chunk); cause != nil {
			return &NoHelloError{Noise: s.buf[:min(len(s.buf), 512)], Refused: s.refused, Cause: cause}
		}
	}
}

// search is the state of a search for a hello: what was read, how far it was looked through, and
// which beginnings wait for the rest of their frame.
type search struct {
	buf     []byte
	from    int
	pending []int
	seen    int // beginnings with the header of a hello
	refused error
}

// more reads once, within the bounds of a search.
func (s *search) more(r io.Reader, chunk []byte) error {
	if len(s.buf) >= MaxNoise+len(Preamble)+headerSize+Hello.Cap() || s.seen >= maxCandidates {
		return fmt.Errorf("noise of %d bytes: %w", len(s.buf), ErrTooLarge)
	}
	n, err := r.Read(chunk)
	s.buf = append(s.buf, chunk[:n]...)
	if n > 0 || err == nil {
		return nil
	}
	if err == io.EOF && len(s.buf) > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// scan looks through what is new and tries every beginning whose frame is complete. It returns
// where the hello that verifies ends, or 0.
func (s *search) scan(verify func([]byte) error) int {
	s.find()
	waiting := s.pending[:0]
	for _, at := range s.pending {
		body := s.buf[at:]
		_, n, _ := parseHeader(body)
		if len(body) < headerSize+n {
			waiting = append(waiting, at)
			continue
		}
		err := verify(body[headerSize : headerSize+n])
		if err == nil {
			return at + headerSize + n
		}
		s.refused = err
	}
	s.pending = waiting
	return 0
}

// find adds to pending where a preamble with the header of a hello ends.
func (s *search) find() {
	for s.seen < maxCandidates {
		at := bytes.Index(s.buf[s.from:], []byte(Preamble))
		if at < 0 {
			s.from = max(s.from, len(s.buf)-len(Preamble)+1)
			return
		}
		if at += s.from; at > MaxNoise {
			return
		}
		body := s.buf[at+len(Preamble):]
		if len(body) < headerSize {
			s.from = at
			return
		}
		if t, _, err := parseHeader(body); err == nil && t == Hello {
			s.pending = append(s.pending, at+len(Preamble))
			s.seen++
		}
		// The preamble begins and ends with a newline; two may share one.
		s.from = at + len(Preamble) - 1
	}
}
