package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sort"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// The model runs the claim protocol in random order: two controllers with caches that lag behind at will, that crash
// and come back, whose writes get lost or whose answers do; NodeClaims that come, go and are torn away; operators who
// park, delete and remake hosts. After every step it checks what must always hold, and in the end, when faults stop and
// everyone catches up, that nobody has two owners, that no NodeClaim has two hosts and that no host is lost.

// machine is the host itself, with the rules of the shim about claim and fence.
type machine struct {
	claim   types.UID
	fence   int64
	kubelet bool
}

func (m *machine) join(uid types.UID, fence int64) bool {
	again, anew := m.claim == uid && fence >= m.fence, m.claim == "" && fence > m.fence
	if !again && !anew {
		return false
	}
	m.claim, m.fence, m.kubelet = uid, fence, true
	return true
}

func (m *machine) leave(uid types.UID, fence int64) bool {
	if m.claim != uid && m.claim != "" || fence < m.fence {
		return false
	}
	m.claim, m.fence, m.kubelet = "", max(fence, m.fence), false
	return true
}

// nodeClaim is what the API server has of one; deleting is set by core before the provider hears of it.
type nodeClaim struct {
	ref        pool.Ref
	providerID string
	deleting   bool
}

// controller is a process: its memory goes with a crash.
type controller struct {
	inventory *pool.Inventory
	pool      *pool.Pool
	seen      int // of the model's log
	cutOff    bool
}

type change struct {
	host    *v1beta1.SSHHost
	deleted bool
}

type model struct {
	*world
	seed        int64
	random      *rand.Rand
	faults      bool
	controllers [2]*controller
	machines    map[string]*machine
	claims      map[types.UID]*nodeClaim
	log         []change // what the API server's watch sends, in order
	last        map[string]*v1beta1.SSHHost
	serial      int
	trail       []string
	// Who is acting, and for which NodeClaim; and which process claimed each host.
	actor     *controller
	acting    pool.Ref
	claimedBy map[string]*controller
	seen      map[string]int
}

var hostNames = []string{"a", "b", "c", "d", "e"}

func newModel(t *testing.T, seed int64) *model {
	m := &model{
		seed: seed, random: rand.New(rand.NewSource(seed)), machines: map[string]*machine{},
		claims: map[types.UID]*nodeClaim{}, last: map[string]*v1beta1.SSHHost{}, faults: true,
		claimedBy: map[string]*controller{}, seen: map[string]int{},
	}
	m.world = newWorldWith(t, interceptor.Funcs{SubResourceUpdate: m.update})
	for _, name := range hostNames {
		m.makeHost(name)
	}
	for i := range m.controllers {
		m.restart(i)
	}
	return m
}

var errLost = apierrors.NewTimeoutError("lost", 1)

// update is the API server's end of a write: it can get lost on the way there and on the way back.
func (m *model) update(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	if m.faults && m.random.Intn(20) == 0 {
		return errLost
	}
	// The fake numbers versions of each object from one, so that it would take the write of a deleted host for one of
	// its namesake. The API server does not: it compares uids too.
	stored := &v1beta1.SSHHost{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(obj), stored); err == nil && stored.UID != obj.GetUID() {
		return apierrors.NewConflict(v1beta1.GroupVersion.WithResource("sshhosts").GroupResource(), obj.GetName(), errors.New("uid"))
	}
	if err := c.SubResource(sub).Update(ctx, obj, opts...); err != nil {
		return err
	}
	m.record(obj.(*v1beta1.SSHHost))
	if m.faults && m.random.Intn(20) == 0 {
		return errLost
	}
	return nil
}

// record appends to the watch and checks the step that the host took.
func (m *model) record(host *v1beta1.SSHHost) {
	host = host.DeepCopy()
	m.log = append(m.log, change{host: host})
	before := m.last[host.Name]
	m.last[host.Name] = host
	held := host.Status.State == v1beta1.HostClaimed || host.Status.State == v1beta1.HostInUse
	if held != (host.Status.ClaimRef != nil) {
		m.fail("host %q is %s with claim %v", host.Name, host.Status.State, host.Status.ClaimRef)
	}
	if before == nil || before.UID != host.UID {
		return
	}
	reclaimed := before.Status.ClaimRef == nil && host.Status.ClaimRef != nil && readyReason(host) == v1beta1.ReasonClaimRestored
	if before.Status.State != host.Status.State && !pool.Allowed(before.Status.State, host.Status.State) && !reclaimed {
		m.fail("host %q went from %q to %q", host.Name, before.Status.State, host.Status.State)
	}
	if host.Status.Fence < before.Status.Fence {
		m.fail("host %q: fence fell from %d to %d", host.Name, before.Status.Fence, host.Status.Fence)
	}
	if old, now := before.Status.ClaimRef, host.Status.ClaimRef; old != nil && now != nil && *old != *now {
		m.fail("host %q went from NodeClaim %q to %q without a release", host.Name, old.UID, now.UID)
	}
	if before.Status.ClaimRef == nil && host.Status.ClaimRef != nil {
		m.claimedBy[host.Name] = m.actor
		if reclaimed && host.Status.ClaimRef.UID != m.machines[host.Name].claim {
			m.fail("host %q, which serves %q, was given back to %q", host.Name, m.machines[host.Name].claim, host.Status.ClaimRef.UID)
		}
		if host.Status.Fence <= before.Status.Fence && !reclaimed {
			m.fail("host %q was claimed without a new fence", host.Name)
		}
	}
	// What belongs to a claim is written only by who acts for that claim.
	const asked = v1beta1.ConditionLeaveRequested
	ended := before.Status.ClaimRef != nil && host.Status.ClaimRef == nil
	inUse := before.Status.State == v1beta1.HostClaimed && host.Status.State == v1beta1.HostInUse
	leave := !pool.HasCondition(before, asked) && pool.HasCondition(host, asked)
	if (ended || inUse || leave) && !pool.Held(before, m.acting) {
		m.fail("host %q, held by %q, was written for %q", host.Name, pool.RefOn(before).UID, m.acting.UID)
	}
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	for _, line := range m.trail[max(0, len(m.trail)-60):] {
		m.t.Log(line)
	}
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *model) makeHost(name string) {
	host := newHost(name, inState(""))
	if err := m.client.Create(context.Background(), host); err != nil {
		m.t.Fatal(err)
	}
	if m.machines[name] == nil {
		m.machines[name] = &machine{}
	}
	m.record(m.stored(name))
}

// restart is a crash: memory is gone, the cache is filled afresh.
func (m *model) restart(i int) {
	inv := pool.NewInventory(namespace, classShape)
	m.sync(inv)
	inv.MarkSynced()
	m.controllers[i] = &controller{
		inventory: inv, seen: len(m.log),
		pool: pool.New(m.client, m.client, inv, pool.Options{Namespace: namespace, Clock: m.clock}),
	}
}

// catchUp delivers at most n events of the watch.
func (c *controller) catchUp(log []change, n int) {
	for ; n > 0 && c.seen < len(log); n-- {
		if event := log[c.seen]; event.deleted {
			c.inventory.OnDelete(event.host)
		} else {
			c.inventory.OnUpdate(nil, event.host)
		}
		c.seen++
	}
}

// step lets somebody do something.
func (m *model) step() {
	who := m.random.Intn(len(m.controllers))
	c := m.controllers[who]
	m.actor = c
	if m.random.Intn(25) == 0 {
		c.cutOff = !c.cutOff
	}
	if !c.cutOff {
		c.catchUp(m.log, m.random.Intn(5))
	}
	host, err := c.pool.Get(hostNames[m.random.Intn(len(hostNames))])
	if err != nil {
		host = nil
	}
	nc := m.anyClaim()
	what := m.random.Intn(18)
	m.trail = append(m.trail, fmt.Sprintf("controller %d: %d", who, what))
	switch {
	case what == 0:
		m.serial++
		ref := pool.Ref{Name: fmt.Sprint("nc-", m.serial), UID: types.UID(fmt.Sprint("uid-", m.serial))}
		if len(m.claims) < 4 {
			m.claims[ref.UID] = &nodeClaim{ref: ref}
		}
	case (what <= 2 || what > 12 && what <= 14) && nc != nil:
		m.create(c, nc)
	case what <= 4 && host != nil:
		m.join(c, host)
	case what == 5 && nc != nil && (nc.deleting || m.random.Intn(3) == 0):
		nc.deleting = true
		m.delete(c, nc)
	case what <= 7 && host != nil:
		m.release(c, host)
	case (what == 8 || what > 14) && host != nil:
		m.probe(c, host)
	case what == 9 && nc != nil && m.random.Intn(4) == 0: // force-deleted, finalizers stripped
		delete(m.claims, nc.ref.UID)
	case what == 10 && m.random.Intn(4) == 0:
		m.restart(who)
	case what == 11 && m.random.Intn(3) == 0:
		m.park(hostNames[m.random.Intn(len(hostNames))])
	case what == 12 && m.random.Intn(6) == 0:
		m.remake(hostNames[m.random.Intn(len(hostNames))])
	}
}

func (m *model) anyClaim() *nodeClaim {
	uids := make([]string, 0, len(m.claims))
	for uid := range m.claims {
		uids = append(uids, string(uid))
	}
	if len(uids) == 0 {
		return nil
	}
	sort.Strings(uids)
	return m.claims[types.UID(uids[m.random.Intn(len(uids))])]
}

// tolerate lets pass what a caller tries again after.
func (m *model) tolerate(err error) {
	var refused *pool.EdgeError
	for _, ok := range []error{pool.ErrNoHost, pool.ErrContended, pool.ErrClaimLost, pool.ErrConflict, pool.ErrHostNotFound, errLost} {
		if errors.Is(err, ok) {
			m.seen[ok.Error()]++
			return
		}
	}
	if err != nil && !errors.As(err, &refused) && !apierrors.IsTimeout(err) {
		m.fail("unexpected: %v", err)
	}
}

func (m *model) create(c *controller, nc *nodeClaim) {
	if nc.deleting || nc.providerID != "" && m.random.Intn(4) > 0 {
		return
	}
	m.acting = nc.ref
	host, err := c.pool.Claim(context.Background(), pool.Request{Ref: nc.ref})
	m.tolerate(err)
	if err != nil {
		return
	}
	for _, name := range hostNames {
		if h := m.stored(name); name == host.Name || !pool.Held(h, nc.ref) {
			continue
		}
		m.seen["a NodeClaim with two hosts"]++
		if m.claimedBy[name] == c && m.claimedBy[host.Name] == c {
			m.fail("one process claimed %q and %q for NodeClaim %q", name, host.Name, nc.ref.Name)
		}
	}
	if !pool.Held(m.stored(host.Name), nc.ref) {
		m.fail("NodeClaim %q was given host %q, which %v holds", nc.ref.Name, host.Name, m.stored(host.Name).Status.ClaimRef)
	}
	if m.faults && m.random.Intn(6) == 0 {
		return // crashed before core wrote the id
	}
	nc.providerID = host.StaticProviderID()
}

// join runs the phases on the host that the NodeClaim names, with the host as the controller's cache has it.
func (m *model) join(c *controller, host *v1beta1.SSHHost) {
	ref := pool.RefOn(host)
	m.acting = ref
	nc := m.claims[ref.UID]
	if host.Status.State != v1beta1.HostClaimed || nc == nil || nc.deleting || nc.providerID != host.StaticProviderID() {
		return
	}
	machine := m.machines[host.Name]
	was := machine.claim
	if !machine.join(ref.UID, host.Status.Fence) {
		m.refused(c, host, machine)
		return
	}
	if was != ref.UID && was != "" {
		m.fail("host %q joined for %q while it served %q", host.Name, ref.UID, was)
	}
	if m.faults && m.random.Intn(6) == 0 { // failed for good: asked for first, and leave runs after that is written
		_, err := c.pool.RequestLeave(context.Background(), host, ref, "JoinFailed", "")
		m.tolerate(err)
		if err == nil && m.random.Intn(4) > 0 { // or crashed between
			nc.deleting = true
		}
		return
	}
	_, err := c.pool.SetInUse(context.Background(), host, ref)
	m.tolerate(err)
}

// refused is what the join controller makes of a refusal: a fence that the host has seen already is raised, and a
// host that serves another claim is given back for the probe to look at.
func (m *model) refused(c *controller, host *v1beta1.SSHHost, machine *machine) {
	ref := pool.RefOn(host)
	if machine.claim == "" || machine.claim == ref.UID {
		m.seen["a fence behind the host's"]++
		_, err := c.pool.BumpFence(context.Background(), host, ref, machine.fence+1)
		m.tolerate(err)
		return
	}
	m.seen["a host that serves another claim"]++
	_, err := c.pool.RequestLeave(context.Background(), host, ref, "HostClaimed", "")
	m.tolerate(err)
	if err == nil {
		m.claims[ref.UID].deleting = true
	}
}

func (m *model) delete(c *controller, nc *nodeClaim) {
	m.acting = nc.ref
	held, err := c.pool.HeldBy(context.Background(), nc.ref, nc.providerID)
	m.tolerate(err)
	if err != nil {
		return
	}
	for _, host := range held {
		_, err := c.pool.RequestLeave(context.Background(), host, nc.ref, "Deleted", "")
		m.tolerate(err)
	}
	if len(held) > 0 {
		return
	}
	if nc.providerID != "" { // core lets a claim without an id go without asking
		for name := range m.machines {
			if h := m.last[name]; h != nil && pool.Held(h, nc.ref) && h.StaticProviderID() == nc.providerID {
				m.fail("NodeClaim %q was let go while it holds host %q", nc.ref.Name, name)
			}
		}
	}
	delete(m.claims, nc.ref.UID)
}

// release is the leave controller and the one for stale claims: both run leave first.
func (m *model) release(c *controller, host *v1beta1.SSHHost) {
	ref := pool.RefOn(host)
	m.acting = ref
	if ref.UID == "" {
		return
	}
	nc, requested := m.claims[ref.UID], pool.HasCondition(host, v1beta1.ConditionLeaveRequested)
	stale := nc == nil || c.pool.Extra(host, nc.providerID)
	if nc != nil && stale {
		m.seen["a host in excess"]++
	}
	if !requested && !stale {
		return
	}
	machine := m.machines[host.Name]
	if foreign := machine.claim != "" && machine.claim != ref.UID; !foreign && !machine.leave(ref.UID, host.Status.Fence) {
		_, err := c.pool.BumpFence(context.Background(), host, ref, machine.fence+1)
		m.tolerate(err)
		return
	}
	var err error
	if requested {
		_, err = c.pool.Release(context.Background(), host, ref, pool.Outcome{State: v1beta1.HostPending, Reason: "Left"})
	} else {
		_, err = c.pool.ReleaseStale(context.Background(), host, v1beta1.ReasonStaleClaim, "")
	}
	m.tolerate(err)
}

// probe is the probe of a free host with its zombie guard.
func (m *model) probe(c *controller, host *v1beta1.SSHHost) {
	ctx := context.Background()
	machine := m.machines[host.Name]
	if host.Status.ClaimRef != nil {
		return
	}
	host, err := c.pool.SyncMaintenance(ctx, host)
	m.tolerate(err)
	if err != nil || host.Status.State == v1beta1.HostMaintenance {
		return
	}
	if m.reclaim(c, host, machine) {
		return
	}
	if machine.kubelet || host.Status.State == v1beta1.HostLeaving || pool.Owed(host) {
		m.seen["a zombie"]++
		if host.Status.Fence < machine.fence && host.Status.State != v1beta1.HostLeaving {
			if host, err = c.pool.RecordProbe(ctx, host, pool.Probe{Reason: "Zombie", Fence: machine.fence}); err != nil {
				m.tolerate(err)
				return
			}
		}
		host, err = c.pool.BeginLeaving(ctx, host, "")
		m.tolerate(err)
		if err != nil || m.faults && m.random.Intn(4) == 0 {
			return // or crashed before leave
		}
		out := pool.Outcome{State: v1beta1.HostAvailable, Reason: "Left"}
		if !machine.leave(machine.claim, host.Status.Fence) {
			out.State = v1beta1.HostUnhealthy
		}
		_, err = c.pool.EndLeaving(ctx, host, out)
		m.tolerate(err)
		return
	}
	result := pool.Probe{Fence: machine.fence}
	if m.faults && m.random.Intn(4) == 0 {
		result.Reason = v1beta1.ReasonUnreachable
	}
	_, err = c.pool.RecordProbe(ctx, host, result)
	m.tolerate(err)
}

// reclaim gives a host whose status was lost back to the living NodeClaim that it serves.
func (m *model) reclaim(c *controller, host *v1beta1.SSHHost, machine *machine) bool {
	nc := m.claims[machine.claim]
	if nc == nil || nc.deleting || nc.providerID != host.StaticProviderID() || host.Status.State == v1beta1.HostLeaving {
		return false
	}
	if _, err := c.pool.ByClaim(nc.ref.UID); err == nil {
		return false
	}
	m.acting = nc.ref
	_, err := c.pool.Reclaim(context.Background(), host, pool.Probe{Fence: machine.fence}, pool.Membership{
		Ref: nc.ref, ProviderID: nc.providerID, Ready: machine.kubelet && m.random.Intn(2) == 0,
	})
	m.tolerate(err)
	if err == nil {
		m.seen["a claim given back"]++
	}
	return true
}

func readyReason(host *v1beta1.SSHHost) string {
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionReady {
			return c.Reason
		}
	}
	return ""
}

func (m *model) park(name string) {
	host := m.stored(name)
	if host.InMaintenance() {
		host.Annotations = nil
	} else {
		parked(host)
	}
	if err := m.client.Update(context.Background(), host); err != nil {
		m.t.Fatal(err)
	}
	m.record(m.stored(name))
}

func (m *model) remake(name string) {
	host := m.stored(name)
	if err := m.client.Delete(context.Background(), host); err != nil {
		m.t.Fatal(err)
	}
	m.log = append(m.log, change{host: host, deleted: true})
	m.makeHost(name)
}

// settle stops the faults and lets everyone do what they do until nothing changes.
func (m *model) settle() {
	m.faults = false
	for _, name := range hostNames {
		if m.stored(name).InMaintenance() {
			m.park(name)
		}
	}
	for round := 0; ; round++ {
		before := len(m.log)
		for i := range m.controllers {
			c := m.controllers[i]
			c.catchUp(m.log, len(m.log))
			for _, nc := range m.claims {
				switch {
				case nc.deleting:
					m.delete(c, nc)
				case nc.providerID == "": // core asks until it has an id
					m.create(c, nc)
				case !m.named(nc):
					nc.deleting = true
				}
			}
			for _, name := range hostNames {
				c.catchUp(m.log, len(m.log))
				host, err := c.pool.Get(name)
				if err != nil {
					m.fail("a cache that is up to date does not have host %q", name)
				}
				m.join(c, host)
				c.catchUp(m.log, len(m.log))
				host, _ = c.pool.Get(name)
				m.release(c, host)
				c.catchUp(m.log, len(m.log))
				if host, _ = c.pool.Get(name); host.Status.State != v1beta1.HostAvailable || m.machines[name].kubelet {
					m.probe(c, host)
				}
			}
		}
		if len(m.log) == before {
			return
		}
		if round == 50 {
			m.fail("does not settle")
		}
	}
}

// named says whether the host that the NodeClaim's provider id names is the NodeClaim's. One whose host was made again
// never registers, and core deletes it in the end (karpenter's nodeclaim liveness and garbage collection).
func (m *model) named(nc *nodeClaim) bool {
	for _, name := range hostNames {
		if host := m.stored(name); pool.Held(host, nc.ref) && host.StaticProviderID() == nc.providerID {
			return true
		}
	}
	return false
}

func (m *model) check() {
	holders := map[types.UID][]string{}
	for name, machine := range m.machines {
		host := m.stored(name)
		uid := pool.RefOn(host).UID
		switch {
		case uid == "" && host.Status.State != v1beta1.HostAvailable:
			m.fail("host %q is lost: %s, %+v", name, host.Status.State, host.Status.Conditions)
		case uid == "" && machine.kubelet:
			m.fail("host %q is free and a kubelet runs on it", name)
		case uid != "" && host.Status.State == v1beta1.HostInUse && (!machine.kubelet || machine.claim != uid):
			m.fail("host %q is InUse by %q and serves %q", name, uid, machine.claim)
		case uid != "" && m.claims[uid] == nil:
			m.fail("host %q is held by NodeClaim %q, which is gone", name, uid)
		case machine.kubelet && machine.claim != uid:
			m.fail("host %q is held by %q and serves %q", name, uid, machine.claim)
		}
		holders[uid] = append(holders[uid], name)
	}
	for uid, hosts := range holders {
		if uid != "" && len(hosts) > 1 && m.claims[uid].providerID != "" {
			m.fail("NodeClaim %q holds %v", uid, hosts)
		}
	}
}

// walk lets a model take that many steps, and come to rest.
func walk(t *testing.T, seed int64, steps int) *model {
	m := newModel(t, seed)
	for range steps {
		m.step()
	}
	m.settle()
	m.check()
	return m
}

func TestNoHostHasTwoOwnersOrIsLost(t *testing.T) {
	seen := map[string]int{}
	for seed := range int64(60) {
		for what, n := range walk(t, seed, 300).seen {
			seen[what] += n
		}
	}
	// What the protocol is for must have come up, or the test shows nothing.
	for _, what := range []string{"a NodeClaim with two hosts", "a host in excess", "a zombie", "a claim given back"} {
		if seen[what] == 0 {
			t.Errorf("%s never came up", what)
		}
	}
	t.Log(seen)
}
