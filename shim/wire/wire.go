// Package wire is the framing of a session between a dispatcher and a host's shim. Both ends use
// it, so it knows nothing of documents, keys or hosts.
//
// The shim speaks first: the line [Preamble], then a [Hello] frame. A frame is
//
//	u32 length, big endian, of the payload | u8 type | payload
//
// and every type has a cap of its own ([Type.Cap]), as has a session in all ([MaxSession]). After
// the hello the client says one of
//
//	[Root…] [Allowlist] Probe                            → Facts
//	Collect(order digest)                                → [Output…] Receipt
//	[Root…] [Allowlist] Order Parameters [Script] Secrets → Output… Receipt
//
// Script is left out when the hello lists its digest; Secrets comes last and always, so that the
// shim knows when an order is complete. There is no compression, no archive and no negotiation.
package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Protocol is the version of the session that this package speaks; hellos carry it.
const Protocol = 1

// Preamble marks where the shim's frames begin, so that a reader can skip a banner or a motd.
const Preamble = "\nKPSSH/1\n"

// Type says what a frame holds.
type Type uint8

// Frame types.
const (
	Hello      Type = 1  // host: signed envelope
	Root       Type = 2  // client: signed envelope, versions N+1, N+2, … in order
	Allowlist  Type = 3  // client: signed envelope
	Order      Type = 4  // client: signed envelope
	Parameters Type = 5  // client: canonical JSON map of names to values
	Script     Type = 6  // client: the script's bytes
	Secrets    Type = 7  // client: canonical JSON map of names to values, may be {}
	Output     Type = 8  // host: bytes that a script printed
	Receipt    Type = 9  // host: signed envelope, ends the session
	Probe      Type = 10 // client: empty
	Facts      Type = 11 // host: JSON of HostFacts, ends the session
	Collect    Type = 12 // client: digest of an order's payload, "sha256:<hex>"
)

// kinds are the names of the types, and their caps in bytes.
var kinds = [...]struct {
	name  string
	limit int
}{
	Hello:      {"hello", 16 << 10},
	Root:       {"root", 64 << 10},
	Allowlist:  {"allowlist", 1 << 20},
	Order:      {"order", 16 << 10},
	Parameters: {"parameters", 256 << 10},
	Script:     {"script", 256 << 10},
	Secrets:    {"secrets", 256 << 10},
	Output:     {"output", 64 << 10},
	Receipt:    {"receipt", 16 << 10},
	Probe:      {"probe", 0},
	Facts:      {"facts", 64 << 10},
	Collect:    {"collect", 71},
}

func (t Type) known() bool { return int(t) < len(kinds) && kinds[t].name != "" }

// Cap is the most bytes that a frame of this type may carry, or -1 for an unknown type.
func (t Type) Cap() int {
	if !t.known() {
		return -1
	}
	return kinds[t].limit
}

// String is the type's name for logs.
func (t Type) String() string {
	if t.known() {
		return kinds[t].name
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// MaxSession is the most bytes of payload that either end reads in one session: 64 roots, one of
// everything else, and room for the output that a host keeps.
const MaxSession = 8 << 20

// MaxRoots is the most root documents that a host takes in one session.
const MaxRoots = 64

// ErrTooLarge is returned for a frame above its type's cap and for a session above MaxSession; the
// shim answers it with the reason too-large.
var ErrTooLarge = errors.New("frame too large")

// ErrUnknownType is returned for a frame whose type this package does not know; the shim answers
// it with the reason malformed.
var ErrUnknownType = errors.New("unknown frame type")

const headerSize = 5

// Write writes one frame with a single Write call, so that frames from several goroutines that
// share a mutex-free pipe never interleave within their header.
func Write(w io.Writer, t Type, payload []byte) error {
	limit := t.Cap()
	switch {
	case limit < 0:
		return fmt.Errorf("writing %s frame: %w", t, ErrUnknownType)
	case len(payload) > limit:
		return fmt.Errorf("writing %s frame of %d bytes: %w", t, len(payload), ErrTooLarge)
	}
	frame := make([]byte, headerSize, headerSize+len(payload))
	binary.BigEndian.PutUint32(frame, uint32(len(payload)))
	frame[4] = byte(t)
	if _, err := w.Write(append(frame, payload...)); err != nil {
		return fmt.Errorf("writing %s frame: %w", t, err)
	}
	return nil
}

// WriteOutput writes p as as many output frames as it takes, at least one cap each.
func WriteOutput(w io.Writer, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), Output.Cap())
		if err := Write(w, Output, p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// Reader reads frames from one peer and counts what it has read. It is not safe for concurrent use.
type Reader struct {
	r     io.Reader
	ahead []byte // read past a hello
	total int64
}

// NewReader reads frames from r, which it does not close. Deadlines are the caller's business.
// Small frames that came together are read together.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReader(r)} }

// Next returns the next frame. A stream that ends between two frames gives io.EOF, one that ends
// within a frame io.ErrUnexpectedEOF. Nothing is allocated for a payload that is above its cap.
func (r *Reader) Next() (Type, []byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(source{r}, header[:]); err != nil {
		if err == io.EOF {
			return 0, nil, io.EOF
		}
		return 0, nil, fmt.Errorf("reading frame header: %w", err)
	}
	t, n, err := parseHeader(header[:])
	if err != nil {
		return t, nil, err
	}
	if r.total += int64(n); r.total > MaxSession {
		return t, nil, fmt.Errorf("reading %s frame past %d bytes in all: %w", t, MaxSession, ErrTooLarge)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(source{r}, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return t, nil, fmt.Errorf("reading %s frame: %w", t, err)
	}
	return t, payload, nil
}

func parseHeader(header []byte) (Type, int, error) {
	t, n := Type(header[4]), binary.BigEndian.Uint32(header)
	limit := t.Cap()
	if limit < 0 {
		return t, 0, fmt.Errorf("reading frame of %s: %w", t, ErrUnknownType)
	}
	if n > uint32(limit) {
		return t, 0, fmt.Errorf("reading %s frame of %d bytes: %w", t, n, ErrTooLarge)
	}
	return t, int(n), nil
}

// source reads what a search for the hello has read ahead, then the stream.
type source struct{ r *Reader }

func (s source) Read(p []byte) (int, error) {
	if len(s.r.ahead) > 0 {
		n := copy(p, s.r.ahead)
		s.r.ahead = s.r.ahead[n:]
		return n, nil
	}
	return s.r.r.Read(p)
}
