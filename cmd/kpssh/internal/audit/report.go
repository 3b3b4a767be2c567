package audit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Verdict is what is to be thought of a run.
type Verdict string

// Verdicts.
const (
	OK         Verdict = "ok"         // order and receipt verify and belong together
	Unanswered Verdict = "unanswered" // the order verifies, and there is no receipt
	NoOrder    Verdict = "no-order"   // the receipt verifies, and the order is not in the trail
	Raw        Verdict = "raw"        // nothing was signed
	Refused    Verdict = "refused"    // something does not verify
)

// Run is one run or refusal, as all lines about it tell it. What Verdict is Refused of is told as far as it could be read.
type Run struct {
	// Time is the controller's, else the host's.
	Time       time.Time `json:"time,omitzero"`
	Host       string    `json:"host,omitempty"`
	HostID     string    `json:"hostID,omitempty"`
	NodeClaim  string    `json:"nodeClaim,omitempty"`
	Claim      string    `json:"claim,omitempty"`
	Profile    string    `json:"profile,omitempty"`
	Version    string    `json:"version,omitempty"`
	Phase      string    `json:"phase,omitempty"`
	Script     string    `json:"script,omitempty"`
	Parameters string    `json:"parameters,omitempty"`
	Outcome    string    `json:"outcome,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	ExitCode   int       `json:"exitCode,omitempty"`
	Signal     string    `json:"signal,omitempty"`
	Order      string    `json:"order,omitempty"`
	// DispatchKey signed the order; roots FirstRoot to LastRoot of the chain list it.
	DispatchKey string  `json:"dispatchKey,omitempty"`
	FirstRoot   int64   `json:"firstRoot,omitempty"`
	LastRoot    int64   `json:"lastRoot,omitempty"`
	Verdict     Verdict `json:"verdict"`
	// Why says what does not verify.
	Why string `json:"why,omitempty"`
	// Notes are times that cannot all be right.
	Notes []string `json:"notes,omitempty"`
	// Sources are who wrote about it: host, controller.
	Sources []string `json:"sources,omitempty"`
	Lines   []Place  `json:"lines"`

	receipt string // digest of the payload
}

// Report is what a trail comes to.
type Report struct {
	Verdict    Verdict `json:"verdict"`
	Runs       []*Run  `json:"runs"`
	Gaps       []Gap   `json:"gaps"`
	Twice      []Twice `json:"twice"`
	CutOff     []Place `json:"cutOff"`
	PassedOver int     `json:"passedOver"`
}

// Verify judges every line and puts together those about the same run.
func (t *Trust) Verify(trail *Trail, now time.Time) *Report {
	v := &verifier{trust: t, now: now, orders: map[string]*ordered{}, runs: map[string]*Run{}}
	streams := streamsOf(trail.lines)
	report := &Report{
		Verdict: OK, Runs: []*Run{}, Gaps: gaps(streams, trail.Rotated), Twice: twice(streams), CutOff: trail.CutOff, PassedOver: trail.PassedOver,
	}
	if report.CutOff == nil {
		report.CutOff = []Place{}
	}
	for i := range trail.lines {
		v.collect(&trail.lines[i])
	}
	told := map[*Run]bool{}
	for i := range trail.lines {
		if run := v.judge(&trail.lines[i]); !told[run] {
			told[run] = true
			report.Runs = append(report.Runs, run)
		}
	}
	for _, run := range report.Runs {
		if run.Verdict == Refused {
			report.Verdict = Refused
		}
	}
	return report
}

type verifier struct {
	trust  *Trust
	now    time.Time
	orders map[string]*ordered // by digest
	runs   map[string]*Run     // that verify, by digest of the order
}

// collect opens the orders first: a receipt that was collected by another process stands on a line without its order.
func (v *verifier) collect(l *line) {
	if l.err != nil || len(l.record.Order) == 0 {
		return
	}
	o, err := v.trust.openOrder(l.record.Order)
	if err == nil {
		err = o.matches(l.record)
	}
	if err != nil {
		l.err = err
		return
	}
	v.orders[l.record.OrderDigest] = o
}

// judge returns the run that a line is about.
func (v *verifier) judge(l *line) *Run {
	run := &Run{Verdict: Refused, Lines: []Place{l.place}}
	if l.record != nil {
		if err := checkForm(l.record); err != nil {
			run.Why = err.Error()
			return run
		}
		run.tell(l.record)
	}
	err := l.err
	if err == nil {
		err = v.verify(l.record, run)
	}
	if err != nil {
		run.Verdict, run.Why = Refused, err.Error()
		return run
	}
	if run.Order == "" {
		return run
	}
	known, ok := v.runs[run.Order]
	if !ok {
		v.runs[run.Order] = run
		return run
	}
	if err := known.merge(run); err != nil {
		run.Verdict, run.Why = Refused, err.Error()
		return run
	}
	return known
}

// tell takes over what a record says.
func (run *Run) tell(r *wire.Record) {
	run.Time, run.Host, run.HostID, run.NodeClaim, run.Claim = r.Time, r.Host, r.HostID, r.NodeClaim, r.Claim
	run.Profile, run.Version, run.Phase, run.Script, run.Parameters = r.Profile, r.Version, r.Phase, r.Script, r.Parameters
	run.Outcome, run.Reason, run.ExitCode, run.Signal = r.Outcome, r.Reason, r.ExitCode, r.Signal
	run.Order, run.Sources = r.OrderDigest, []string{r.Source}
}

// verify holds a record against what was signed.
func (v *verifier) verify(r *wire.Record, run *Run) error {
	if r.Mode == wire.ModeRaw {
		run.Verdict = Raw
		return nil
	}
	o := v.orders[r.OrderDigest]
	if o != nil {
		run.DispatchKey, run.FirstRoot, run.LastRoot = o.keys[0], o.first, o.last
	}
	if r.Outcome != string(signing.OutcomeRefused) { // then nothing ran that should not have
		if err := v.trust.allows(r, o); err != nil {
			return err
		}
	}
	if len(r.Receipt) == 0 {
		run.Verdict = Unanswered
		return allHold(field{"outcome", r.Outcome == "" && r.Reason == "" && r.ExitCode == 0 && r.Signal == ""})
	}
	return v.verifyReceipt(r, o, run)
}

// verifyReceipt holds a record against its receipt, and that against the order, which is nil when it is nowhere.
func (v *verifier) verifyReceipt(r *wire.Record, o *ordered, run *Run) error {
	a, err := v.trust.openReceipt(r)
	if err == nil {
		err = a.matches(r)
	}
	if err != nil {
		return err
	}
	run.Host = cmp.Or(run.Host, a.host)
	if run.Time.IsZero() {
		run.Time = cmp.Or(a.receipt.Finished, a.receipt.Started)
	}
	if run.receipt, err = signing.PayloadDigest(r.Receipt); err != nil {
		return err
	}
	if o == nil {
		run.Verdict, run.Notes = NoOrder, oddities(r, nil, a.receipt, v.now)
		return nil
	}
	run.Verdict, run.Notes = OK, oddities(r, o.order, a.receipt, v.now)
	return a.answers(o.order, r.OrderDigest)
}

// merge adds what another line says about the same run.
func (run *Run) merge(other *Run) error {
	if run.receipt != "" && other.receipt != "" && run.receipt != other.receipt {
		return fmt.Errorf("the host has signed two ends of one order, the other on line %s", run.Lines[0])
	}
	if run.receipt == "" && other.receipt != "" {
		run.receipt, run.Verdict, run.Notes = other.receipt, other.Verdict, other.Notes
		run.Outcome, run.Reason, run.ExitCode, run.Signal = other.Outcome, other.Reason, other.ExitCode, other.Signal
	}
	run.Host, run.NodeClaim = cmp.Or(run.Host, other.Host), cmp.Or(run.NodeClaim, other.NodeClaim)
	for _, source := range other.Sources {
		if !slices.Contains(run.Sources, source) {
			run.Sources = append(run.Sources, source)
		}
	}
	slices.Sort(run.Sources)
	run.Lines = append(run.Lines, other.Lines...)
	return nil
}

// Err names what does not verify, line by line.
func (r *Report) Err() error {
	var all []error
	for _, run := range r.Runs {
		if run.Verdict == Refused {
			all = append(all, fmt.Errorf("%s: %s", run.Lines[0], run.Why))
		}
	}
	return errors.Join(all...)
}
