package cli

import (
	"errors"
	"fmt"
	"strings"
)

// UsageError is a call that makes no sense; it ends in exit code 2.
type UsageError struct {
	Message string
	Hint    string
}

// Error implements error.
func (e *UsageError) Error() string { return e.Message }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error {
	return &UsageError{Message: fmt.Sprintf(format, args...)}
}

// Rule is something that must not be so in a call.
type Rule struct {
	Broken  bool
	Message string
}

// Check returns the first broken rule as a UsageError.
func Check(rules ...Rule) error {
	for _, r := range rules {
		if r.Broken {
			return &UsageError{Message: r.Message}
		}
	}
	return nil
}

// hinted is an error that knows what the user can do next.
type hinted struct {
	error
	hint string
}

// Unwrap keeps what the error wraps within reach.
func (h *hinted) Unwrap() error { return h.error }

// Hint adds what to do next to an error. The frame prints it on a line of its own.
func Hint(err error, format string, args ...any) error {
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// trouble is an error of a verb whose exit code 1 is an answer.
type trouble struct{ error }

// Unwrap keeps what the error wraps within reach.
func (t *trouble) Unwrap() error { return t.error }

// Trouble makes an error end in exit code 2, for verbs that answer with 1 as diff does.
func Trouble(err error) error {
	if err == nil || errors.Is(err, ErrVerdict) {
		return err
	}
	return &trouble{err}
}

// ErrVerdict ends a verb with exit code 1 after it has printed its own verdict as data.
var ErrVerdict = errors.New("the verdict is negative")

func report(env *Env, err error) int {
	if errors.Is(err, ErrVerdict) {
		return 1
	}
	env.say("error", "31", err.Error())
	for e := err; e != nil; e = errors.Unwrap(e) {
		if h, ok := e.(*hinted); ok { //nolint:errorlint // the loop unwraps: all hints are said
			env.Hintf("%s", h.hint)
		}
	}
	var bad *UsageError
	if errors.As(err, &bad) {
		if bad.Hint != "" {
			env.Hintf("%s", bad.Hint)
		}
		return 2
	}
	var t *trouble
	if errors.As(err, &t) {
		return 2
	}
	return 1
}

// Progress says what is being done, one line.
func (e *Env) Progress(format string, args ...any) {
	fmt.Fprintln(e.Stderr, VisibleLines(fmt.Sprintf(format, args...)))
}

// Warnf warns.
func (e *Env) Warnf(format string, args ...any) { e.say("warning", "33", fmt.Sprintf(format, args...)) }

// Hintf says what to do next.
func (e *Env) Hintf(format string, args ...any) { e.say("hint", "36", fmt.Sprintf(format, args...)) }

func (e *Env) say(kind, colour, text string) {
	if e.Colour {
		kind = "\x1b[" + colour + "m" + kind + "\x1b[0m"
	}
	for _, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		fmt.Fprintf(e.Stderr, "kpssh: %s: %s\n", kind, Visible(line))
	}
}
