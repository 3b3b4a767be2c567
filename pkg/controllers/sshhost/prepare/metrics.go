package prepare

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of preparation. A nil *Metrics counts nothing.
type Metrics struct{ prepared *prometheus.GaugeVec }

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{prepared: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kpssh_pool_prepared_hosts", Help: "Free hosts that a node class selects and that have its profile installed, for classes that have hosts prepared.",
	}, []string{"nodeclass"})}
	return m, registerer.Register(m.prepared)
}

func (m *Metrics) observe(wishes []wish, candidates []candidate) {
	if m == nil {
		return
	}
	m.prepared.Reset()
	for w := range wishes {
		n := 0
		for i := range candidates {
			if candidates[i].installed == wishes[w].marker && slices.Contains(candidates[i].classes, w) {
				n++
			}
		}
		m.prepared.WithLabelValues(wishes[w].class).Set(float64(n))
	}
}
