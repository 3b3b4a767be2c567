package dispatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Options are what a Dispatcher is made of. Zero durations are the defaults named beside them.
type Options struct {
	Trust Trust
	// Signer is the dispatch key.
	Signer signing.Signer
	Pool   *remote.Pool
	// AllowRaw lets hosts in Raw mode run scripts that nobody signed. It comes from the controller's
	// command line, so that no object of the cluster can take a host out of Verified mode.
	AllowRaw bool
	// Tolerated are the findings of hosts' doctors that do not keep install and join from them. It comes from the
	// controller's command line, so that no object of the cluster lowers the bar.
	Tolerated Tolerance
	// Audit takes a record of each run and refusal; it may be nil.
	Audit *AuditLog
	// Metrics may be nil.
	Metrics *Metrics
	// Logins remembers which key hosts took; it may be nil.
	Logins *Logins
	// Now is time.Now when nil.
	Now func() time.Time
	// HelloTimeout is how long a host may take to say hello once it is connected: 20 s.
	HelloTimeout time.Duration
	// ReceiptMargin is how long after its script's deadline a host may take to answer: 45 s, of which
	// 10 s are between TERM and KILL.
	ReceiptMargin time.Duration
	// SettleTime is how long after a lost connection a host may take to start the run: 15 s.
	SettleTime time.Duration
	// AwayTime is how long a host may be out of reach while the end of a run is waited for: 1 min. The run
	// is not lost by it; whoever asks for it again waits for it again or is given its receipt.
	AwayTime time.Duration
	// CollectInterval is the pause before a run is first asked for again: 250 ms, growing to 20 times
	// as much.
	CollectInterval time.Duration
}

// Dispatcher runs phases on hosts. It is safe for concurrent use.
type Dispatcher struct {
	options Options
	trust   store
}

// New makes a Dispatcher.
func New(options Options) *Dispatcher {
	if options.Now == nil {
		options.Now = time.Now
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&options.HelloTimeout, 20 * time.Second},
		{&options.ReceiptMargin, 45 * time.Second},
		{&options.SettleTime, 15 * time.Second},
		{&options.AwayTime, time.Minute},
		{&options.CollectInterval, 250 * time.Millisecond},
	} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	return &Dispatcher{options: options, trust: store{source: options.Trust}}
}

// Allowed tells whether the rendered scripts of a profile may be ordered, without asking any host.
// The *Error is of class Config and names the first script that may not.
func (d *Dispatcher) Allowed(profile, version string, scripts map[signing.Phase][]byte) error {
	docs, err := d.trust.load()
	if err != nil {
		return err
	}
	for _, phase := range slices.Sorted(maps.Keys(scripts)) {
		if _, err := docs.allowed(profile, version, phase, scripts[phase], d.options.Now()); err != nil {
			return err
		}
	}
	return nil
}

// Run runs a phase on a host, unless that has been done already: see the package comment. Every error
// is an *Error.
func (d *Dispatcher) Run(ctx context.Context, host Host, request Request) (*Result, error) {
	result, err := d.run(ctx, host, request)
	if err != nil {
		e := d.describe(host, request.Phase, newCleaner(request.Secrets), err)
		d.options.Metrics.failed(request.Phase, e)
		return nil, e
	}
	d.options.Metrics.succeeded(request.Phase, result)
	return result, nil
}

func (d *Dispatcher) run(ctx context.Context, host Host, request Request) (*Result, error) {
	if err := request.validate(); err != nil {
		return nil, &Error{Class: Config, Reason: ReasonRequest, Detail: err.Error()}
	}
	switch host.Mode {
	case Verified:
		return d.runVerified(ctx, host, request)
	case Raw:
		return d.runRaw(ctx, host, request)
	}
	return nil, &Error{Class: Config, Reason: ReasonRequest, Detail: fmt.Sprintf("unknown mode %q", host.Mode)}
}

func (r *Request) validate() error {
	entering := r.Phase == signing.PhaseInstall || r.Phase == signing.PhaseJoin
	switch {
	case !entering && r.Phase != signing.PhaseLeave && r.Phase != signing.PhaseUninstall:
		return fmt.Errorf("unknown phase %q", r.Phase)
	case entering && r.Claim == "":
		return fmt.Errorf("%s without a claim", r.Phase)
	case len(r.Script) == 0:
		return errors.New("no script")
	case r.Timeout < time.Second:
		return fmt.Errorf("timeout of %v, at least 1s", r.Timeout)
	}
	return nil
}

// Newest are the versions of the documents that hosts are brought. The *Error is of class Config; with it comes what
// verifies nevertheless, which may be the root alone.
func (d *Dispatcher) Newest() (Versions, error) {
	docs, err := d.trust.read()
	if docs == nil {
		return Versions{}, err
	}
	versions := Versions{Root: docs.root.Version, RootDigest: docs.refs[docs.root.Version], RootExpires: docs.root.Expires}
	if d.options.Signer != nil {
		versions.DispatchKeyListed = slices.ContainsFunc(docs.root.Dispatch.Keys, d.options.Signer.Public().Equal)
	}
	if err != nil {
		return versions, err
	}
	versions.Allowlist, versions.AllowlistDigest, versions.AllowlistExpires = docs.list.Version, docs.listRef, docs.list.Expires
	return versions, nil
}

// Probe asks a host how it is, and brings it the signed documents that it lacks. Nothing else changes there.
// Every error is an *Error.
func (d *Dispatcher) Probe(ctx context.Context, host Host) (*Probe, error) {
	started := time.Now()
	probe, err := d.probe(ctx, host)
	if err != nil {
		return nil, d.describe(host, "", newCleaner(nil), err)
	}
	if probe.Behind != nil {
		probe.Behind = d.describe(host, "", newCleaner(nil), probe.Behind)
	}
	probe.Duration = time.Since(started)
	if probe.Hello != nil {
		docs, _ := d.trust.load() // that there are none is not the host's fault, and told elsewhere
		if unfit := d.unfit(probe.Hello, docs); unfit != nil {
			probe.Unfit = d.describe(host, "", newCleaner(nil), unfit)
		}
	}
	return probe, nil
}

func (d *Dispatcher) probe(ctx context.Context, host Host) (*Probe, error) {
	switch host.Mode {
	case Verified:
		return d.probeVerified(ctx, host)
	case Raw:
		return d.probeRaw(ctx, host)
	}
	return nil, &Error{Class: Config, Reason: ReasonRequest, Detail: fmt.Sprintf("unknown mode %q", host.Mode)}
}

// maxDetail bounds Error.Detail, in bytes.
const maxDetail = 600

// describe makes an *Error of whatever went wrong, complete and fit to show.
func (d *Dispatcher) describe(host Host, phase signing.Phase, clean cleaner, err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		e = fromRemote(err)
	}
	described := *e
	described.Host = host.Name
	if described.Phase == "" {
		described.Phase = phase
	}
	described.Detail = clean.text(described.Detail, maxDetail)
	described.Output = clean.text(described.Output, maxOutput)
	return &described
}

// fromRemote gives the errors of package remote their class. One without a class is a mistake in the
// target, found before anything was dialled.
func fromRemote(err error) *Error {
	var (
		mismatch    *remote.HostKeyMismatch
		auth        *remote.AuthRejected
		unreachable *remote.Unreachable
	)
	switch {
	case errors.As(err, &mismatch):
		return &Error{Class: HostKeyMismatch, Reason: "HostKeyChanged", Detail: err.Error() + "; nothing was sent; if the machine was reinstalled, compare the new fingerprint at its console and put that into knownHost of its Secret", Err: err}
	case errors.As(err, &auth):
		return &Error{Class: AuthRejected, Reason: "AuthRejected", Detail: err.Error(), RetryAt: auth.RetryAt, Err: err}
	case errors.As(err, &unreachable):
		return &Error{Class: Unreachable, Reason: unreachable.Reason, Detail: err.Error(), RetryAt: unreachable.RetryAt, Err: err}
	}
	return &Error{Class: Config, Reason: ReasonTarget, Detail: err.Error(), Err: err}
}
