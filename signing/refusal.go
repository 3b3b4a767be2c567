package signing

import (
	"errors"
	"fmt"
)

// Refusal is why a document, an order or a value was not accepted. Callers branch on Reason: the
// shim puts it into its receipt, the controller tells configuration from host by it.
type Refusal struct {
	Reason Reason
	Detail string
}

// Error implements error.
func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Detail }

// ReasonOf is the reason of the Refusal in err's chain, and "" when there is none.
func ReasonOf(err error) Reason {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return ""
}

// refuse makes a Refusal. Text that a peer chose goes in with %q and bounded.
func refuse(reason Reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// refusePanic turns a panic into a refusal. No input is known to cause one; a verifier that runs
// as root on bytes of a stranger does not bet on it.
func refusePanic(err *error) {
	if p := recover(); p != nil {
		*err = refuse(ReasonMalformed, "internal error: %.200v", p)
	}
}
