package operator

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// connectionCollector shows what the pool of SSH connections counts.
type connectionCollector struct {
	stats func() remote.PoolStats
}

func newConnectionCollector(stats func() remote.PoolStats) *connectionCollector {
	return &connectionCollector{stats}
}

// connectionMetric is one number of the pool's.
type connectionMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(remote.PoolStats) float64
}

func connectionMetrics() []connectionMetric {
	gauge := func(name, help string, of func(remote.PoolStats) float64) connectionMetric {
		return connectionMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, of}
	}
	counter := func(name, help string, of func(remote.PoolStats) int64) connectionMetric {
		return connectionMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, func(s remote.PoolStats) float64 { return float64(of(s)) }}
	}
	return []connectionMetric{
		gauge("kpssh_ssh_connections", "SSH connections that are open or being opened.", func(s remote.PoolStats) float64 { return float64(s.Open) }),
		gauge("kpssh_ssh_connections_idle", "SSH connections that are open and that nobody uses.", func(s remote.PoolStats) float64 { return float64(s.Idle) }),
		counter("kpssh_ssh_handshakes_total", "SSH handshakes begun.", func(s remote.PoolStats) int64 { return s.Dials }),
		counter("kpssh_ssh_reused_total", "Uses of an SSH connection that was open already.", func(s remote.PoolStats) int64 { return s.Reused }),
		counter("kpssh_ssh_waits_total", "Waits for one of the caps on SSH connections.", func(s remote.PoolStats) int64 { return s.Waits }),
		counter("kpssh_ssh_evicted_total", "Idle SSH connections that were closed to make room.", func(s remote.PoolStats) int64 { return s.Evicted }),
		counter("kpssh_ssh_throttled_total", "SSH handshakes that an sshd refused for now (MaxStartups, PerSourcePenalties) or hung up on.", func(s remote.PoolStats) int64 { return s.Throttled }),
		counter("kpssh_ssh_paused_total", "SSH handshakes that were put off to spare the patience of an sshd.", func(s remote.PoolStats) int64 { return s.Paused }),
		counter("kpssh_ssh_backoff_total", "SSH logins that were not tried because the host had rejected the keys.", func(s remote.PoolStats) int64 { return s.Backoff }),
	}
}

// Describe implements prometheus.Collector.
func (*connectionCollector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range connectionMetrics() {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *connectionCollector) Collect(out chan<- prometheus.Metric) {
	stats := c.stats()
	for _, m := range connectionMetrics() {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(stats))
	}
}
