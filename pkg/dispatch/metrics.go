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

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpssh_orders_total",
			Help: "Requests to run a phase on a host, by phase and outcome: ok, reused, or the class of the error.",
		}, []string{"phase", "outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpssh_refusals_total",
			Help: "Orders that were refused, before dialling or by the host, by reason.",
		}, []string{"reason"}),
	}
	for _, c := range []prometheus.Collector{m.orders, m.refusals} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) succeeded(phase signing.Phase, result *Result) {
	if m == nil {
		return
	}
	outcome := "ok"
	if result.Reused {
		outcome = "reused"
	}
	m.orders.WithLabelValues(string(phase), outcome).Inc()
}

func (m *Metrics) failed(phase signing.Phase, e *Error) {
	if m == nil {
		return
	}
	if !slices.Contains([]signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave, signing.PhaseUninstall}, phase) {
		phase = "unknown"
	}
	m.orders.WithLabelValues(string(phase), strings.ToLower(string(e.Class))).Inc()
	switch e.Class {
	case Refused, Busy, StaleFence, StaleClaim, Untrusted, Config, NotHardened:
		m.refusals.WithLabelValues(refusalLabel(e)).Inc()
	}
}

// refusalLabel keeps reasons that a host made up out of the label.
func refusalLabel(e *Error) string {
	if e.Receipt != nil && !slices.Contains(reasons(), signing.Reason(e.Reason)) && e.Reason != ReasonClockSkew {
		return "other"
	}
	return e.Reason
}
