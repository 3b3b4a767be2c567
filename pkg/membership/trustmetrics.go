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

	valid, version, expires, behind *prometheus.Desc
}

// Ranger goes through the hosts of the pool; pool.Inventory does.
type Ranger interface {
	Range(func(*v1beta1.SSHHost))
}

var _ prometheus.Collector = (*TrustCollector)(nil)

// Values of the label document.
const (
	documentRoot        = "root"
	documentAllowlist   = "allowlist"
	documentDispatchKey = "dispatch-key"
)

// NewTrustCollector makes the metrics kpssh_trust_document_valid, kpssh_trust_version,
// kpssh_trust_expires_timestamp_seconds and kpssh_pool_hosts_behind. The first always has a value for each document, the
// others have one for those that are valid. Newest may return what is valid beside an error.
func NewTrustCollector(hosts Ranger, newest func() (dispatch.Versions, error)) *TrustCollector {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"document"}, nil)
	}
	return &TrustCollector{
		hosts: hosts, newest: newest,
		valid: describe("kpssh_trust_document_valid",
			"1 when the published document verifies, also after it has expired, else 0. The dispatch key is valid when the newest root lists it."),
		version: describe("kpssh_trust_version", "Version of the newest root document and allowlist that are published."),
		expires: describe("kpssh_trust_expires_timestamp_seconds",
			"When the newest document expires, in Unix time. The dispatch key has no date of its own: it counts for as long as the newest root, which lists it."),
		behind: describe("kpssh_pool_hosts_behind", "Hosts that by their last word do not have the newest root document or allowlist."),
	}
}

// Describe implements prometheus.Collector.
func (c *TrustCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.valid, c.version, c.expires, c.behind} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *TrustCollector) Collect(out chan<- prometheus.Metric) {
	newest, err := c.newest()
	rootHolds, allowlistHolds := newest.Root > 0, err == nil
	gauge := func(d *prometheus.Desc, value float64, document string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, document)
	}
	valid := func(document string, holds bool) {
		var value float64
		if holds {
			value = 1
		}
		gauge(c.valid, value, document)
	}
	valid(documentRoot, rootHolds)
	valid(documentAllowlist, allowlistHolds)
	valid(documentDispatchKey, newest.DispatchKeyListed)
	rootBehind, allowlistBehind := c.countBehind(newest)
	if rootHolds {
		gauge(c.version, float64(newest.Root), documentRoot)
		gauge(c.expires, float64(newest.RootExpires.Unix()), documentRoot)
		gauge(c.behind, float64(rootBehind), documentRoot)
	}
	if newest.DispatchKeyListed {
		gauge(c.expires, float64(newest.RootExpires.Unix()), documentDispatchKey)
	}
	if allowlistHolds {
		gauge(c.version, float64(newest.Allowlist), documentAllowlist)
		gauge(c.expires, float64(newest.AllowlistExpires.Unix()), documentAllowlist)
		gauge(c.behind, float64(allowlistBehind), documentAllowlist)
	}
}

// countBehind counts the hosts that lack the newest root and allowlist.
func (c *TrustCollector) countBehind(newest dispatch.Versions) (root, allowlist int) {
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
	return root, allowlist
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
