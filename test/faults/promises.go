package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// promises is what was seen of the pool in one trial, and which promises that broke.
type promises struct {
	hosts  map[string]v1beta1.SSHHostStatus
	claims []types.UID // of all NodeClaims that had a host, the oldest first
	since  time.Time   // when the trial began, by the clock that its hosts have too
	broken []string
}

func (p *promises) broke(format string, args ...any) {
	p.broken = append(p.broken, fmt.Sprintf(format, args...))
}

// see takes a version of a host's status and says whether the host has become Available with it. next says that no version
// was missed since the last one: no host goes from one claim to the next without having been free, and no NodeClaim has
// two hosts.
func (p *promises) see(name string, now v1beta1.SSHHostStatus, next bool) (available bool) {
	before, known := p.hosts[name]
	if p.hosts == nil {
		p.hosts = map[string]v1beta1.SSHHostStatus{}
	}
	p.hosts[name] = now
	if ref := now.ClaimRef; ref != nil {
		if !slices.Contains(p.claims, ref.UID) {
			p.claims = append(p.claims, ref.UID)
		}
		for other, status := range p.hosts {
			if other != name && status.ClaimRef != nil && status.ClaimRef.UID == ref.UID {
				p.broke("NodeClaim %s has two hosts: %s and %s", ref.Name, other, name)
			}
		}
		if next && before.ClaimRef != nil && before.ClaimRef.UID != ref.UID {
			p.broke("%s was claimed by %s while it was %s's", name, ref.Name, before.ClaimRef.Name)
		}
	}
	if now.Fence < before.Fence {
		p.broke("the fence of %s fell from %d to %d", name, before.Fence, now.Fence)
	}
	return known && free(now) && before.State != v1beta1.HostAvailable
}

func free(s v1beta1.SSHHostStatus) bool {
	return s.State == v1beta1.HostAvailable && s.ClaimRef == nil
}

// run is one of a phase, as its host tells it.
type run struct {
	Claim, Phase, Outcome, Verdict, Why string
	Time                                time.Time
}

// ours says whether the run is of a claim of this trial.
func (p *promises) ours(r run) bool {
	return slices.ContainsFunc(p.claims, func(claim types.UID) bool { return strings.HasSuffix(r.Claim, string(claim)) })
}

// ran takes what a host tells of its runs, the oldest first, and what their scripts wrote there themselves. A phase that
// ended well for a claim does not run again for it, and when another claim has had its turn, the one before does not come
// back. With cutShort a fault may have ended a script before its time: such a phase may be run again.
func (p *promises) ran(host string, runs []run, wrote string, cutShort bool) {
	var turns []string
	well, times, told := map[string]bool{}, map[string]int{}, map[string]int{}
	for _, r := range runs {
		// A guard pays a debt under a claim of its own. Its scripts have written like the others.
		if !r.Time.Before(p.since) {
			told[r.Phase]++
		}
		if !p.ours(r) {
			continue
		}
		what := fmt.Sprintf("%s: %s for claim %s", host, r.Phase, r.Claim)
		if r.Verdict != "ok" {
			p.broke("%s: verdict %s: %s", what, r.Verdict, r.Why)
		}
		switch times[what]++; {
		case well[what]:
			p.broke("%s ran again (%s) after it had ended well", what, r.Outcome)
		case times[what] > 1 && !cutShort:
			p.broke("%s ran %d times", what, times[what])
		}
		well[what] = well[what] || r.Outcome == "ok"
		if at := slices.Index(turns, r.Claim); at < 0 {
			turns = append(turns, r.Claim)
		} else if at != len(turns)-1 {
			p.broke("%s came after it was the turn of %s", what, turns[len(turns)-1])
		}
	}
	for _, phase := range []string{"install", "join", "leave"} {
		began := strings.Count(wrote, phase+"-began\n")
		if began > told[phase] || began < told[phase] && !cutShort { // or it was cut off before its first line
			p.broke("%s: %s began %d times, and the receipts tell of %d", host, phase, began, told[phase])
		}
	}
}
