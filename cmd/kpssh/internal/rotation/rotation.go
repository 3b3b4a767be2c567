// Package rotation tells from the root documents and the keys at hand how far the replacement of a key has come. There
// is no note of it anywhere else: what the documents do not show has not happened.
package rotation

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Phase is how far a rotation has come.
type Phase int

// Phases.
const (
	// Idle: nothing is under way.
	Idle Phase = iota
	// Made: there is a key at hand that no root document lists.
	Made
	// Listed: the newest root that changed the role added a key at hand and dropped none.
	Listed
	// Dropped: the newest root that changed the role dropped a key.
	Dropped
)

// State is how far a rotation has come, and of which key to which.
type State struct {
	Phase Phase
	// Old is the key to be replaced, or that was; New its successor, zero when Idle.
	Old, New signing.Key
	// Version is the root document that the phase is of, Listed or Dropped, and Issued its time.
	Version int64
	Issued  time.Time
	// AtOnce says that the root which dropped the old key was the first to list another in its place.
	AtOnce bool
}

// Errors that the operator has to decide.
var (
	// ErrSeveralNew: more than one key at hand is listed nowhere.
	ErrSeveralNew = errors.New("more than one new key is there, of which no root document lists any")
	// ErrSeveralOld: the role has several keys and nobody said which is to go.
	ErrSeveralOld = errors.New("the role has several keys")
	// ErrNotListed: the key that is to go is none of the role.
	ErrNotListed = errors.New("the key to replace is none of the role")
)

// Of reads the state of a role's rotation. roots is the chain from version 1, role picks the role's keys from a root,
// held are the keys at hand, and old, when not nil, is the key to replace.
func Of(roots []*signing.Root, role func(*signing.Root) signing.RoleKeys, held []signing.Key, old *signing.Key) (State, error) {
	current := role(roots[len(roots)-1]).Keys
	var fresh []signing.Key
	for _, key := range held {
		if !EverListed(roots, key) {
			fresh = append(fresh, key)
		}
	}
	if len(fresh) > 1 {
		return State{}, ErrSeveralNew
	}
	if len(fresh) == 1 {
		replaced, err := pick(current, old)
		return State{Phase: Made, New: fresh[0], Old: replaced}, err
	}
	last := lastChange(roots, role)
	switch {
	case last != nil && len(last.dropped) > 0:
		s := State{Phase: Dropped, Old: last.dropped[0], Version: last.root.Version, Issued: last.root.Issued, AtOnce: len(last.added) > 0}
		for _, key := range current { // the newest at hand is the successor
			if slices.ContainsFunc(held, key.Equal) {
				s.New = key
			}
		}
		return s, nil
	case last != nil && len(last.added) == 1 && slices.ContainsFunc(held, last.added[0].Equal):
		s := State{Phase: Listed, New: last.added[0], Version: last.root.Version, Issued: last.root.Issued}
		var err error
		s.Old, err = pick(slices.DeleteFunc(slices.Clone(current), s.New.Equal), old)
		return s, err
	}
	replaced, err := pick(current, old)
	return State{Phase: Idle, Old: replaced}, err
}

// Again is the state of a role whose last rotation is not to count any more.
func Again(roots []*signing.Root, role func(*signing.Root) signing.RoleKeys, old *signing.Key) (State, error) {
	replaced, err := pick(role(roots[len(roots)-1]).Keys, old)
	return State{Phase: Idle, Old: replaced}, err
}

func pick(keys []signing.Key, old *signing.Key) (signing.Key, error) {
	switch {
	case old != nil && !slices.ContainsFunc(keys, old.Equal):
		return signing.Key{}, fmt.Errorf("%s: %w", old.ID(), ErrNotListed)
	case old != nil:
		return *old, nil
	case len(keys) > 1:
		return signing.Key{}, ErrSeveralOld
	}
	return keys[0], nil
}

// EverListed says whether any root lists a key, in any role: it has a history then and is no new key.
func EverListed(roots []*signing.Root, key signing.Key) bool {
	return slices.ContainsFunc(roots, func(root *signing.Root) bool {
		return slices.ContainsFunc(slices.Concat(root.Root.Keys, root.Author.Keys, root.Dispatch.Keys), key.Equal)
	})
}

// change is a root that lists other keys of a role than the one before it.
type change struct {
	root           *signing.Root
	added, dropped []signing.Key
}

func lastChange(roots []*signing.Root, role func(*signing.Root) signing.RoleKeys) *change {
	for i := len(roots) - 1; i > 0; i-- {
		before, after := role(roots[i-1]).Keys, role(roots[i]).Keys
		c := &change{root: roots[i], added: without(after, before), dropped: without(before, after)}
		if len(c.added)+len(c.dropped) > 0 {
			return c
		}
	}
	return nil
}

func without(keys, others []signing.Key) []signing.Key {
	return slices.DeleteFunc(slices.Clone(keys), func(key signing.Key) bool { return slices.ContainsFunc(others, key.Equal) })
}

// Exposed is until when a host that nobody contacts goes on believing a key that the newest root does not list: the
// latest expiry of the roots that list it. The zero time says that no root ever did.
func Exposed(roots []*signing.Root, role func(*signing.Root) signing.RoleKeys, key signing.Key) time.Time {
	var until time.Time
	for _, root := range roots {
		if slices.ContainsFunc(role(root).Keys, key.Equal) && root.Expires.After(until) {
			until = root.Expires
		}
	}
	return until
}
