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
	newest := dispatch.Versions{
		Root: 3, Allowlist: 5, RootDigest: "sha256:root", AllowlistDigest: "sha256:list",
		RootExpires: time.Unix(2000, 0), AllowlistExpires: time.Unix(1000, 0), DispatchKeyListed: true,
	}
	noList := errors.New("no allowlist that verifies")
	ofRoot := dispatch.Versions{Root: 3, RootDigest: "sha256:root", RootExpires: time.Unix(2000, 0)}
	for name, test := range map[string]struct {
		newest dispatch.Versions
		err    error
		want   map[string]float64
	}{
		"all is well": {newest: newest, want: map[string]float64{
			"kpssh_pool_hosts_behind allowlist": 3, "kpssh_pool_hosts_behind root": 2,
			"kpssh_trust_document_valid allowlist": 1, "kpssh_trust_document_valid dispatch-key": 1, "kpssh_trust_document_valid root": 1,
			"kpssh_trust_expires_timestamp_seconds allowlist": 1000, "kpssh_trust_expires_timestamp_seconds dispatch-key": 2000,
			"kpssh_trust_expires_timestamp_seconds root": 2000,
			"kpssh_trust_version allowlist":              5, "kpssh_trust_version root": 3,
		}},
		"the root alone verifies, and does not list the dispatch key": {newest: ofRoot, err: noList, want: map[string]float64{
			"kpssh_pool_hosts_behind root":         2,
			"kpssh_trust_document_valid allowlist": 0, "kpssh_trust_document_valid dispatch-key": 0, "kpssh_trust_document_valid root": 1,
			"kpssh_trust_expires_timestamp_seconds root": 2000,
			"kpssh_trust_version root":                   3,
		}},
		"there is nothing": {err: noList, want: map[string]float64{
			"kpssh_trust_document_valid allowlist": 0, "kpssh_trust_document_valid dispatch-key": 0, "kpssh_trust_document_valid root": 0,
		}},
	} {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(membership.NewTrustCollector(hosts, func() (dispatch.Versions, error) { return test.newest, test.err }))
		if diff := cmp.Diff(test.want, gauges(t, registry)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
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
