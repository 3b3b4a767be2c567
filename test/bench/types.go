package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const (
	manyTyped   = 5000
	fewTyped    = 100
	hostClasses = 50
	typePairs   = 200
	// typeCalls are timed at a time: one takes less than a microsecond or two.
	typeCalls = 500
)

// types measures GetInstanceTypes with hosts of as many classes in a large and in a small pool while nothing changes. Only the
// hosts matter, so that no API server is asked for them.
func (b *bench) types(ctx context.Context) ([]Result, error) {
	large, err := typedPool(ctx, manyTyped)
	if err != nil {
		return nil, err
	}
	small, err := typedPool(ctx, fewTyped)
	if err != nil {
		return nil, err
	}
	s, err := b.inTurns(ctx, "calls of GetInstanceTypes, times 500", typePairs, large, small)
	if err != nil {
		return nil, err
	}
	return []Result{
		goal{figure: "Q7", what: fmt.Sprintf("GetInstanceTypes, nothing changed, %d hosts / %d hosts, in %d classes", manyTyped, fewTyped, hostClasses), most: 1.2, required: true, quantile: 0.5, unit: "s"}.judge(s),
	}, nil
}

// oneClass is a cache with one node class, which answers with a copy as a cache does.
type oneClass struct {
	client.Reader
	class *v1beta1.SSHNodeClass
}

// Get implements client.Reader.
func (o oneClass) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	class, ok := into.(*v1beta1.SSHNodeClass)
	if !ok || key.Name != o.class.Name {
		return fmt.Errorf("there is no %T %q", into, key.Name)
	}
	o.class.DeepCopyInto(class)
	return nil
}

// typedPool is the provider with so many free hosts, and times calls of it.
func typedPool(ctx context.Context, hosts int) (step, error) {
	class := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "pool", UID: "class", Generation: 1}}
	inventory := pool.NewInventory(clusterNamespace, instancetype.Shape)
	for i := range hosts {
		name := fmt.Sprintf("host-%04d", i)
		inventory.OnAdd(&v1beta1.SSHHost{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: clusterNamespace, Name: name, UID: types.UID(name), ResourceVersion: fmt.Sprint(i + 1),
				Labels: map[string]string{apis.LabelHostClass: fmt.Sprintf("class-%d", i%hostClasses), corev1.LabelTopologyZone: fmt.Sprintf("rack-%d", i%5)},
			},
			Spec:   v1beta1.SSHHostSpec{Address: "192.0.2.1", Capacity: hostCapacity()},
			Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: "amd64"},
		}, true)
	}
	inventory.MarkSynced()
	reader := oneClass{class: class}
	// Nothing is claimed, so that the pool needs no API server.
	provider := cloudprovider.New(reader, pool.New(nil, nil, inventory, pool.Options{Namespace: clusterNamespace}), instancetype.NewCatalog(inventory))
	nodePool := &karpv1.NodePool{Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: apis.Group, Kind: cloudprovider.NodeClassKind, Name: class.Name},
	}}}}
	call := func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		for range typeCalls {
			got, err := provider.GetInstanceTypes(ctx, nodePool)
			if err != nil {
				return 0, err
			}
			if len(got) < hostClasses {
				return 0, fmt.Errorf("%d instance types of %d classes", len(got), hostClasses)
			}
		}
		return time.Since(began), nil
	}
	_, err := call(ctx)
	return call, err
}
