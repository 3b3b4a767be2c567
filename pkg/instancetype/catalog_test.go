package instancetype_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const namespace = "kpssh-system"

type change = func(*v1beta1.SSHHost)

func newHost(name, class, arch, cpu, memory string, changes ...change) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec: v1beta1.SSHHostSpec{Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}},
		Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: arch},
	}
	if class != "" {
		h.Labels = map[string]string{apis.LabelHostClass: class}
	}
	for _, c := range changes {
		c(h)
	}
	return h
}

func in(state v1beta1.HostState) change {
	return func(h *v1beta1.SSHHost) { h.Status.State = state }
}

func zone(z string) change {
	return func(h *v1beta1.SSHHost) { metav1.SetMetaDataLabel(&h.ObjectMeta, corev1.LabelTopologyZone, z) }
}

func gpu(n string) change {
	return func(h *v1beta1.SSHHost) { h.Spec.Capacity["nvidia.com/gpu"] = resource.MustParse(n) }
}

func failing(check string) change {
	return func(h *v1beta1.SSHHost) { h.Status.Preflight = []v1beta1.PreflightFinding{{Check: check}} }
}

func newClass(changes ...func(*v1beta1.SSHNodeClass)) *v1beta1.SSHNodeClass {
	c := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "class", UID: "uid-class", Generation: 1}}
	for _, change := range changes {
		change(c)
	}
	return c
}

func catalogOf(hosts ...*v1beta1.SSHHost) (*instancetype.Catalog, *pool.Inventory) {
	inventory := pool.NewInventory(namespace, instancetype.Shape)
	for _, h := range hosts {
		inventory.OnAdd(h, true)
	}
	inventory.MarkSynced()
	return instancetype.NewCatalog(inventory), inventory
}

// described is what is published, as "name [zone+ zone-] cpu memory price", where + is an available offering.
func described(t *testing.T, types *instancetype.Types) []string {
	t.Helper()
	hash := regexp.MustCompile(`-[0-9a-f]{6}$`)
	var out []string
	for _, it := range types.All() {
		var zones []string
		price := ""
		for _, o := range it.Offerings {
			zones = append(zones, o.Zone()+map[bool]string{true: "+", false: "-"}[o.Available])
			price = fmt.Sprintf("%.2f", o.Price)
		}
		out = append(out, fmt.Sprintf("%s %v %s %s %s", hash.ReplaceAllString(it.Name, ""), zones, it.Capacity.Cpu(), it.Capacity.Memory(), price))
	}
	return out
}

func TestTypes(t *testing.T) {
	for name, tc := range map[string]struct {
		hosts []*v1beta1.SSHHost
		class func(*v1beta1.SSHNodeClass)
		want  []string
	}{
		"equal hosts are one type with the name of their class": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "amd64", "8", "32Gi"), newHost("b", "big", "amd64", "8000m", "32768Mi")},
			want:  []string{"big [pool+] 8 32Gi 0.16", "big-8c-32Gi-amd64 [pool-] 8 32Gi 0.16"},
		},
		"a host without a class is of class default": {
			hosts: []*v1beta1.SSHHost{newHost("a", "", "arm64", "4", "8Gi")},
			want:  []string{"default [pool+] 4 8Gi 0.08", "default-4c-8Gi-arm64 [pool-] 4 8Gi 0.08"},
		},
		"the odd one out is a type beside the class's": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "amd64", "8", "32Gi"), newHost("b", "big", "amd64", "8", "32Gi"), newHost("c", "big", "amd64", "4", "16Gi")},
			want:  []string{"big [pool+] 8 32Gi 0.16", "big-4c-16Gi-amd64 [pool+] 4 16Gi 0.08", "big-8c-32Gi-amd64 [pool-] 8 32Gi 0.16"},
		},
		"another architecture is another type": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "arm64", "8", "32Gi"), newHost("b", "big", "arm64", "8", "32Gi"), newHost("c", "big", "amd64", "8", "32Gi")},
			want:  []string{"big [pool+] 8 32Gi 0.16", "big-8c-32Gi-amd64 [pool+] 8 32Gi 0.16", "big-8c-32Gi-arm64 [pool-] 8 32Gi 0.16"},
		},
		"another extended resource is another type": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "amd64", "8", "32Gi"), newHost("b", "big", "amd64", "8", "32Gi"), newHost("c", "big", "amd64", "8", "32Gi", gpu("1"))},
			want:  []string{"big [pool+] 8 32Gi 0.16", "big-8c-32Gi-amd64 [pool-] 8 32Gi 0.16", "big-8c-32Gi-amd64 [pool+] 8 32Gi 0.16"},
		},
		"hosts that cannot be claimed make a type unavailable and not absent": {
			hosts: []*v1beta1.SSHHost{
				newHost("a", "a", "amd64", "8", "32Gi", in(v1beta1.HostInUse)), newHost("b", "b", "amd64", "8", "32Gi", in(v1beta1.HostUnhealthy)),
				newHost("c", "c", "amd64", "8", "32Gi", in(v1beta1.HostMaintenance)), newHost("d", "d", "amd64", "8", "32Gi", in(v1beta1.HostPending)),
				newHost("e", "e", "amd64", "8", "32Gi", func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{apis.AnnotationMaintenance: ""} }),
			},
			want: []string{
				"a [pool-] 8 32Gi 0.16", "a-8c-32Gi-amd64 [pool-] 8 32Gi 0.16", "b [pool-] 8 32Gi 0.16", "b-8c-32Gi-amd64 [pool-] 8 32Gi 0.16",
				"c [pool-] 8 32Gi 0.16", "c-8c-32Gi-amd64 [pool-] 8 32Gi 0.16", "d [pool-] 8 32Gi 0.16", "d-8c-32Gi-amd64 [pool-] 8 32Gi 0.16",
				"e [pool-] 8 32Gi 0.16", "e-8c-32Gi-amd64 [pool-] 8 32Gi 0.16",
			},
		},
		"hosts that were never probed stand for both architectures": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "", "8", "32Gi", in(""))},
			want:  []string{"big [pool-] 8 32Gi 0.16", "big-8c-32Gi-amd64 [pool-] 8 32Gi 0.16", "big-8c-32Gi-arm64 [pool-] 8 32Gi 0.16"},
		},
		"or for those of their class, where they are known": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "arm64", "8", "32Gi"), newHost("b", "big", "", "4", "16Gi", in(""))},
			want:  []string{"big [pool+] 8 32Gi 0.16", "big-4c-16Gi-arm64 [pool-] 4 16Gi 0.08", "big-8c-32Gi-arm64 [pool-] 8 32Gi 0.16"},
		},
		"a zone is an offering, available where a host is free": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "amd64", "8", "32Gi", zone("x")), newHost("b", "big", "amd64", "8", "32Gi", zone("y"), in(v1beta1.HostInUse))},
			want:  []string{"big [x+ y-] 8 32Gi 0.16", "big-8c-32Gi-amd64 [x- y-] 8 32Gi 0.16"},
		},
		"hosts that fail a check of preflight are not available, but for a class that ignores it": {
			hosts: []*v1beta1.SSHHost{newHost("a", "a", "amd64", "8", "32Gi", failing("SwapOn")), newHost("b", "b", "amd64", "8", "32Gi", failing("CgroupV1"))},
			class: func(c *v1beta1.SSHNodeClass) { c.Spec.IgnoredPreflightChecks = []string{"SwapOn"} },
			want:  []string{"a [pool+] 8 32Gi 0.16", "a-8c-32Gi-amd64 [pool-] 8 32Gi 0.16", "b [pool-] 8 32Gi 0.16", "b-8c-32Gi-amd64 [pool-] 8 32Gi 0.16"},
		},
		"another page size is another type (static-web-server#440, R88)": {
			hosts: []*v1beta1.SSHHost{newHost("a", "pi", "arm64", "4", "8Gi"), newHost("b", "pi", "arm64", "4", "8Gi"), newHost("c", "pi", "arm64", "4", "8Gi", func(h *v1beta1.SSHHost) { h.Status.ObservedPageSize = 16384 })},
			want:  []string{"pi [pool+] 4 8Gi 0.08", "pi-4c-8Gi-arm64 [pool-] 4 8Gi 0.08", "pi-4c-8Gi-arm64-16k [pool+] 4 8Gi 0.08"},
		},
		"the selector keeps hosts out": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "amd64", "8", "32Gi"), newHost("b", "small", "amd64", "2", "4Gi")},
			class: func(c *v1beta1.SSHNodeClass) {
				c.Spec.HostSelector.MatchLabels = map[string]string{apis.LabelHostClass: "small"}
			},
			want: []string{"small [pool+] 2 4Gi 0.04", "small-2c-4Gi-amd64 [pool-] 2 4Gi 0.04"},
		},
		"the price is the class's for each vCPU": {
			hosts: []*v1beta1.SSHHost{newHost("a", "big", "amd64", "1500m", "3000Ki")},
			class: func(c *v1beta1.SSHNodeClass) { c.Spec.PricePerCPUHour = "2" },
			want:  []string{"big [pool+] 1500m 3000Ki 3.00", "big-1500mc-3000Ki-amd64 [pool-] 1500m 3000Ki 3.00"},
		},
		"no hosts are no types": {},
	} {
		t.Run(name, func(t *testing.T) {
			catalog, _ := catalogOf(tc.hosts...)
			class := newClass()
			if tc.class != nil {
				tc.class(class)
			}
			types, err := catalog.For(class)
			if err != nil {
				t.Fatal(err)
			}
			got := described(t, types)
			// Hashes, which decide the order of equal names, say nothing to a reader.
			slices.Sort(got)
			slices.Sort(tc.want)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestATypeIsWhatCoreAsksFor(t *testing.T) {
	catalog, _ := catalogOf(newHost("a", "big", "arm64", "8", "32Gi", gpu("2")))
	types, err := catalog.For(newClass(func(c *v1beta1.SSHNodeClass) {
		c.Spec.MaxPods = 50
		c.Spec.KubeReserved = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), "pid": resource.MustParse("100")}
	}))
	if err != nil {
		t.Fatal(err)
	}
	it := types.All()[0]
	for key, want := range map[string]string{
		corev1.LabelInstanceTypeStable: "big", corev1.LabelArchStable: "arm64", corev1.LabelOSStable: "linux",
		corev1.LabelTopologyZone: "pool", karpv1.CapacityTypeLabelKey: "on-demand", apis.LabelHostClass: "big",
		apis.LabelPageSize: "4096",
	} {
		if got := it.Requirements.Get(key).Values(); !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %v, want %s", key, got, want)
		}
	}
	want := map[corev1.ResourceName]string{corev1.ResourceCPU: "7500m", corev1.ResourceMemory: "32Gi", corev1.ResourcePods: "50", "nvidia.com/gpu": "2"}
	got := map[corev1.ResourceName]string{}
	for name, quantity := range it.Allocatable() {
		got[name] = quantity.String()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	defaults, err := catalog.For(newClass(func(c *v1beta1.SSHNodeClass) { c.Generation = 2 }))
	if err != nil {
		t.Fatal(err)
	}
	if free := defaults.All()[0].Allocatable(); free.Cpu().String() != "7920m" || free.Pods().Value() != 110 {
		t.Errorf("by default: %v", free)
	}
}

// Core calls a node drifted whose type is gone or has no offering for its labels, available or not.
func TestNoChangeOfHostsMakesANodeDrift(t *testing.T) {
	first := newHost("a", "big", "amd64", "8", "32Gi", in(v1beta1.HostInUse))
	fleet := func(more ...*v1beta1.SSHHost) []*v1beta1.SSHHost { return append([]*v1beta1.SSHHost{first}, more...) }
	for name, later := range map[string][]*v1beta1.SSHHost{
		"nothing happened":               fleet(),
		"it was parked":                  {newHost("a", "big", "amd64", "8", "32Gi", in(v1beta1.HostMaintenance))},
		"its architecture was forgotten": {newHost("a", "big", "", "8", "32Gi", in(v1beta1.HostInUse))},
		"others of another size came":    fleet(newHost("b", "big", "amd64", "4", "16Gi"), newHost("c", "big", "amd64", "4", "16Gi")),
		"others of another arch came":    fleet(newHost("b", "big", "arm64", "8", "32Gi"), newHost("c", "big", "arm64", "8", "32Gi")),
		"others of another zone came":    fleet(newHost("b", "big", "amd64", "8", "32Gi", zone("z"))),
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := catalogOf(first)
			types, err := before.For(newClass())
			if err != nil {
				t.Fatal(err)
			}
			labels := scheduling.NewLabelRequirements(map[string]string{
				corev1.LabelInstanceTypeStable: types.NameOf(instancetype.Shape(first)), corev1.LabelTopologyZone: "pool",
				karpv1.CapacityTypeLabelKey: "on-demand", corev1.LabelArchStable: "amd64", apis.LabelHostClass: "big",
			})
			after, _ := catalogOf(later...)
			types, err = after.For(newClass())
			if err != nil {
				t.Fatal(err)
			}
			found := slices.ContainsFunc(types.All(), func(it *cloudprovider.InstanceType) bool {
				return labels.Get(corev1.LabelInstanceTypeStable).Has(it.Name) && it.Offerings.HasCompatible(labels)
			})
			if !found {
				t.Errorf("no type for %v in %v", labels, described(t, types))
			}
		})
	}
}

func TestNamesAreLabelValuesAndTellShapesApart(t *testing.T) {
	long := strings.Repeat("x", 63)
	names := map[string]string{}
	for what, h := range map[string]*v1beta1.SSHHost{
		"one": newHost("a", long, "amd64", "8", "32Gi"), "another arch": newHost("a", long, "arm64", "8", "32Gi"),
		"another size": newHost("a", long, "amd64", "8", "32Gi", gpu("1")), "another class": newHost("a", long[:62]+"y", "amd64", "8", "32Gi"),
		"odd sizes": newHost("a", "c", "amd64", "123456789m", "12345678901"),
	} {
		name := instancetype.Shape(h)
		if problems := validation.IsValidLabelValue(name); problems != nil {
			t.Errorf("%s: %q: %v", what, name, problems)
		}
		if other, taken := names[name]; taken {
			t.Errorf("%s and %s are both %q", what, other, name)
		}
		names[name] = what
	}
	same := []*v1beta1.SSHHost{newHost("a", "c", "amd64", "1", "1Gi"), newHost("b", "c", "amd64", "1000m", "1048576Ki"), newHost("c", "c", "amd64", "1.0", "1073741824")}
	for _, h := range same {
		if instancetype.Shape(h) != instancetype.Shape(same[0]) {
			t.Errorf("%v and %v are %q and %q", h.Spec.Capacity, same[0].Spec.Capacity, instancetype.Shape(h), instancetype.Shape(same[0]))
		}
	}
}

func TestTypesAreMadeAgainOnlyWhenSomethingChanged(t *testing.T) {
	host := newHost("a", "big", "amd64", "8", "32Gi")
	catalog, inventory := catalogOf(host)
	class := newClass()
	get := func() *instancetype.Types {
		t.Helper()
		types, err := catalog.For(class)
		if err != nil {
			t.Fatal(err)
		}
		return types
	}
	first := get()
	probed := host.DeepCopy()
	probed.ResourceVersion, probed.Status.LastProbeTime = "2", &metav1.Time{Time: time.Unix(1, 0)}
	inventory.OnUpdate(host, probed)
	if get() != first {
		t.Error("made again after a probe")
	}
	claimed := host.DeepCopy()
	claimed.ResourceVersion, claimed.Status.State = "3", v1beta1.HostClaimed
	inventory.OnUpdate(probed, claimed)
	second := get()
	if second == first || second.All()[0].Offerings[0].Available {
		t.Error("not made again after a claim")
	}
	known := func() *instancetype.Types {
		t.Helper()
		types, err := catalog.Known(class)
		if err != nil {
			t.Fatal(err)
		}
		return types
	}
	released := host.DeepCopy()
	released.ResourceVersion = "4"
	inventory.OnUpdate(claimed, released)
	if known() != second {
		t.Error("made again for a claim, which does not ask what is available")
	}
	if !get().All()[0].Offerings[0].Available {
		t.Error("not made again after a release")
	}
	larger := newHost("b", "big", "amd64", "16", "64Gi")
	inventory.OnAdd(larger, false)
	if got := known(); got.Hosts() != 2 || got != get() {
		t.Error("not made again for a claim after another host came")
	}
	inventory.OnDelete(larger)
	if known().Hosts() != 1 {
		t.Error("not made again for a claim after a host went")
	}
	second = get()
	class = newClass(func(c *v1beta1.SSHNodeClass) { c.Generation, c.Spec.MaxPods = 2, 5 })
	if third := get(); third == second || third.All()[0].Capacity.Pods().Value() != 5 {
		t.Error("not made again after an edit of the class")
	}
	mine := get().All()
	mine[0] = nil
	if get().All()[0] == nil {
		t.Error("callers share a slice")
	}
}

func TestNothingIsSaidThatMayBeWrong(t *testing.T) {
	catalog := instancetype.NewCatalog(pool.NewInventory(namespace, instancetype.Shape))
	if _, err := catalog.For(newClass()); !errors.Is(err, pool.ErrCold) {
		t.Errorf("cold: %v", err)
	}
	catalog, _ = catalogOf()
	for what, change := range map[string]func(*v1beta1.SSHNodeClass){
		"pricePerCPUHour": func(c *v1beta1.SSHNodeClass) { c.Spec.PricePerCPUHour = "cheap" },
		"hostSelector": func(c *v1beta1.SSHNodeClass) {
			c.Spec.HostSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Maybe"}}
		},
	} {
		if _, err := catalog.For(newClass(change)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func BenchmarkUnchanged(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprint(n, " hosts in 50 classes"), func(b *testing.B) {
			catalog, inventory := catalogOf()
			for i := range n {
				inventory.OnAdd(newHost(fmt.Sprint("host-", i), fmt.Sprint("class-", i%50), "amd64", "8", "32Gi"), true)
			}
			class := newClass()
			for b.Loop() {
				types, err := catalog.For(class)
				if err != nil || len(types.All()) != 100 {
					b.Fatal(err)
				}
			}
		})
	}
}
