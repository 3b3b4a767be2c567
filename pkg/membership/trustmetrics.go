package membership

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
)

// TrustCollector says, when it is asked, which signed documents are published, until when they hold, and how many hosts
// do not have them: an attacker who keeps new documents from hosts, and an operator who forgets a date, both show.
type TrustCollector struct {
	hosts  Ranger
	newest func() (dispatch.Versions, error)

	version, expires, behind *prometheus.Desc
}

// Ranger goes through the hosts of the pool; pool.Inventory does.
type Ranger interface {
	Range(func(*v1beta1.SSHHost))
}

var _ prometheus.Collector = (*TrustCollector)(nil)

// NewTrustCollector makes the metrics kpssh_trust_version, kpssh_trust_expires_timestamp_seconds and
// kpssh_pool_hosts_behind. While there are no documents that verify, there are no values.
func NewTrustCollector(hosts Ranger, newest func() (dispatch.Versions, error)) *TrustCollector {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"document"}, nil)
	}
	return &TrustCollector{
		hosts: hosts, newest: newest,
		version: describe("kpssh_trust_version", "Version of the newest root document and allowlist that are published."),
		expires: describe("kpssh_trust_expires_timestamp_seconds", "When the newest root document and allowlist expire, in Unix time."),
		behind:  describe("kpssh_pool_hosts_behind", "Hosts that by their last word do not have the newest root document or allowlist."),
	}
}

// Describe implements prometheus.Collector.
func (c *TrustCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.version, c.expires, c.behind} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *TrustCollector) Collect(out chan<- prometheus.Metric) {
	newest, err := c.newest()
	if err != nil {
		return
	}
	var root, allowlist int
	c.hosts.Range(func(host *v1beta1.SSHHost) {
		if host.Raw() {
			return
		}
		noRoot, noAllowlist := Lacks(host.Status.Trust, newest)
		if noRoot {
			root++
		}
		if noAllowlist {
			allowlist++
		}
	})
	gauge := func(d *prometheus.Desc, value float64, document string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, document)
	}
	gauge(c.version, float64(newest.Root), "root")
	gauge(c.version, float64(newest.Allowlist), "allowlist")
	gauge(c.expires, float64(newest.RootExpires.Unix()), "root")
	gauge(c.expires, float64(newest.AllowlistExpires.Unix()), "allowlist")
	gauge(c.behind, float64(root), "root")
	gauge(c.behind, float64(allowlist), "allowlist")
}

// Lacks says which of the newest documents a host does not have by its last word; nil is none. A root that is newer than
// ours is not lacking.
func Lacks(has *v1beta1.HostTrust, newest dispatch.Versions) (root, allowlist bool) {
	if has == nil {
		return true, true
	}
	return has.RootVersion < newest.Root || has.RootVersion == newest.Root && has.RootDigest != newest.RootDigest,
		has.AllowlistVersion != newest.Allowlist || has.AllowlistDigest != newest.AllowlistDigest
}
