package pool

import (
	"context"
	"fmt"
	"maps"
	"sort"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Inventory is the hosts of one namespace in memory, indexed so that a claim, a look-up by claim and one by
// provider id cost the same with a hundred hosts and with ten thousand. An informer feeds it, and so does every
// write of a Pool, so that a process reads what it wrote before the watch brings it back.
//
// It holds objects that the informer's cache shares: nobody may change what it hands out uncopied.
type Inventory struct {
	namespace string
	shape     func(*v1beta1.SSHHost) string

	mu       sync.RWMutex
	entries  map[string]*entry
	claims   map[types.UID]map[string]*entry
	adopted  map[string]string // provider id that is not static → host
	free     map[string]map[rank]map[string]*entry
	peers    map[peerKey]map[string]struct{}
	gone     map[types.UID]struct{}
	revision atomic.Int64
	layout   atomic.Int64

	synced atomic.Pointer[func() bool]
}

// entry is one host. busy keeps two claims of this process off one host; lost keeps claims off a host whose
// resourceVersion is known to be old, until a newer one arrives.
type entry struct {
	host  *v1beta1.SSHHost
	shape string
	rank  rank
	free  bool
	busy  bool
	lost  bool
}

// rank is what hosts of one shape are preferred by.
type rank struct {
	installed string
	failed    bool
}

// NewInventory makes an empty inventory of the namespace. shape names what a host is to a scheduler: hosts of one
// shape are interchangeable in a Request.
func NewInventory(namespace string, shape func(*v1beta1.SSHHost) string) *Inventory {
	return &Inventory{
		namespace: namespace, shape: shape,
		entries: map[string]*entry{}, claims: map[types.UID]map[string]*entry{}, adopted: map[string]string{},
		free: map[string]map[rank]map[string]*entry{}, gone: map[types.UID]struct{}{},
		peers: map[peerKey]map[string]struct{}{},
	}
}

// Feed connects the inventory to the informer of c, which must be started elsewhere.
func (i *Inventory) Feed(ctx context.Context, c cache.Informers) error {
	informer, err := c.GetInformer(ctx, &v1beta1.SSHHost{})
	if err != nil {
		return fmt.Errorf("getting the informer of SSHHosts: %w", err)
	}
	registration, err := informer.AddEventHandler(i)
	if err != nil {
		return fmt.Errorf("watching SSHHosts: %w", err)
	}
	synced := registration.HasSynced
	i.synced.Store(&synced)
	return nil
}

// MarkSynced says that the inventory is complete, for a feeder other than an informer.
func (i *Inventory) MarkSynced() {
	synced := func() bool { return true }
	i.synced.Store(&synced)
}

// Synced says whether the inventory has seen every host at least once.
func (i *Inventory) Synced() bool {
	synced := i.synced.Load()
	return synced != nil && (*synced)()
}

// Revision grows whenever something changed that instance types are made of: a host came or went, changed its labels
// or shape, or became free or ceased to be.
func (i *Inventory) Revision() int64 { return i.revision.Load() }

// Layout grows less often than Revision: not when a host became free or ceased to be, which every claim makes happen.
func (i *Inventory) Layout() int64 { return i.layout.Load() }

// Range calls f with every host; f must neither change nor keep it, nor call back into the inventory.
func (i *Inventory) Range(f func(*v1beta1.SSHHost)) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	for _, e := range i.entries {
		f(e.host)
	}
}

// Claimable says whether the host may be claimed: Available, unclaimed, owed nothing, not annotated for maintenance, and
// not on its way out.
func Claimable(host *v1beta1.SSHHost) bool {
	return host.Status.State == v1beta1.HostAvailable && host.Status.ClaimRef == nil && !Owed(host) &&
		!host.InMaintenance() && host.DeletionTimestamp.IsZero()
}

var _ toolscache.ResourceEventHandler = (*Inventory)(nil)

// OnAdd implements cache.ResourceEventHandler.
func (i *Inventory) OnAdd(obj any, _ bool) {
	if host, ok := obj.(*v1beta1.SSHHost); ok {
		i.put(host)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (i *Inventory) OnUpdate(before, obj any) {
	if host, ok := obj.(*v1beta1.SSHHost); ok {
		if old, ok := before.(*v1beta1.SSHHost); ok && old.UID != host.UID { // its deletion was missed
			i.bury(old.Name, old.UID)
		}
		i.put(host)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (i *Inventory) OnDelete(obj any) {
	if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if host, ok := obj.(*v1beta1.SSHHost); ok {
		i.bury(host.Name, host.UID)
	}
}

// put takes in a host that was read or written, unless what is known is as new. host must not change any more.
func (i *Inventory) put(host *v1beta1.SSHHost) {
	if host.Namespace != i.namespace {
		return
	}
	shape := i.shape(host)
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, gone := i.gone[host.UID]; gone {
		return
	}
	old := i.entries[host.Name]
	switch {
	case old == nil:
	case old.host.UID != host.UID:
		// Which of the two is the newer one cannot be told; the end of the watch's history will.
	case host.ResourceVersion == old.host.ResourceVersion:
		old.lost = false // what was taken for old is as new as it gets
		return
	case !newer(host.ResourceVersion, old.host.ResourceVersion):
		return
	}
	next := &entry{
		host: host, shape: shape, free: Claimable(host),
		rank: rank{installed: host.Status.InstalledProfile, failed: Failed(host)},
	}
	if old != nil {
		next.busy = old.busy
		i.unlink(old)
	}
	i.link(next)
	if old == nil || old.shape != next.shape || !maps.Equal(old.host.Labels, host.Labels) {
		i.layout.Add(1)
		i.revision.Add(1)
	} else if old.free != next.free || !sameChecks(old.host, host) {
		i.revision.Add(1)
	}
}

func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order > 0
}

// bury forgets a host for good: uids are not used twice.
func (i *Inventory) bury(name string, uid types.UID) {
	if uid == "" {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gone[uid] = struct{}{}
	if e := i.entries[name]; e != nil && e.host.UID == uid {
		i.unlink(e)
		i.layout.Add(1)
		i.revision.Add(1)
	}
}

func (i *Inventory) link(e *entry) {
	name := e.host.Name
	i.entries[name] = e
	i.linkPeers(e.host)
	if ref := e.host.Status.ClaimRef; ref != nil {
		if i.claims[ref.UID] == nil {
			i.claims[ref.UID] = map[string]*entry{}
		}
		i.claims[ref.UID][name] = e
	}
	if id := e.host.Status.ProviderID; id != "" && id != e.host.StaticProviderID() {
		i.adopted[id] = name
	}
	if !e.free {
		return
	}
	if i.free[e.shape] == nil {
		i.free[e.shape] = map[rank]map[string]*entry{}
	}
	if i.free[e.shape][e.rank] == nil {
		i.free[e.shape][e.rank] = map[string]*entry{}
	}
	i.free[e.shape][e.rank][name] = e
}

func (i *Inventory) unlink(e *entry) {
	name := e.host.Name
	delete(i.entries, name)
	i.unlinkPeers(e.host)
	if ref := e.host.Status.ClaimRef; ref != nil {
		delete(i.claims[ref.UID], name)
		if len(i.claims[ref.UID]) == 0 {
			delete(i.claims, ref.UID)
		}
	}
	if id := e.host.Status.ProviderID; i.adopted[id] == name {
		delete(i.adopted, id)
	}
	if !e.free {
		return
	}
	ranks := i.free[e.shape]
	delete(ranks[e.rank], name)
	if len(ranks[e.rank]) == 0 {
		delete(ranks, e.rank)
	}
	if len(ranks) == 0 {
		delete(i.free, e.shape)
	}
}

func (i *Inventory) get(name string) *v1beta1.SSHHost {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if e := i.entries[name]; e != nil {
		return e.host
	}
	return nil
}

// byClaim returns the hosts that a NodeClaim holds, by name.
func (i *Inventory) byClaim(uid types.UID) []*v1beta1.SSHHost {
	i.mu.RLock()
	defer i.mu.RUnlock()
	var out []*v1beta1.SSHHost
	for _, e := range i.claims[uid] {
		out = append(out, e.host)
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Name < out[b].Name })
	return out
}

func (i *Inventory) byProviderID(id string) *v1beta1.SSHHost {
	i.mu.RLock()
	defer i.mu.RUnlock()
	name, ok := i.adopted[id]
	if !ok {
		prefix := apis.ProviderIDPrefix + i.namespace + "/"
		if len(id) <= len(prefix) || id[:len(prefix)] != prefix {
			return nil
		}
		name = id[len(prefix):]
	}
	if e := i.entries[name]; e != nil {
		return e.host
	}
	return nil
}

// take reserves a free host that suits the request, so that no other claim of this process tries it; nil when there
// is none. give must follow.
func (i *Inventory) take(req Request) *v1beta1.SSHHost {
	i.mu.Lock()
	defer i.mu.Unlock()
	shapes := req.Shapes
	if shapes == nil {
		for shape := range i.free {
			shapes = append(shapes, shape)
		}
	}
	for _, failed := range []bool{false, true} {
		for _, shape := range shapes {
			if e := i.best(shape, failed, req); e != nil {
				e.busy = true
				return e.host
			}
		}
	}
	return nil
}

// best returns a host of the shape, one that carries the preferred install marker if there is one.
func (i *Inventory) best(shape string, failed bool, req Request) *entry {
	ranks := i.free[shape]
	if e := i.first(ranks[rank{installed: req.Prefer, failed: failed}], req); e != nil {
		return e
	}
	for r, hosts := range ranks {
		if r.failed != failed || r.installed == req.Prefer {
			continue
		}
		if e := i.first(hosts, req); e != nil {
			return e
		}
	}
	return nil
}

func (i *Inventory) first(hosts map[string]*entry, req Request) *entry {
	for _, e := range hosts {
		if !e.busy && !e.lost && req.suits(e.host) && !i.cloned(e.host) {
			return e
		}
	}
	return nil
}

// give ends a reservation. A host that is given back as lost is not offered again before a newer version of it is
// known.
func (i *Inventory) give(host *v1beta1.SSHHost, lost bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.entries[host.Name]
	if e == nil || e.host.UID != host.UID {
		return
	}
	e.busy = false
	if lost && e.host.ResourceVersion == host.ResourceVersion {
		e.lost = true
	}
}

func (r Request) suits(host *v1beta1.SSHHost) bool {
	if r.Selector != nil && !r.Selector.Matches(labels.Set(host.Labels)) {
		return false
	}
	return r.Fits == nil || r.Fits(host)
}
