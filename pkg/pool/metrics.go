package pool

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Collector counts the hosts of an inventory by state and class, when it is asked.
type Collector struct {
	inventory *Inventory
	hosts     *prometheus.Desc
	hindered  *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector makes the metrics kpssh_pool_hosts and kpssh_pool_hindered_hosts.
func NewCollector(inventory *Inventory) *Collector {
	return &Collector{
		inventory: inventory,
		hosts:     prometheus.NewDesc("kpssh_pool_hosts", "Hosts of the pool by state and class.", []string{"state", "class"}, nil),
		hindered: prometheus.NewDesc("kpssh_pool_hindered_hosts",
			"Hosts of the pool that failed and back off (failing), that failed so often that somebody should look (quarantined), and that a leave is owed to (leave_owed), by class.",
			[]string{"cause", "class"}, nil),
	}
}

// The causes of kpssh_pool_hindered_hosts.
var causes = map[string]func(*v1beta1.SSHHost) bool{
	"failing":     Failed,
	"quarantined": func(h *v1beta1.SSHHost) bool { return HasCondition(h, v1beta1.ConditionQuarantined) },
	"leave_owed":  func(h *v1beta1.SSHHost) bool { return Owed(h) && h.Status.ClaimRef == nil },
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) { out <- c.hosts; out <- c.hindered }

// Collect implements prometheus.Collector. A class has a value for each state, so that a graph or an alert sees zero
// and not nothing.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	type key struct {
		state v1beta1.HostState
		class string
	}
	type cause struct{ name, class string }
	counts, hindered := map[key]int{}, map[cause]int{}
	classes := map[string]bool{}
	c.inventory.Range(func(host *v1beta1.SSHHost) {
		state := host.Status.State
		if state == "" {
			state = v1beta1.HostPending
		}
		counts[key{state, host.Class()}]++
		classes[host.Class()] = true
		for name, is := range causes {
			if is(host) {
				hindered[cause{name, host.Class()}]++
			}
		}
	})
	for class := range classes {
		for _, state := range states() {
			out <- prometheus.MustNewConstMetric(c.hosts, prometheus.GaugeValue, float64(counts[key{state, class}]), string(state), class)
		}
		for name := range causes {
			out <- prometheus.MustNewConstMetric(c.hindered, prometheus.GaugeValue, float64(hindered[cause{name, class}]), name, class)
		}
	}
}

func states() []v1beta1.HostState {
	return []v1beta1.HostState{
		v1beta1.HostPending, v1beta1.HostAvailable, v1beta1.HostClaimed, v1beta1.HostInUse,
		v1beta1.HostUnhealthy, v1beta1.HostLeaving, v1beta1.HostMaintenance,
	}
}
