package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/rotation"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Where a rotation is: read from the documents, the keys at hand, and the cluster.

// finishedLately is how long a finished rotation is not begun again without being told: whoever calls it once more
// after an interruption means the one that is finished.
const finishedLately = 24 * time.Hour

// load reads the folder, after mending what an interruption left half done, and finds out where the rotation is.
func (r *rotator) load(ctx context.Context) error {
	var err error
	if r.set, err = documents.Read(r.dir); err != nil {
		return err
	}
	if !r.dryRun {
		if err := r.set.Mend(r.dir); err != nil {
			return err
		}
	}
	r.state, err = r.read(ctx)
	switch {
	case errors.Is(err, rotation.ErrSeveralOld):
		return cli.Hint(fmt.Errorf("root version %d lists several %s keys", r.set.Root.Version, r.role), "say which is to go: --old KEY ('%s root show' lists them)", r.env.Prog)
	case errors.Is(err, rotation.ErrSeveralNew):
		return cli.Hint(err, "take the public half of those that are not wanted out of %s", r.dir.At("public"))
	}
	return err
}

// read finds out where the rotation is. One that is finished stands as beginsAnew says; --again counts once. One of which
// the switch is still owed is not finished, however long ago it was begun.
func (r *rotator) read(ctx context.Context) (rotation.State, error) {
	held, err := r.held()
	if err != nil {
		return rotation.State{}, err
	}
	var old *signing.Key
	if r.old != "" {
		key, err := r.named(r.old)
		if err != nil {
			return rotation.State{}, err
		}
		old = &key
	}
	state, err := rotation.Of(r.set.Roots, r.keys, held, old)
	told, anew := r.again, r.beginsAnew(r.env.Now().Sub(state.Issued))
	r.again = false // or what this very call finishes would be begun once more
	if err != nil || state.Phase != rotation.Dropped || !anew {
		return state, err
	}
	if !told {
		if owed, err := r.cutOff(ctx, state); owed || err != nil {
			return state, err
		}
	}
	return rotation.Again(r.set.Roots, r.keys, old)
}

// cutOff says whether a replacement of long ago ended before the controller had the new key. It refuses to guess where a
// root replaced the key at once, which is before the switch, and nothing here says what the controller signs with.
func (r *rotator) cutOff(ctx context.Context, state rotation.State) (bool, error) {
	if r.role != roleDispatch || len(state.New.Public) == 0 { // nothing here to go on with: its key is in a key service
		return false, nil
	}
	if r.pool == nil && !r.offline {
		if err := r.look(ctx); err != nil {
			return false, err
		}
	}
	switched, err := r.switchSeen(ctx, state)
	if err != nil || switched != switchUnseen {
		return switched == switchOwed, err
	}
	if !state.AtOnce {
		return false, nil // the root that dropped the key came after the switch
	}
	return false, cli.Hint(fmt.Errorf("root version %d replaced the dispatch key at once, on %s, and it cannot be seen from here whether the controller has signed with the new one since",
		state.Version, state.Issued.UTC().Format(time.DateOnly)),
		"to finish that: --emergency; if it is finished, to replace the key once more: --again")
}

// beginsAnew says whether a call replaces the key although the last rotation, of that age, is finished. An emergency is
// called again to see who still believes the old key, and --confirm is about a rotation that was begun: however long ago
// that was, neither means another one.
func (o *rotateOptions) beginsAnew(age time.Duration) bool {
	return o.again || age >= finishedLately && !o.emergency && len(o.confirm) == 0
}

// named is the key that --old says, which the newest root may have dropped already.
func (r *rotator) named(text string) (signing.Key, error) {
	var key signing.Key
	var err error
	for _, root := range slices.Backward(r.set.Roots) {
		if key, err = listedKey(r.env, root, r.role, text); err == nil {
			break
		}
	}
	return key, err
}
