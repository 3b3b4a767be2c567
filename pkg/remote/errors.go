package remote

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrorClass is one of the four ways in which work on a host can fail.
type ErrorClass string

// Error classes. ClassNone is that of a nil error, and of a mistake in the Target.
const (
	ClassNone            ErrorClass = ""
	ClassUnreachable     ErrorClass = "Unreachable"
	ClassAuthRejected    ErrorClass = "AuthRejected"
	ClassHostKeyMismatch ErrorClass = "HostKeyMismatch"
	ClassExit            ErrorClass = "Exit"
)

// Reasons of an Unreachable error.
const (
	ReasonDial        = "dial"        // no TCP connection
	ReasonTimeout     = "timeout"     // the context or the handshake's deadline ended first
	ReasonHandshake   = "handshake"   // not SSH, or a peer that hung up during the handshake
	ReasonWeakCrypto  = "weak-crypto" // no common modern algorithm, or no strict key exchange
	ReasonInterrupted = "interrupted" // an open connection was lost
	ReasonSession     = "session"     // the host refused to open a session or to start the command
	ReasonThrottled   = "throttled"   // sshd takes no connections from us for now: MaxStartups or PerSourcePenalties
	// ReasonForwarding: the jump host forwards no connections for its user, or not there.
	ReasonForwarding = "jump-refuses-forwarding"
)

// Reasons of the other classes.
const (
	ReasonAuthRejected    = "auth-rejected"
	ReasonHostKeyMismatch = "host-key-mismatch"
	ReasonExit            = "exit"   // ended with a status other than 0
	ReasonSignal          = "signal" // killed by a signal
)

// Unreachable means that there is no connection, or none any more. What a command did whose
// connection was lost is unknown.
type Unreachable struct {
	Address string
	Reason  string
	Err     error
	// RetryAt is set when nothing was dialled because the host has asked for a pause: the end of that.
	RetryAt time.Time
}

// Error implements error.
func (e *Unreachable) Error() string {
	text := fmt.Sprintf("reaching %s: %s: %v", e.Address, e.Reason, e.Err)
	if !e.RetryAt.IsZero() {
		text += ", next attempt at " + e.RetryAt.UTC().Format(time.RFC3339)
	}
	return text
}

// Unwrap gives the cause, so that a caller can tell its own cancellation from a dead host.
func (e *Unreachable) Unwrap() error { return e.Err }

// AuthRejected means that the host answered, was the pinned one, and accepted none of the keys.
type AuthRejected struct {
	Address string
	User    string
	// Methods are what the host would have accepted.
	Methods []string
	// Keys are the fingerprints of the keys that were offered.
	Keys []string
	// RetryAt is set when nothing was dialled: the host rejected these keys before, and trying
	// faster would make its sshd ban us (PerSourcePenalties).
	RetryAt time.Time
}

// Error implements error.
func (e *AuthRejected) Error() string {
	text := fmt.Sprintf("logging in to %s as %q: none of %d key(s) accepted", e.Address, e.User, len(e.Keys))
	if len(e.Methods) > 0 {
		text += " (host accepts " + strings.Join(e.Methods, ", ") + ")"
	}
	if !e.RetryAt.IsZero() {
		text += ", next attempt at " + e.RetryAt.UTC().Format(time.RFC3339)
	}
	return text
}

// HostKeyMismatch means that the peer showed another host key than the pinned one: a reinstalled
// host, a reused address, or somebody in between. No user key was offered and nothing was sent.
type HostKeyMismatch struct {
	Address string
	// Expected are the pinned fingerprints; empty when a first-use callback refused the key.
	Expected []string
	// Got is the fingerprint of the key that was shown; of a certificate, that of its key.
	Got string
	// Err is what the first-use callback said, or why a certificate does not count.
	Err error
}

// Error implements error.
func (e *HostKeyMismatch) Error() string {
	if len(e.Expected) == 0 {
		return fmt.Sprintf("checking host key %s of %s: %v", e.Got, e.Address, e.Err)
	}
	text := fmt.Sprintf("checking host key of %s: expected %s, got %s", e.Address, strings.Join(e.Expected, " or "), e.Got)
	if e.Err != nil {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	return text
}

// Unwrap gives Err.
func (e *HostKeyMismatch) Unwrap() error { return e.Err }

// JumpError says that the trouble is with a jump host and not with the host behind it. Err has the class.
type JumpError struct {
	// Hop counts from 1, the jump host that is dialled directly. User logs in to Address there.
	Hop     int
	User    string
	Address string
	Err     error
}

// Error implements error.
func (e *JumpError) Error() string {
	return fmt.Sprintf("jump host %d (%s@%s): %v", e.Hop, e.User, e.Address, e.Err)
}

// Unwrap gives the error with its class.
func (e *JumpError) Unwrap() error { return e.Err }

// atJump names the jump host that err is of, unless err names one before it. A mistake in the target keeps its text.
func atJump(jump Target, err error) error {
	var named *JumpError
	if errors.As(err, &named) || Class(err) == ClassNone {
		return err
	}
	return &JumpError{Hop: jump.hop(), User: jump.User, Address: jump.hostPort(), Err: err}
}

// ExitError means that the command ran and failed.
type ExitError struct {
	// Code is the exit status; 128 or more, or -1 when unknown, for a command killed by a signal.
	Code   int
	Signal string
	stderr string
}

// Error implements error. It names no output: that is the peer's text, see Stderr.
func (e *ExitError) Error() string {
	if e.Signal != "" {
		return fmt.Sprintf("remote command killed by SIG%s", e.Signal)
	}
	return fmt.Sprintf("remote command ended with exit status %d", e.Code)
}

// Stderr is the end of what the command wrote to stderr, at most 16 KiB. It is the peer's text:
// sanitise it before it reaches a log.
func (e *ExitError) Stderr() string { return e.stderr }

// Class tells which of the four classes err is of, or ClassNone.
func Class(err error) ErrorClass {
	var (
		unreachable *Unreachable
		auth        *AuthRejected
		hostKey     *HostKeyMismatch
		exit        *ExitError
	)
	switch {
	case errors.As(err, &hostKey):
		return ClassHostKeyMismatch
	case errors.As(err, &auth):
		return ClassAuthRejected
	case errors.As(err, &unreachable):
		return ClassUnreachable
	case errors.As(err, &exit):
		return ClassExit
	}
	return ClassNone
}

// Reason is the stable reason of an error with a class: one of the constants Reason…, or empty.
func Reason(err error) string {
	switch Class(err) {
	case ClassHostKeyMismatch:
		return ReasonHostKeyMismatch
	case ClassAuthRejected:
		return ReasonAuthRejected
	case ClassUnreachable:
		var unreachable *Unreachable
		errors.As(err, &unreachable)
		return unreachable.Reason
	case ClassExit:
		var exit *ExitError
		if errors.As(err, &exit); exit.Signal != "" {
			return ReasonSignal
		}
		return ReasonExit
	}
	return ""
}
