package pool_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func TestHostsAreCountedByStateAndClass(t *testing.T) {
	big := labelled(apis.LabelHostClass, "big")
	w := newWorld(t, newHost("a", big), newHost("b", big, inState(v1beta1.HostInUse)), newHost("c", inState("")),
		newHost("d", big, inState(v1beta1.HostUnhealthy), failedLately, owed, func(h *v1beta1.SSHHost) {
			h.Status.Conditions = append(h.Status.Conditions, condition(v1beta1.ConditionQuarantined))
		}),
		newHost("e", big, inState(v1beta1.HostInUse), owed)) // in Raw mode: nothing is owed before its claim has ended
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(pool.NewCollector(w.inventory))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got, zeros := map[string]float64{}, 0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			key := family.GetName()
			for _, label := range metric.GetLabel() {
				key += "," + label.GetName() + "=" + label.GetValue()
			}
			if value := metric.GetGauge().GetValue(); value != 0 {
				got[key] = value
			} else {
				zeros++
			}
		}
	}
	want := map[string]float64{
		"kpssh_pool_hosts,class=big,state=Available": 1,
		"kpssh_pool_hosts,class=big,state=InUse":     2,
		"kpssh_pool_hosts,class=big,state=Unhealthy": 1,

		"kpssh_pool_hindered_hosts,cause=failing,class=big":     1,
		"kpssh_pool_hindered_hosts,cause=quarantined,class=big": 1,
		"kpssh_pool_hindered_hosts,cause=leave_owed,class=big":  1,

		"kpssh_pool_hosts,class=default,state=Pending": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" || zeros != 13 {
		t.Errorf("%d zeros; %s", zeros, diff)
	}
}
