package prepare

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// job is one host to be prepared for one class.
type job struct {
	host, class, marker string
}

// wish is a class that wants hosts prepared.
type wish struct {
	class, marker, profile string
	selector               labels.Selector
	// of is the class itself, which may not be changed.
	of *v1beta1.SSHNodeClass
	// want is how many hosts are to be prepared, has how many are or are about to be.
	want, has int
	// paused says that none is to be prepared for now.
	paused bool
}

func (w *wish) open() bool { return w.has < w.want }

// candidate is a free host that some class wants prepared.
type candidate struct {
	name, installed, profile string
	cpu                      int64
	created                  time.Time
	classes                  []int // of the wishes, in their order
	taken                    bool
}

// Plan picks the hosts to prepare next, no more than there is room for, and notes them as under way: Reconcile must
// follow for each. later says whether something was left to do.
//
// A host has one install marker, so that of several classes it is prepared for one: the one it is prepared for already;
// else one whose profile it has in another version; else the first by name. What a class has beyond its number may be
// taken by another, so that nothing goes back and forth.
func (c *Controller) Plan(ctx context.Context) (names []string, later bool, err error) {
	wishes, err := c.wishes(ctx)
	if err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wishes {
		wishes[i].paused = c.Clock.Now().Before(c.paused[wishes[i].class])
	}
	resumable, candidates, held := c.look(wishes)
	for _, j := range c.running {
		count(wishes, j.class)
	}
	var jobs []job
	for _, j := range resumable {
		if at := slices.IndexFunc(wishes, func(w wish) bool { return w.marker == j.marker }); at >= 0 {
			j.class = wishes[at].class
			wishes[at].has++
		}
		jobs = append(jobs, j) // without a class it is only ended
	}
	jobs = append(jobs, assign(wishes, candidates)...)
	c.Metrics.observe(wishes, candidates)
	room := max(0, c.Workers-len(c.running))
	later = len(jobs) > room || held || slices.ContainsFunc(wishes, func(w wish) bool { return w.paused })
	for _, j := range jobs[:min(room, len(jobs))] {
		c.running[j.host] = j
		names = append(names, j.host)
	}
	return names, later, nil
}

func count(wishes []wish, class string) {
	for i := range wishes {
		if wishes[i].class == class {
			wishes[i].has++
		}
	}
}

// wishes are those of the classes that may have hosts joined at all, by name.
func (c *Controller) wishes(ctx context.Context) ([]wish, error) {
	list := &v1beta1.SSHNodeClassList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing node classes: %w", err)
	}
	var out []wish
	for i := range list.Items {
		class := &list.Items[i]
		if class.ToPrepare() == 0 || !class.DeletionTimestamp.IsZero() || !class.DeepCopy().StatusConditions().Get(v1beta1.ConditionReady).IsTrue() {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&class.Spec.HostSelector)
		if err != nil {
			continue // its status says so
		}
		prof := &v1beta1.SSHJoinProfile{}
		if err := c.Client.Get(ctx, types.NamespacedName{Name: class.Spec.JoinProfileRef.Name}, prof); err != nil {
			if client.IgnoreNotFound(err) == nil {
				continue
			}
			return nil, fmt.Errorf("reading SSHJoinProfile %q: %w", class.Spec.JoinProfileRef.Name, err)
		}
		out = append(out, wish{of: class, class: class.Name, marker: prof.Marker(), profile: prof.Name, selector: selector, want: class.ToPrepare()})
	}
	slices.SortFunc(out, func(a, b wish) int { return strings.Compare(a.class, b.class) })
	return out, nil
}

// look goes through the hosts: preparations that another process began, and free hosts that a class selects, in the
// order in which they are prepared. held says that there are some whose time has not come.
func (c *Controller) look(wishes []wish) (resumable []job, candidates []candidate, held bool) {
	now := c.Clock.Now()
	c.Inventory.Range(func(h *v1beta1.SSHHost) {
		if _, running := c.running[h.Name]; running {
			return
		}
		if pool.Resumable(h) {
			resumable = append(resumable, job{host: h.Name, marker: pool.Preparing(h)})
			return
		}
		waits := failing(h, now)
		if !waits && !pool.Claimable(h) {
			return
		}
		switch candidate := candidateOf(h, wishes); {
		case candidate == nil:
		case waits:
			held = true
		default:
			candidates = append(candidates, *candidate)
		}
	})
	slices.SortFunc(resumable, func(a, b job) int { return strings.Compare(a.host, b.host) })
	slices.SortFunc(candidates, func(a, b candidate) int {
		// The cheapest type is claimed first, and a type costs by its CPUs.
		return cmp.Or(cmp.Compare(a.cpu, b.cpu), a.created.Compare(b.created), strings.Compare(a.name, b.name))
	})
	return resumable, candidates, held
}

func candidateOf(h *v1beta1.SSHHost, wishes []wish) *candidate {
	out := candidate{name: h.Name, installed: h.Status.InstalledProfile, cpu: h.Spec.Capacity.Cpu().MilliValue(), created: h.CreationTimestamp.Time}
	out.profile, _, _ = profile.ParseMarker(out.installed)
	for i := range wishes {
		if wishes[i].selector.Matches(labels.Set(h.Labels)) && h.PassesFor(wishes[i].of) {
			out.classes = append(out.classes, i)
		}
	}
	if len(out.classes) == 0 {
		return nil
	}
	return &out
}

// failing says whether the host, or its last preparation, failed so recently that it is not to be tried again yet. Both are
// on record, so that another process waits too.
func failing(h *v1beta1.SSHHost, now time.Time) bool {
	return pool.RetryIn(h, now) > 0 || pool.LeaveIn(h, now) > 0 || now.Before(pool.UnpreparedSince(h).Add(retry))
}

// assign gives candidates to classes.
func assign(wishes []wish, candidates []candidate) (jobs []job) {
	// What is prepared stays so, and counts for one class only.
	for i := range candidates {
		h := &candidates[i]
		for _, w := range h.classes {
			if wishes[w].marker == h.installed && wishes[w].open() {
				wishes[w].has++
				h.taken = true
				break
			}
		}
	}
	surplus := func(h *candidate) bool {
		return slices.ContainsFunc(h.classes, func(w int) bool { return wishes[w].marker == h.installed })
	}
	for _, suits := range []func(h *candidate, w *wish) bool{
		func(h *candidate, w *wish) bool { return h.profile == w.profile && !surplus(h) },
		func(h *candidate, _ *wish) bool { return !surplus(h) },
		func(h *candidate, w *wish) bool { return h.installed != w.marker },
	} {
		for w := range wishes {
			for i := range candidates {
				h := &candidates[i]
				if wishes[w].paused || !wishes[w].open() {
					break
				}
				if !h.taken && slices.Contains(h.classes, w) && suits(h, &wishes[w]) {
					h.taken = true
					wishes[w].has++
					jobs = append(jobs, job{host: h.name, class: wishes[w].class, marker: wishes[w].marker})
				}
			}
		}
	}
	return jobs
}
