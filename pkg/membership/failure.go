package membership

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Kind is what a failure asks for.
type Kind int

// Kinds of failures.
const (
	// Transient failures may pass: nothing answered, or the API server did not.
	Transient Kind = iota
	// Busy means that another run of the same host is in progress.
	Busy
	// StaleFence means that the host has seen a later fence, HostFence.
	StaleFence
	// StaleClaim means that the host holds another claim, HostClaim.
	StaleClaim
	// Configuration is somebody's to change; no host is at fault, and trying again changes nothing.
	Configuration
	// HostFault is the host's own: its script failed, or it is not the host that it should be.
	HostFault
)

// Failure says why a phase did not end well, in text that is safe to show: secrets are out of it and
// control characters too.
type Failure struct {
	Kind   Kind
	Reason string
	Host   string
	Phase  signing.Phase
	Detail string
	// HostClaim is who holds the host and the highest fence that it has seen, by its own word.
	HostClaim signing.Claim
}

// Error leads with what matters, as core cuts it to 300 characters.
func (f *Failure) Error() string {
	text := f.Reason
	if f.Host != "" {
		text += ": host " + f.Host
	}
	if f.Phase != "" {
		text += ", " + string(f.Phase)
	}
	if f.Detail != "" {
		text += ": " + f.Detail
	}
	return text
}

// FailureOf returns err as a Failure. One that is none is Transient, as what the API server says is.
func FailureOf(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{Kind: Transient, Reason: "APIServer", Detail: err.Error()}
}

// Unfit is why a host that was probed is not to be claimed although it answers; nil when nothing is wrong with it.
func Unfit(host *v1beta1.SSHHost, probe *dispatch.Probe) *Failure {
	if probe.Unfit == nil {
		return nil
	}
	return FailureOf(failure(host, "", nil, probe.Unfit))
}

func misconfigured(reason, format string, args ...any) *Failure {
	return &Failure{Kind: Configuration, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

const (
	maxDetail = 600
	maxOutput = 300
)

// failure puts what went wrong into a Failure. Errors that say nothing about the host or the
// configuration, such as the API server's, stay as they are.
func failure(host *v1beta1.SSHHost, phase signing.Phase, secrets map[string]string, err error) error {
	var f *Failure
	var refused *dispatch.Error
	switch {
	case errors.As(err, &f):
		f = &Failure{Kind: f.Kind, Reason: f.Reason, Detail: f.Detail}
	case errors.As(err, &refused):
		f = &Failure{Kind: kindOf(refused), Reason: reasonOf(refused), Detail: detailOf(refused), HostClaim: refused.HostClaim}
	case errors.Is(err, context.Canceled):
		return err
	default:
		return fmt.Errorf("reaching host %q: %w", host.Name, err)
	}
	f.Host, f.Phase = host.Name, phase
	f.Detail = dispatch.Sanitise(profile.NewRedactor(secrets).Redact(f.Detail), maxDetail)
	return f
}

func kindOf(err *dispatch.Error) Kind {
	switch {
	case err.IsConfiguration(), foreignRoot(err):
		return Configuration
	case err.Class == dispatch.Unreachable, overtaken(err):
		return Transient
	case err.Class == dispatch.Busy:
		return Busy
	case err.Class == dispatch.StaleFence:
		return StaleFence
	case err.Class == dispatch.StaleClaim:
		return StaleClaim
	default:
		return HostFault
	}
}

// overtaken says whether another controller got in between: the run that was asked for is no longer the
// host's last, or the session was not ours any more.
func overtaken(err *dispatch.Error) bool {
	return err.Class == dispatch.Refused &&
		(err.Reason == string(signing.ReasonUnknownRun) || err.Reason == string(signing.ReasonStaleChallenge))
}

// foreignRoot says whether host and cluster were provisioned with different root documents, so that the
// host knows none of our keys. Which of the two is wrong is for somebody to find out; no host is to blame.
func foreignRoot(err *dispatch.Error) bool {
	return err.Class == dispatch.Untrusted && err.Reason == dispatch.ReasonForeignRoot
}

// reasonOf is a name that a condition may carry and that does not change.
func reasonOf(err *dispatch.Error) string {
	if foreignRoot(err) {
		return v1beta1.ReasonDispatchKeyUnknown
	}
	switch err.Class {
	case dispatch.HostKeyMismatch:
		return v1beta1.ReasonHostKeyChanged
	case dispatch.NotHardened:
		return v1beta1.ReasonHostNotHardened
	case dispatch.Untrusted:
		return v1beta1.ReasonShimUntrusted
	case dispatch.Config, dispatch.Refused:
		return configurationReason(err)
	}
	return string(err.Class)
}

// configurationReason is that of what stands in the way of every host.
func configurationReason(err *dispatch.Error) string {
	switch err.Reason {
	case string(signing.ReasonNotAllowed):
		return v1beta1.ReasonScriptNotSigned
	case string(signing.ReasonExpired):
		return v1beta1.ReasonTrustExpired
	case string(signing.ReasonShimTooOld):
		return v1beta1.ReasonShimTooOld
	case string(signing.ReasonUntrusted), dispatch.ReasonSigner:
		return v1beta1.ReasonDispatchKeyUnknown
	case dispatch.ReasonTrustMissing:
		return v1beta1.ReasonTrustInvalid
	case dispatch.ReasonRawNotAllowed:
		return v1beta1.ReasonRawExecDisabled
	case dispatch.ReasonIdentityMissing, string(signing.ReasonNotEnrolled):
		return v1beta1.ReasonHostNotEnrolled
	}
	return camel(err.Reason)
}

// camel makes a condition's reason of a refusal's: "stale-challenge" becomes "StaleChallenge".
func camel(reason string) string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(reason, func(r rune) bool { return r == '-' || r == ' ' }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	if b.Len() == 0 {
		return "Refused"
	}
	return b.String()
}

func detailOf(err *dispatch.Error) string {
	var parts []string
	switch err.Reason {
	case dispatch.ReasonExit:
		parts = append(parts, fmt.Sprintf("exit status %d", err.ExitCode))
	case reasonOf(err): // the Failure says it already
	default:
		parts = append(parts, err.Reason)
	}
	if err.Detail != "" {
		parts = append(parts, err.Detail)
	}
	if err.Output != "" {
		parts = append(parts, dispatch.Sanitise(err.Output, maxOutput))
	}
	return strings.Join(parts, ": ")
}
