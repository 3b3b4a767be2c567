package dispatch

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Metrics counts what became of requests. A nil *Metrics counts nothing.
type Metrics struct {
	orders   *prometheus.CounterVec
	refusals *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them. All values that are foreseen begin at zero, so that an alert has
// something to rise from.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpssh_orders_total",
			Help: "Requests to run a phase on a host, by phase and outcome: ok, reused, or the class of the error.",
		}, []string{"phase", "outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpssh_refusals_total",
			Help: "Orders that were refused, before dialling or by the host, by reason; other is one that the controller does not know, such as a newer host's, or a key service's.",
		}, []string{"reason"}),
	}
	for _, c := range []prometheus.Collector{m.orders, m.refusals} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	for _, phase := range phases() {
		for _, outcome := range outcomes() {
			m.orders.WithLabelValues(string(phase), outcome)
		}
	}
	for _, reason := range append(refusalReasons(), reasonOther) {
		m.refusals.WithLabelValues(reason)
	}
	return m, nil
}

// Values of the labels outcome, phase and reason that are neither a class, a phase nor a reason.
const (
	outcomeOK     = "ok"
	outcomeReused = "reused"
	phaseUnknown  = signing.Phase("unknown")
	reasonOther   = "other"
)

func phases() []signing.Phase {
	return []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave, signing.PhaseUninstall}
}

func outcomes() []string {
	all := []string{outcomeOK, outcomeReused}
	for _, class := range classes() {
		all = append(all, outcomeOf(class))
	}
	return all
}

func outcomeOf(class Class) string { return strings.ToLower(string(class)) }

func (m *Metrics) succeeded(phase signing.Phase, result *Result) {
	if m == nil {
		return
	}
	outcome := outcomeOK
	if result.Reused {
		outcome = outcomeReused
	}
	m.orders.WithLabelValues(string(phase), outcome).Inc()
}

func (m *Metrics) failed(phase signing.Phase, e *Error) {
	if m == nil {
		return
	}
	if !slices.Contains(phases(), phase) {
		phase = phaseUnknown
	}
	m.orders.WithLabelValues(string(phase), outcomeOf(e.Class)).Inc()
	if !e.Class.refusal() {
		return
	}
	reason := e.Reason
	if !slices.Contains(refusalReasons(), reason) {
		reason = reasonOther // a host's word, or a key service's, may be any
	}
	m.refusals.WithLabelValues(reason).Inc()
}
