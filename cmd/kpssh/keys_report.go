package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/rotation"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// rotationStep is one line of a rotation's report.
type rotationStep struct {
	Step string `json:"step"`
	What string `json:"what"`
	// State is done, next or later.
	State string `json:"state"`
	Note  string `json:"note,omitempty"`
}

// rotationResult is where a rotation stands.
type rotationResult struct {
	Role     string         `json:"role"`
	Old      string         `json:"old"`
	New      string         `json:"new,omitempty"`
	Finished bool           `json:"finished"`
	Steps    []rotationStep `json:"steps"`
	// OldFile is the old private key where the folder has it, SafeToDelete whether it is of no more use.
	OldFile      string `json:"oldFile,omitempty"`
	SafeToDelete bool   `json:"safeToDelete"`
	// ExposedUntil and ExposedHosts are who goes on believing a dropped key, and until when at the latest.
	ExposedUntil *time.Time `json:"exposedUntil,omitempty"`
	ExposedHosts []string   `json:"exposedHosts,omitempty"`
}

func (r *rotator) order() []rotationStep {
	use := "the controller signs with the new key"
	if r.role == roleAuthor {
		use = "the new key has signed the allowlist, and every host has it"
	}
	key := rotationStep{Step: stepKey, What: "the new " + r.role + " key is made"}
	change := rotationStep{Step: stepSwitch, What: use}
	switch {
	case r.emergency && r.role == roleAuthor:
		return []rotationStep{key, {Step: stepDrop, What: "a root document lists the new key, which has signed the allowlist, and not the old one"}}
	case r.emergency:
		return []rotationStep{key, {Step: stepDrop, What: "a root document lists the new key and not the old one"}, change}
	}
	return []rotationStep{
		key, {Step: stepList, What: "a root document lists the old key and the new one"},
		{Step: stepSpread, What: "every host has that root"}, change,
		{Step: stepDrop, What: "a root document drops the old key"},
	}
}

func (r *rotator) result(ctx context.Context) *rotationResult {
	result := &rotationResult{Role: r.role, Old: r.state.Old.String(), Finished: r.at == "", Steps: r.order()}
	if len(r.state.New.Public) > 0 {
		result.New = r.state.New.String()
	}
	at := slices.IndexFunc(result.Steps, func(s rotationStep) bool { return s.Step == r.at })
	for i := range result.Steps {
		s := &result.Steps[i]
		switch {
		case r.at == "" || i < at:
			s.State = "done"
		case i == at:
			s.State, s.Note = "next", r.note
		default:
			s.State = "later"
		}
	}
	if r.state.Phase == rotation.Dropped {
		r.aftermath(ctx, result)
	}
	return result
}

// aftermath says what a dropped key is still good for, to whom, and until when.
func (r *rotator) aftermath(ctx context.Context, result *rotationResult) {
	until := rotation.Exposed(r.set.Roots, r.keys, r.state.Old)
	result.ExposedUntil = &until
	if r.pool == nil && !r.offline {
		if err := r.look(ctx); err != nil { // the rotation itself needs no cluster any more
			r.env.Warnf("%v", err)
		}
	}
	if r.pool != nil {
		for i := range r.pool.Hosts {
			host := &r.pool.Hosts[i]
			if trust := host.Status.Trust; !host.Raw() && (trust == nil || trust.RootVersion < r.state.Version) {
				result.ExposedHosts = append(result.ExposedHosts, host.Name)
			}
		}
	}
	if file, err := r.fileOf(r.state.Old); err == nil {
		result.OldFile = file
	}
	result.SafeToDelete = r.successorVerifies()
	r.tell(result)
}

// successorVerifies says whether the new key does the old one's work, as far as it can be seen from here.
func (r *rotator) successorVerifies() bool {
	if r.role == roleAuthor {
		return r.set.Allowlist == nil || r.set.AllowlistHolds(&signing.Root{Author: signing.RoleKeys{Keys: []signing.Key{r.state.New}, Threshold: 1}})
	}
	if r.pool == nil && !r.state.AtOnce { // the root that dropped the old key came after the switch
		return true
	}
	return r.confirmed(stepSwitch) || r.pool != nil && r.pool.DispatchKey == r.state.New.String()
}

func (r *rotator) tell(result *rotationResult) {
	date := result.ExposedUntil.UTC().Format(time.DateOnly)
	switch {
	case r.pool == nil:
		r.env.Warnf("a host that has not taken root %d goes on believing %s, until %s at the latest: '%s trust status' names them", r.state.Version, nameOf(r.dir, r.state.Old), date, r.env.Prog)
	case len(result.ExposedHosts) > 0:
		r.env.Warnf("not on root %d yet, and so believing %s until they are contacted, or until %s at the latest: %s",
			r.state.Version, nameOf(r.dir, r.state.Old), date, listed(result.ExposedHosts))
	}
	if result.OldFile != "" {
		if result.SafeToDelete {
			r.env.Progress("%s is of no more use and may be deleted", result.OldFile)
		} else {
			r.env.Progress("keep %s until the new key is seen in use", result.OldFile)
		}
	}
	if result.Finished && !r.acted { // whoever called may have meant another replacement
		if r.emergency && r.env.Now().Sub(r.state.Issued) >= finishedLately {
			r.env.Warnf("this call replaced nothing: the %s key was replaced on %s, and the one in use since is still believed", r.role, r.state.Issued.UTC().Format(time.DateOnly))
		}
		r.env.Hintf("root version %d of %s dropped the old %s key; if the one in use now is to be replaced too: --again",
			r.state.Version, r.state.Issued.UTC().Format(time.DateOnly), r.role)
	}
}

// listed names as many hosts as a line takes.
func listed(names []string) string {
	const most = 20
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func (r *rotationResult) table() *cli.Table {
	t := cli.NewTable("STEP", "STATE", "WHAT", "NOW")
	for _, s := range r.Steps {
		t.Row(s.Step, s.State, s.What, s.Note)
	}
	return t
}
