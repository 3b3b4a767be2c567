package membership_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

type some []*v1beta1.SSHHost

func (s some) Range(see func(*v1beta1.SSHHost)) {
	for _, h := range s {
		see(h)
	}
}

func believes(root, allowlist int64) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{}
	h.Status.Trust = &v1beta1.HostTrust{RootVersion: root, RootDigest: "sha256:root", AllowlistVersion: allowlist, AllowlistDigest: "sha256:list"}
	return h
}

func TestDocumentsThatDoNotReachHostsAreCounted(t *testing.T) {
	raw := &v1beta1.SSHHost{}
	raw.Spec.ExecMode = v1beta1.ExecModeRaw
	other := believes(3, 5)
	other.Status.Trust.AllowlistDigest = "sha256:another of that version"
	hosts := some{believes(3, 5), believes(2, 5), believes(3, 4), other, {}, raw}
	newest := dispatch.Versions{Root: 3, Allowlist: 5, RootDigest: "sha256:root", AllowlistDigest: "sha256:list", RootExpires: time.Unix(2000, 0), AllowlistExpires: time.Unix(1000, 0)}
	var missing error
	c := membership.NewTrustCollector(hosts, func() (dispatch.Versions, error) { return newest, missing })
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	want := map[string]float64{
		"kpssh_pool_hosts_behind allowlist": 3, "kpssh_pool_hosts_behind root": 2,
		"kpssh_trust_expires_timestamp_seconds allowlist": 1000, "kpssh_trust_expires_timestamp_seconds root": 2000,
		"kpssh_trust_version allowlist": 5, "kpssh_trust_version root": 3,
	}
	if diff := cmp.Diff(want, gauges(t, registry)); diff != "" {
		t.Error(diff)
	}
	missing = errors.New("no ConfigMap")
	if got := gauges(t, registry); len(got) != 0 {
		t.Errorf("without documents there are %v", got)
	}
}

// gauges are the values of a registry by name and label.
func gauges(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			got[family.GetName()+" "+metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
		}
	}
	return got
}
