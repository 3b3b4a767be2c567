package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// RecordPrefix is how every line of an audit trail begins, and no line of another log.
const RecordPrefix = `{"audit":"v1",`

// MaxRecord bounds a line of an audit trail: an order and a receipt at their largest, and room for the rest.
const MaxRecord = 48 << 10

// Sources of records.
const (
	SourceHost       = "host"
	SourceController = "controller"
)

// Modes of records. Nothing vouches for what ran in Raw mode.
const (
	ModeVerified = "verified"
	ModeRaw      = "raw"
)

// Record is one line of an audit trail: one run or refusal, with the order that the dispatch key signed and the receipt
// that the host signed, which prove it. Everything else repeats what these say so that people can read a line, and
// whoever verifies holds it against them. Seq, Stream, Time, Host and NodeClaim are the writer's word alone.
type Record struct {
	Audit string `json:"audit"` // "v1"
	// Source is who wrote the line.
	Source string `json:"source"`
	// Stream is a process of a controller, in which Seq counts from 1. On a host, Seq counts the runs since enrolment.
	Stream string `json:"stream,omitempty"`
	Seq    uint64 `json:"seq"`
	// Time is the controller's when it had the answer.
	Time time.Time `json:"time,omitzero"`
	Mode string    `json:"mode"`
	// Host is the name of the SSHHost.
	Host   string `json:"host,omitempty"`
	HostID string `json:"hostID,omitempty"`
	// NodeClaim is a name, Claim its uid.
	NodeClaim  string `json:"nodeClaim,omitempty"`
	Claim      string `json:"claim,omitempty"`
	Profile    string `json:"profile,omitempty"`
	Version    string `json:"version,omitempty"`
	Phase      string `json:"phase,omitempty"`
	Script     string `json:"script,omitempty"`     // digest
	Parameters string `json:"parameters,omitempty"` // digest
	// Outcome is the receipt's; empty when an order was never answered.
	Outcome  string `json:"outcome,omitempty"`
	Reason   string `json:"reason,omitempty"`
	ExitCode int    `json:"exitCode,omitempty"`
	Signal   string `json:"signal,omitempty"`
	// OrderDigest is of the order's payload: the name of the run.
	OrderDigest string `json:"orderDigest,omitempty"`
	// DispatchKey is the id of the key that signed the order.
	DispatchKey string          `json:"dispatchKey,omitempty"`
	Order       json.RawMessage `json:"order,omitempty"`
	Receipt     json.RawMessage `json:"receipt,omitempty"`
	// Sum is the digest of the line with an empty Sum. It finds damage, not forgery.
	Sum string `json:"sum"`
}

// Encode writes the line, with its line feed. Audit and Sum are filled in.
func (r Record) Encode() ([]byte, error) {
	r.Audit, r.Sum = "v1", ""
	bare, err := r.line()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(bare)
	r.Sum = "sha256:" + hex.EncodeToString(sum[:])
	line, err := r.line()
	if err == nil && len(line) > MaxRecord {
		err = fmt.Errorf("%d bytes, more than %d", len(line), MaxRecord)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding record: %w", err)
	}
	return line, nil
}

func (r *Record) line() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encoding record: %w", err)
	}
	return b.Bytes(), nil
}

// DecodeRecord reads a line, without its line feed, and takes it only as Encode wrote it.
func DecodeRecord(line []byte) (*Record, error) {
	switch {
	case !bytes.HasPrefix(line, []byte(RecordPrefix)):
		return nil, errors.New("it does not begin like a record")
	case len(line) > MaxRecord:
		return nil, fmt.Errorf("it has more than %d bytes", MaxRecord)
	}
	r := new(Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, fmt.Errorf("it is no whole record: %w", err)
	}
	again, err := r.Encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(bytes.TrimSuffix(again, []byte("\n")), line) {
		return nil, errors.New("it is not as it was written: its sum does not match")
	}
	return r, nil
}
