package instancetype

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// Catalog makes the instance types of node classes from an inventory, and again only when something changed that
// they are made of.
type Catalog struct {
	inventory *pool.Inventory

	mu     sync.Mutex
	cached map[string]*Types
}

// NewCatalog makes a catalog of the inventory's hosts, whose shapes must be those of Shape.
func NewCatalog(inventory *pool.Inventory) *Catalog {
	return &Catalog{inventory: inventory, cached: map[string]*Types{}}
}

// Types are the instance types of a node class at one moment. They are shared: nobody may change them.
type Types struct {
	class      *v1beta1.SSHNodeClass
	revision   int64
	layout     int64
	all        []*cloudprovider.InstanceType
	shapeNamed map[string]string
	nameOf     map[string]string
	hosts      int
	selector   labels.Selector
}

// All returns the instance types, in a slice of the caller's own.
func (t *Types) All() []*cloudprovider.InstanceType { return slices.Clone(t.all) }

// ShapeOf is the shape of the hosts that are offered under a type's name, or empty.
func (t *Types) ShapeOf(name string) string { return t.shapeNamed[name] }

// NameOf is the name of the type that hosts of the shape are offered under; the shape's own when it is not offered.
func (t *Types) NameOf(shape string) string {
	if name, ok := t.nameOf[shape]; ok {
		return name
	}
	return shape
}

// Hosts is how many hosts the class selects, whatever their state.
func (t *Types) Hosts() int { return t.hosts }

// Selector is the class's host selector.
func (t *Types) Selector() labels.Selector { return t.selector }

// For returns the types of a class. While the inventory is cold it answers pool.ErrCold, since a type that is
// missing for a moment makes nodes drift.
func (c *Catalog) For(class *v1beta1.SSHNodeClass) (*Types, error) {
	return c.get(class, func(t *Types, revision, _ int64) bool { return t.revision == revision })
}

// Known is For, except that what it says of which offerings are available may be old. A claim asks for it: every claim
// changes what is available, so that For would look at all hosts again for each of them, and what is free at this
// moment is for the pool to say anyway.
func (c *Catalog) Known(class *v1beta1.SSHNodeClass) (*Types, error) {
	return c.get(class, func(t *Types, _, layout int64) bool { return t.layout == layout })
}

// get returns the types of a class as they are kept, if those will do, and makes them otherwise.
func (c *Catalog) get(class *v1beta1.SSHNodeClass, willDo func(t *Types, revision, layout int64) bool) (*Types, error) {
	if !c.inventory.Synced() {
		return nil, fmt.Errorf("making the instance types of SSHNodeClass %q: %w", class.Name, pool.ErrCold)
	}
	// Read before the hosts are, so that a change in between is seen as one the next time.
	revision, layout := c.inventory.Revision(), c.inventory.Layout()
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.cached[class.Name]; t != nil && willDo(t, revision, layout) && t.class.UID == class.UID && t.class.Generation == class.Generation {
		return t, nil
	}
	t, err := c.build(class)
	if err != nil {
		return nil, err
	}
	t.revision, t.layout = revision, layout
	c.cached[class.Name] = t
	return t, nil
}

// variant is the hosts of one shape.
type variant struct {
	shape, class, arch string
	pageSize           int64
	capacity           corev1.ResourceList
	// hosts counts those that are known to be of the shape, free those of them that are, by zone.
	hosts int
	free  map[string]int
}

// family is the hosts of one class.
type family struct {
	variants map[string]*variant
	zones    map[string]bool
	unprobed []corev1.ResourceList
}

func (c *Catalog) build(class *v1beta1.SSHNodeClass) (*Types, error) {
	selector, err := metav1.LabelSelectorAsSelector(&class.Spec.HostSelector)
	if err != nil {
		return nil, fmt.Errorf("parsing hostSelector of SSHNodeClass %q: %w", class.Name, err)
	}
	price, err := pricePerCPU(class)
	if err != nil {
		return nil, err
	}
	t := &Types{class: class.DeepCopy(), selector: selector, shapeNamed: map[string]string{}, nameOf: map[string]string{}}
	families := map[string]*family{}
	c.inventory.Range(func(host *v1beta1.SSHHost) {
		if selector.Matches(labels.Set(host.Labels)) {
			t.hosts++
			addHost(families, host, class)
		}
	})
	for _, name := range sortedKeys(families) {
		t.addFamily(name, families[name], price)
	}
	return t, nil
}

func addHost(families map[string]*family, host *v1beta1.SSHHost, class *v1beta1.SSHNodeClass) {
	f := families[host.Class()]
	if f == nil {
		f = &family{variants: map[string]*variant{}, zones: map[string]bool{}}
		families[host.Class()] = f
	}
	f.zones[Zone(host)] = true
	if host.Status.ObservedArch == "" {
		f.unprobed = append(f.unprobed, host.Spec.Capacity)
		return
	}
	v := f.variant(host.Class(), host.Status.ObservedArch, PageSize(host), host.Spec.Capacity)
	v.hosts++
	if pool.Claimable(host) && host.PassesFor(class) {
		v.free[Zone(host)]++
	}
}

func (f *family) variant(class, arch string, pageSize int64, capacity corev1.ResourceList) *variant {
	shape := exactName(class, arch, pageSize, capacity)
	v := f.variants[shape]
	if v == nil {
		v = &variant{shape: shape, class: class, arch: arch, pageSize: pageSize, capacity: capacity, free: map[string]int{}}
		f.variants[shape] = v
	}
	return v
}

// assume adds a variant for each architecture that hosts that were never probed may have: those of the class, or
// any that karpenter knows.
func (f *family) assume(class string) {
	arches := map[string]bool{}
	for _, v := range f.variants {
		arches[v.arch] = true
	}
	if len(arches) == 0 {
		arches = map[string]bool{karpv1.ArchitectureAmd64: true, karpv1.ArchitectureArm64: true}
	}
	for _, capacity := range f.unprobed {
		for arch := range arches {
			f.variant(class, arch, usualPageSize, capacity)
		}
	}
}

// commonest is the variant that is offered under the class's name.
func (f *family) commonest() *variant {
	var best *variant
	for _, shape := range sortedKeys(f.variants) {
		if v := f.variants[shape]; best == nil || v.hosts > best.hosts {
			best = v
		}
	}
	return best
}

func (t *Types) addFamily(class string, f *family, price float64) {
	f.assume(class)
	common := f.commonest()
	zones := sortedKeys(f.zones)
	t.add(class, common, zones, price, true)
	for _, shape := range sortedKeys(f.variants) {
		t.add(shape, f.variants[shape], zones, price, shape != common.shape)
	}
}

func (t *Types) add(name string, v *variant, zones []string, price float64, offered bool) {
	capacity := Capacity(v.capacity, t.class)
	it := &cloudprovider.InstanceType{
		Name: name,
		Requirements: scheduling.NewRequirements(
			in(corev1.LabelInstanceTypeStable, name),
			in(corev1.LabelArchStable, v.arch),
			in(corev1.LabelOSStable, string(corev1.Linux)),
			in(corev1.LabelTopologyZone, zones...),
			in(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand),
			in(apis.LabelHostClass, v.class),
			in(apis.LabelPageSize, strconv.FormatInt(v.pageSize, 10)),
		),
		Capacity: capacity,
		Overhead: overhead(t.class),
	}
	for _, zone := range zones {
		it.Offerings = append(it.Offerings, &cloudprovider.Offering{
			Requirements: scheduling.NewRequirements(
				in(corev1.LabelTopologyZone, zone),
				in(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand),
			),
			Price:     price * v.capacity.Cpu().AsApproximateFloat64(),
			Available: offered && v.free[zone] > 0,
		})
	}
	t.all = append(t.all, it)
	if offered {
		t.shapeNamed[name] = v.shape
		t.nameOf[v.shape] = name
	}
}

func in(key string, values ...string) *scheduling.Requirement {
	return scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
