package cloudprovider_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func TestCreateReturnsWhatCoreCopies(t *testing.T) {
	w := newWorld(t, newClass(), newProfile(), newHost("a", zone("z1")))
	nc := newNodeClaim()
	created, err := w.provider.Create(context.Background(), nc)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{
		corev1.LabelInstanceTypeStable: "big", corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		corev1.LabelTopologyZone: "z1", karpv1.CapacityTypeLabelKey: "on-demand", apis.LabelHostClass: "big",
	}
	if diff := cmp.Diff(labels, created.Labels); diff != "" {
		t.Error(diff)
	}
	annotations := map[string]string{
		"karpenter.dklesev.github.io/nodeclass-hash": newClass().Hash(), "karpenter.dklesev.github.io/nodeclass-hash-version": "v1",
	}
	if diff := cmp.Diff(annotations, created.Annotations); diff != "" {
		t.Error(diff)
	}
	got := fmt.Sprint(created.Status.ProviderID, " ", created.Status.Capacity.Cpu(), " ", created.Status.Allocatable.Cpu(), " ",
		created.Status.Capacity.Pods(), " ", created.Status.Allocatable.Memory())
	if want := "kpssh://kpssh-system/a 8 7920m 110 32468Mi"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	again, err := w.provider.Create(context.Background(), nc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(created, again); diff != "" {
		t.Errorf("a second Create differs: %s", diff)
	}
}

func TestCreateTakesTheCheapestHostThatSuits(t *testing.T) {
	small, big := newHost("small", ofClass("small", "2")), newHost("big", ofClass("big", "16"))
	for name, tc := range map[string]struct {
		hosts []*v1beta1.SSHHost
		claim []func(*karpv1.NodeClaim)
		want  string // empty: InsufficientCapacity
	}{
		"the cheapest":                         {hosts: []*v1beta1.SSHHost{small, big}, want: "small"},
		"the cheapest that is large enough":    {hosts: []*v1beta1.SSHHost{small, big}, claim: []func(*karpv1.NodeClaim){requests("3")}, want: "big"},
		"reserved CPU is not for pods":         {hosts: []*v1beta1.SSHHost{small}, claim: []func(*karpv1.NodeClaim){requests("2")}},
		"the instance type asked for":          {hosts: []*v1beta1.SSHHost{small, big}, claim: []func(*karpv1.NodeClaim){requires(corev1.LabelInstanceTypeStable, "big")}, want: "big"},
		"the host class asked for":             {hosts: []*v1beta1.SSHHost{small, big}, claim: []func(*karpv1.NodeClaim){requires(apis.LabelHostClass, "big")}, want: "big"},
		"the architecture asked for":           {hosts: []*v1beta1.SSHHost{small, newHost("pi", ofClass("pi", "4"), arm)}, claim: []func(*karpv1.NodeClaim){requires(corev1.LabelArchStable, "arm64")}, want: "pi"},
		"the zone asked for":                   {hosts: []*v1beta1.SSHHost{small, newHost("far", ofClass("small", "2"), zone("far"))}, claim: []func(*karpv1.NodeClaim){requires(corev1.LabelTopologyZone, "far")}, want: "far"},
		"a zone without a free host":           {hosts: []*v1beta1.SSHHost{small}, claim: []func(*karpv1.NodeClaim){requires(corev1.LabelTopologyZone, "far")}},
		"spot does not exist here":             {hosts: []*v1beta1.SSHHost{small}, claim: []func(*karpv1.NodeClaim){requires(karpv1.CapacityTypeLabelKey, "spot")}},
		"labels of the NodePool keep none out": {hosts: []*v1beta1.SSHHost{small}, claim: []func(*karpv1.NodeClaim){requires("team", "a"), requires(karpv1.NodePoolLabelKey, "np")}, want: "small"},
		"a name that is an alias": {
			hosts: []*v1beta1.SSHHost{small}, claim: []func(*karpv1.NodeClaim){requires(corev1.LabelInstanceTypeStable, instancetype.Shape(small))},
		},
		"no host at all":                            {},
		"one that passes preflight":                 {hosts: []*v1beta1.SSHHost{newHost("bad", ofClass("small", "2"), failing("SwapOn")), big}, want: "big"},
		"one whose failing check the class ignores": {hosts: []*v1beta1.SSHHost{newHost("old", ofClass("small", "2"), failing("CgroupV1")), big}, want: "old"},
		"the page size asked for (static-web-server#440, R88)": {hosts: []*v1beta1.SSHHost{newHost("pi5", ofClass("small", "2"), func(h *v1beta1.SSHHost) { h.Status.ObservedPageSize = 16384 }), big},
			claim: []func(*karpv1.NodeClaim){requires(apis.LabelPageSize, "4096")}, want: "big"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{newClass(func(c *v1beta1.SSHNodeClass) { c.Spec.IgnoredPreflightChecks = []string{"CgroupV1"} }), newProfile()}
			for _, h := range tc.hosts {
				objects = append(objects, h.DeepCopy())
			}
			w := newWorld(t, objects...)
			created, err := w.provider.Create(context.Background(), newNodeClaim(tc.claim...))
			if tc.want == "" {
				if !corecloud.IsInsufficientCapacityError(err) {
					t.Errorf("got %v, %v", created, err)
				}
				return
			}
			if err != nil || created.Status.ProviderID != "kpssh://kpssh-system/"+tc.want {
				t.Errorf("got %v, %v; want %s", created, err, tc.want)
			}
		})
	}
}

func TestCreateKeepsAwayFromWhatIsPreparedForAnother(t *testing.T) {
	preparing := func(marker string) func(*v1beta1.SSHHost) {
		return func(h *v1beta1.SSHHost) {
			h.Status.Conditions = append(h.Status.Conditions, status.Condition{
				Type: v1beta1.ConditionPreparing, Status: metav1.ConditionTrue, Reason: "Installing", Message: marker})
		}
	}
	for name, tc := range map[string]struct {
		hosts []*v1beta1.SSHHost
		want  string
	}{
		"while there is another": {hosts: []*v1beta1.SSHHost{newHost("a", preparing("other@1")), newHost("b")}, want: "b"},
		"even if it costs more": {
			hosts: []*v1beta1.SSHHost{newHost("a", ofClass("small", "2"), preparing("other@1")), newHost("b")}, want: "b",
		},
		"but takes it when there is no other":    {hosts: []*v1beta1.SSHHost{newHost("a", preparing("other@1"))}, want: "a"},
		"and takes what is prepared for itself":  {hosts: []*v1beta1.SSHHost{newHost("a", preparing("other@1")), newHost("b", preparing("tls-bootstrap@3"))}, want: "b"},
		"and before all what is prepared by now": {hosts: []*v1beta1.SSHHost{newHost("a"), newHost("b", func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "tls-bootstrap@3" })}, want: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{newClass(), newProfile()}
			for _, h := range tc.hosts {
				objects = append(objects, h)
			}
			created, err := newWorld(t, objects...).provider.Create(context.Background(), newNodeClaim())
			if err != nil || created.Status.ProviderID != "kpssh://kpssh-system/"+tc.want {
				t.Errorf("got %v, %v; want %s", created, err, tc.want)
			}
		})
	}
}

func failing(check string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) { h.Status.Preflight = []v1beta1.PreflightFinding{{Check: check}} }
}

func TestTheNodeOfAHostIsLabelledWithItsPageSize(t *testing.T) {
	w := newWorld(t, newClass(), newProfile(), newHost("pi5", arm, func(h *v1beta1.SSHHost) { h.Status.ObservedPageSize = 16384 }))
	created, err := w.provider.Create(context.Background(), newNodeClaim())
	if err != nil || created.Labels[apis.LabelPageSize] != "16384" {
		t.Errorf("got %v, %v", created, err)
	}
}

func TestCreateTakesTheCheapestHostThatIsFreeByNow(t *testing.T) {
	ctx := context.Background()
	small := newHost("small", ofClass("small", "2"), func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostUnhealthy })
	w := newWorld(t, newClass(), newProfile(), small, newHost("big-1", ofClass("big", "16")), newHost("big-2", ofClass("big", "16")))
	create := func(name string) string {
		t.Helper()
		created, err := w.provider.Create(ctx, newNodeClaim(func(nc *karpv1.NodeClaim) { nc.Name, nc.UID = name, types.UID(name) }))
		if err != nil {
			t.Fatal(err)
		}
		return created.Labels[apis.LabelHostClass]
	}
	if got := create("one"); got != "big" {
		t.Errorf("took a host of class %q, and the small one was not free", got)
	}
	if _, err := w.pool.RecordProbe(ctx, w.stored("small"), pool.Probe{}); err != nil {
		t.Fatal(err)
	}
	if got := create("two"); got != "small" {
		t.Errorf("took a host of class %q, and the small one had become free", got)
	}
	if got := create("three"); got != "big" {
		t.Errorf("took a host of class %q, and the small one was taken", got)
	}
}

func TestCreateAnswersWithCoresErrors(t *testing.T) {
	notReady := corecloud.IsNodeClassNotReadyError
	createError := func(reason string) func(error) bool {
		return func(err error) bool {
			var ce *corecloud.CreateError
			return errors.As(err, &ce) && ce.ConditionReason == reason && ce.ConditionMessage != "" &&
				!corecloud.IsInsufficientCapacityError(err) && !corecloud.IsNodeClassNotReadyError(err)
		}
	}
	ready := func(s metav1.ConditionStatus) func(*v1beta1.SSHNodeClass) {
		return func(c *v1beta1.SSHNodeClass) { c.Status.Conditions[0].Status = s }
	}
	failing := func(kind string) interceptor.Funcs {
		return interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if strings.HasSuffix(fmt.Sprintf("%T", obj), kind) {
				return errors.New("connection refused")
			}
			return c.Get(ctx, key, obj, opts...)
		}}
	}
	conflict := interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
		return apierrors.NewConflict(v1beta1.GroupVersion.WithResource("sshhosts").GroupResource(), "a", errors.New("changed"))
	}}
	broken := interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
		return errors.New("connection refused")
	}}
	host := newHost("a")
	for name, tc := range map[string]struct {
		objects []client.Object
		faults  interceptor.Funcs
		claim   func(*karpv1.NodeClaim)
		cold    bool
		want    func(error) bool
	}{
		"no host is free":                     {objects: []client.Object{newClass(), newProfile()}, want: corecloud.IsInsufficientCapacityError},
		"the class does not exist":            {objects: []client.Object{newProfile(), host}, want: notReady},
		"the class is of another provider":    {objects: []client.Object{newClass(), newProfile(), host}, claim: func(nc *karpv1.NodeClaim) { nc.Spec.NodeClassRef.Kind = "EC2NodeClass" }, want: notReady},
		"the class is not ready":              {objects: []client.Object{newClass(ready(metav1.ConditionFalse)), newProfile(), host}, want: notReady},
		"the class was not looked at yet":     {objects: []client.Object{newClass(func(c *v1beta1.SSHNodeClass) { c.Status.Conditions = nil }), newProfile(), host}, want: createError(cloudprovider.ReasonNodeClassUnknown)},
		"nobody knows whether it is ready":    {objects: []client.Object{newClass(ready(metav1.ConditionUnknown)), newProfile(), host}, want: createError(cloudprovider.ReasonNodeClassUnknown)},
		"the profile does not exist":          {objects: []client.Object{newClass(), host}, want: notReady},
		"the class cannot be read":            {objects: []client.Object{newClass(), newProfile(), host}, faults: failing("SSHNodeClass"), want: createError(cloudprovider.ReasonNodeClassUnread)},
		"the profile cannot be read":          {objects: []client.Object{newClass(), newProfile(), host}, faults: failing("SSHJoinProfile"), want: createError(cloudprovider.ReasonNodeClassUnread)},
		"hosts change faster than one claims": {objects: []client.Object{newClass(), newProfile(), host}, faults: conflict, want: createError(cloudprovider.ReasonHostsContended)},
		"the API server does not answer":      {objects: []client.Object{newClass(), newProfile(), host}, faults: broken, want: createError(cloudprovider.ReasonClaimFailed)},
		"the cache is cold":                   {objects: []client.Object{newClass(), newProfile(), host}, cold: true, want: createError(cloudprovider.ReasonPoolCold)},
		"the class is being deleted": {
			objects: []client.Object{newClass(func(c *v1beta1.SSHNodeClass) {
				c.Finalizers, c.DeletionTimestamp = []string{apis.FinalizerTermination}, &metav1.Time{Time: metav1.Now().Time}
			}), newProfile(), host}, want: notReady,
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := make([]client.Object, 0, len(tc.objects))
			for _, o := range tc.objects {
				objects = append(objects, o.DeepCopyObject().(client.Object))
			}
			w := newWorldWith(t, tc.faults, objects...)
			if tc.cold {
				inventory := pool.NewInventory(namespace, instancetype.Shape)
				w.provider = cloudprovider.New(w.client, pool.New(w.client, w.client, inventory, pool.Options{Namespace: namespace}), instancetype.NewCatalog(inventory))
			}
			nc := newNodeClaim()
			if tc.claim != nil {
				tc.claim(nc)
			}
			created, err := w.provider.Create(context.Background(), nc)
			if !tc.want(err) {
				t.Errorf("got %v, %T: %v", created, err, err)
			}
		})
	}
}

func TestDeleteAsksForTheHostAndEndsWhenItIsReleased(t *testing.T) {
	ctx := context.Background()
	nc := newNodeClaim(func(nc *karpv1.NodeClaim) { nc.Status.ProviderID = "kpssh://kpssh-system/a" })
	w := newWorld(t, newHost("a", serving(nc)))
	for range 2 {
		if err := w.provider.Delete(ctx, nc); err != nil {
			t.Fatal(err)
		}
		if host := w.stored("a"); !pool.HasCondition(host, v1beta1.ConditionLeaveRequested) || host.Status.State != v1beta1.HostInUse {
			t.Fatalf("got %+v", host.Status)
		}
	}
	if _, err := w.pool.Release(ctx, w.stored("a"), pool.RefOf(nc), pool.Outcome{State: v1beta1.HostAvailable}); err != nil {
		t.Fatal(err)
	}
	if err := w.provider.Delete(ctx, nc); !corecloud.IsNodeClaimNotFoundError(err) {
		t.Errorf("got %v", err)
	}
}

func TestDeleteIsFenced(t *testing.T) {
	dead := newNodeClaim(func(nc *karpv1.NodeClaim) { nc.Status.ProviderID = "kpssh://kpssh-system/a" })
	successor := newNodeClaim(func(nc *karpv1.NodeClaim) { nc.Name, nc.UID = "successor", "uid-successor" })
	namesake := newNodeClaim(func(nc *karpv1.NodeClaim) { nc.UID = "uid-namesake" })
	for name, hosts := range map[string][]client.Object{
		"a successor holds the host":                  {newHost("a", serving(successor))},
		"a successor of the same name holds the host": {newHost("a", serving(namesake))},
		"the host is free":                            {newHost("a")},
		"the host is gone":                            {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hosts...)
			if err := w.provider.Delete(context.Background(), dead); !corecloud.IsNodeClaimNotFoundError(err) {
				t.Errorf("got %v", err)
			}
			for range hosts {
				if pool.HasCondition(w.stored("a"), v1beta1.ConditionLeaveRequested) {
					t.Error("the host was asked for all the same")
				}
			}
		})
	}
}

func TestDeleteFindsTheHostByTheClaimWhateverTheID(t *testing.T) {
	for name, id := range map[string]string{"no id": "", "the static id": "kpssh://kpssh-system/a", "the adopted id": "own:///1", "an id that leads nowhere": "own:///2"} {
		nc := newNodeClaim(func(nc *karpv1.NodeClaim) { nc.Status.ProviderID = id })
		w := newWorld(t, newHost("a", serving(nc, func(h *v1beta1.SSHHost) { h.Status.ProviderID = "own:///1" })))
		if err := w.provider.Delete(context.Background(), nc); err != nil || !pool.HasCondition(w.stored("a"), v1beta1.ConditionLeaveRequested) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeleteThatCannotAskIsTriedAgain(t *testing.T) {
	nc := newNodeClaim()
	w := newWorldWith(t, interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
		return errors.New("connection refused")
	}}, newHost("a", serving(nc)))
	if err := w.provider.Delete(context.Background(), nc); err == nil || corecloud.IsNodeClaimNotFoundError(err) {
		t.Errorf("got %v", err)
	}
}

func TestGetAndListAnswerUnderBothIDs(t *testing.T) {
	ctx := context.Background()
	first, second := newNodeClaim(), newNodeClaim(func(nc *karpv1.NodeClaim) { nc.Name, nc.UID = "second", "uid-second" })
	w := newWorld(t,
		newHost("static", serving(first)),
		newHost("adopted", serving(second, func(h *v1beta1.SSHHost) { h.Status.ProviderID, h.Status.LastProbeError = "own:///1", "no route" })),
		newHost("free"), newHost("ill", func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostUnhealthy }),
	)
	want := map[string]string{"kpssh://kpssh-system/static": "claim", "kpssh://kpssh-system/adopted": "second", "own:///1": "second"}
	list, err := w.provider.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, nc := range list {
		got[nc.Status.ProviderID] = nc.Name
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for id, name := range want {
		if nc, err := w.provider.Get(ctx, id); err != nil || nc.Name != name || nc.Status.ProviderID != id {
			t.Errorf("%s: %v, %v", id, nc, err)
		}
	}
	for _, id := range []string{"kpssh://kpssh-system/free", "kpssh://kpssh-system/ill", "kpssh://kpssh-system/none", "own:///2", ""} {
		if nc, err := w.provider.Get(ctx, id); !corecloud.IsNodeClaimNotFoundError(err) {
			t.Errorf("%q: %v, %v", id, nc, err)
		}
	}
	cold := pool.NewInventory(namespace, instancetype.Shape)
	provider := cloudprovider.New(w.client, pool.New(w.client, w.client, cold, pool.Options{Namespace: namespace}), instancetype.NewCatalog(cold))
	if list, err := provider.List(ctx); err == nil {
		t.Errorf("cold: %v", list)
	}
	if nc, err := provider.Get(ctx, "own:///1"); err == nil || corecloud.IsNodeClaimNotFoundError(err) {
		t.Errorf("cold: %v, %v", nc, err)
	}
}

func TestIsDrifted(t *testing.T) {
	hashed := func(class *v1beta1.SSHNodeClass, version string) func(*karpv1.NodeClaim) {
		return func(nc *karpv1.NodeClaim) {
			nc.Annotations = map[string]string{apis.AnnotationNodeClassHash: class.Hash(), apis.AnnotationNodeClassHashVersion: version}
		}
	}
	edited := newClass(func(c *v1beta1.SSHNodeClass) { c.Spec.Vars["a"] = "2" })
	reshaped := newClass(func(c *v1beta1.SSHNodeClass) {
		c.Spec.MaxPods, c.Spec.PricePerCPUHour, c.Spec.HostSelector.MatchLabels = 9, "7", map[string]string{"x": "y"}
	})
	older := func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "tls-bootstrap@2" }
	for name, tc := range map[string]struct {
		class   *v1beta1.SSHNodeClass // nil: gone
		claim   func(*karpv1.NodeClaim)
		host    func(*v1beta1.SSHHost)
		without string // profile
		want    corecloud.DriftReason
	}{
		"nothing changed":                               {class: newClass(), claim: hashed(newClass(), "v1")},
		"the profile has a new version":                 {class: newClass(), claim: hashed(newClass(), "v1"), host: older, want: v1beta1.DriftProfile},
		"it has, and install is still to come":          {class: newClass(), claim: hashed(newClass(), "v1"), host: func(h *v1beta1.SSHHost) { older(h); h.Status.State = v1beta1.HostClaimed }},
		"what was installed is not known":               {class: newClass(), claim: hashed(newClass(), "v1"), host: func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "" }},
		"the class has other vars":                      {class: edited, claim: hashed(newClass(), "v1"), want: v1beta1.DriftNodeClass},
		"the class selects, prices and packs anew":      {class: reshaped, claim: hashed(newClass(), "v1")},
		"the hash is of another version":                {class: edited, claim: hashed(newClass(), "v0")},
		"there is no hash":                              {class: edited},
		"the class is gone":                             {claim: hashed(newClass(), "v1")},
		"the profile is gone":                           {class: newClass(), claim: hashed(newClass(), "v1"), without: "profile"},
		"the profile is gone and the class has changed": {class: edited, claim: hashed(newClass(), "v1"), without: "profile", want: v1beta1.DriftNodeClass},
	} {
		t.Run(name, func(t *testing.T) {
			nc := newNodeClaim()
			if tc.claim != nil {
				tc.claim(nc)
			}
			changes := []func(*v1beta1.SSHHost){}
			if tc.host != nil {
				changes = append(changes, tc.host)
			}
			objects := []client.Object{newHost("a", serving(nc, changes...))}
			if tc.class != nil {
				objects = append(objects, tc.class.DeepCopy())
			}
			if tc.without == "" {
				objects = append(objects, newProfile())
			}
			got, err := newWorld(t, objects...).provider.IsDrifted(context.Background(), nc)
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
	w := newWorld(t, newClass(), newProfile(), newHost("a"))
	if _, err := w.provider.IsDrifted(context.Background(), newNodeClaim()); !corecloud.IsNodeClaimNotFoundError(err) {
		t.Errorf("a claim without a host: %v", err)
	}
}

func TestInstanceTypesOfNodePools(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newClass(), newHost("a"))
	pool := func(group, kind, name string) *karpv1.NodePool {
		np := &karpv1.NodePool{}
		np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: group, Kind: kind, Name: name}
		return np
	}
	types, err := w.provider.GetInstanceTypes(ctx, pool(apis.Group, "SSHNodeClass", "pool"))
	if err != nil || len(types) != 2 || types[0].Name != "big" {
		t.Errorf("ours: %v, %v", types, err)
	}
	for _, foreign := range []*karpv1.NodePool{
		pool("karpenter.k8s.aws", "EC2NodeClass", "pool"), pool("other.example", "SSHNodeClass", "pool"), pool(apis.Group, "Other", "pool"), {},
	} {
		if types, err := w.provider.GetInstanceTypes(ctx, foreign); err != nil || len(types) != 0 {
			t.Errorf("foreign: %v, %v", types, err)
		}
	}
	if types, err := w.provider.GetInstanceTypes(ctx, pool(apis.Group, "SSHNodeClass", "gone")); err == nil {
		t.Errorf("a class that is gone: %v", types)
	}
}

func TestWhatTheProviderIs(t *testing.T) {
	w := newWorld(t)
	if w.provider.Name() != "kpssh" {
		t.Errorf("called %q", w.provider.Name())
	}
	classes := w.provider.GetSupportedNodeClasses()
	if len(classes) != 1 {
		t.Fatalf("%d node classes", len(classes))
	}
	if _, ok := classes[0].(*v1beta1.SSHNodeClass); !ok {
		t.Errorf("%T", classes[0])
	}
	var policies []string
	for _, p := range w.provider.RepairPolicies() {
		policies = append(policies, fmt.Sprint(p.ConditionType, p.ConditionStatus, p.TolerationDuration))
	}
	if want := []string{"ReadyFalse10m0s", "ReadyUnknown10m0s"}; !slices.Equal(policies, want) {
		t.Errorf("repairs %v", policies)
	}
}
