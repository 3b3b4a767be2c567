package membership

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	outcomeOK            = "ok"
	outcomeFailed        = "failed"
	outcomeConfiguration = "configuration"
	outcomeUnreachable   = "unreachable"
	outcomeRefused       = "refused"
)

// Metrics of hosts and of what runs on them. A nil *Metrics counts nothing.
type Metrics struct {
	phases  *prometheus.HistogramVec
	probes  *prometheus.HistogramVec
	zombies *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kpssh_instance_phase_duration_seconds", Help: "Duration of a phase (install, join, leave) on a host, by outcome: ok, failed, configuration, unreachable, refused.",
			Buckets: []float64{0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1200},
		}, []string{"phase", "outcome"}),
		probes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kpssh_host_probe_duration_seconds", Help: "Duration of a probe of a host, by outcome: ok, failed, configuration, unreachable, refused.",
			Buckets: []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30},
		}, []string{"outcome"}),
		zombies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpssh_host_zombie_actions_total", Help: "What was done about a kubelet, or the rest of a membership, on a host that nobody had claimed: left, leave_failed, parked_foreign (it is of another cluster), not_clean (a leave that ended well has left something).",
		}, []string{"action"}),
	}
	for _, c := range []prometheus.Collector{m.phases, m.probes, m.zombies} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	m.begin()
	return m, nil
}

// begin has all start at zero, so that a rise to the first one shows.
func (m *Metrics) begin() {
	for _, action := range []ZombieAction{ZombieLeft, ZombieParkedForeign, ZombieLeaveFailed, ZombieNotClean} {
		m.zombies.WithLabelValues(string(action))
	}
	for _, outcome := range []string{outcomeOK, outcomeFailed, outcomeConfiguration, outcomeUnreachable, outcomeRefused} {
		m.probes.WithLabelValues(outcome)
		for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave} {
			m.phases.WithLabelValues(string(phase), outcome)
		}
	}
}

// ZombieAction is a value of the label action.
type ZombieAction string

// What the zombie guard does.
const (
	ZombieLeft          ZombieAction = "left"
	ZombieParkedForeign ZombieAction = "parked_foreign"
	ZombieLeaveFailed   ZombieAction = "leave_failed"
	ZombieNotClean      ZombieAction = "not_clean"
)

// Zombie counts an action of the zombie guard.
func (m *Metrics) Zombie(action ZombieAction) {
	if m != nil {
		m.zombies.WithLabelValues(string(action)).Inc()
	}
}

// Probed records a probe; err is nil when it found the host well, else a *Failure.
func (m *Metrics) Probed(duration time.Duration, err error) {
	if m == nil {
		return
	}
	outcome := outcomeOK
	if err != nil {
		outcome = outcomeOf(FailureOf(err))
	}
	m.probes.WithLabelValues(outcome).Observe(duration.Seconds())
}

func (m *Metrics) phase(phase signing.Phase, outcome string, duration time.Duration) {
	if m != nil {
		m.phases.WithLabelValues(string(phase), outcome).Observe(duration.Seconds())
	}
}

func outcomeOf(f *Failure) string {
	switch f.Kind {
	case Configuration:
		return outcomeConfiguration
	case Transient:
		return outcomeUnreachable
	case Busy, StaleFence, StaleClaim:
		return outcomeRefused
	default:
		return outcomeFailed
	}
}
