package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	rootFile      = "root.json"
	allowlistFile = "allowlist.json"
	trustLock     = "trust.lock"

	maxRootFile      = 128 << 10
	maxAllowlistFile = 2 << 20
)

// trust is what the host believes: a root, and the allowlist that its authors signed.
type trust struct {
	root    *signing.Root
	rootRef signing.DocumentRef
	list    *signing.Allowlist
	listRef signing.DocumentRef
	// floor is the version below which no allowlist is taken, 0 once the author's keys changed, and
	// floorRef the list that set it.
	floor    int64
	floorRef signing.DocumentRef
	// rootBytes and listBytes are the files that all this was read from; listBytes is nil without one.
	rootBytes, listBytes []byte
}

// keptAllowlist is the file of an allowlist. Author names the set of author keys under which it
// was taken: its version is a floor for as long as that set stands, so that a root with other
// authors resets the floor in the same write that makes them known (TUF 5.3.11).
type keptAllowlist struct {
	Author   string          `json:"author"`
	Envelope json.RawMessage `json:"envelope"`
}

// loadTrust opens the documents that the host keeps, checking their signatures again.
func loadTrust(d *dir) (*trust, error) {
	envelope, err := d.read(rootFile, maxRootFile)
	if err != nil {
		return nil, err
	}
	t := &trust{rootBytes: envelope}
	if t.root, err = signing.OpenFirstRoot(envelope); err != nil {
		return nil, fmt.Errorf("opening the root that the host keeps: %w", err)
	}
	if t.rootRef, err = refOf(t.root.Version, envelope); err != nil {
		return nil, err
	}
	return t, t.loadAllowlist(d)
}

// stillOnDisk says whether the documents are those that t was read from, without checking their
// signatures once more.
func (t *trust) stillOnDisk(d *dir) (bool, error) {
	root, err := d.read(rootFile, maxRootFile)
	if err != nil {
		return false, err
	}
	list, err := readAllowlist(d)
	return bytes.Equal(root, t.rootBytes) && bytes.Equal(list, t.listBytes), err
}

// readAllowlist returns the file of the allowlist; nil when there is none, or none that can be one.
func readAllowlist(d *dir) ([]byte, error) {
	data, err := d.read(allowlistFile, maxAllowlistFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errTooLong) {
		return nil, nil
	}
	return data, err
}

func (t *trust) loadAllowlist(d *dir) error {
	data, err := readAllowlist(d)
	if err == nil && data != nil {
		t.believe(data)
	}
	return err
}

// believe takes what it can from the file of an allowlist. One that does not open is no list: nothing is allowed until
// the next one comes. It must not end the session, which is the only way by which that can come.
func (t *trust) believe(data []byte) {
	t.listBytes = data
	var kept keptAllowlist
	if json.Unmarshal(data, &kept) != nil {
		return
	}
	same := kept.Author == authorSet(t.root)
	var ref signing.DocumentRef
	list, err := signing.OpenAllowlist(kept.Envelope, t.root)
	if err == nil {
		ref, err = refOf(list.Version, kept.Envelope)
	}
	switch {
	case err == nil:
		t.list, t.listRef = list, ref
	case same:
		// More of its authors must sign now: nothing is allowed until the next list comes, which
		// must not be an older one.
		ref, err = keptRef(kept.Envelope)
	}
	// The list of somebody who is no author any more allows nothing, and is no floor.
	if same && err == nil {
		t.floorRef, t.floor = ref, ref.Version
	}
}

// keptRef names the list that the host keeps, which was verified when it was taken and may be signed
// by too few for the root of now.
func keptRef(envelope []byte) (signing.DocumentRef, error) {
	in, err := signing.Inspect(envelope)
	if err != nil {
		return signing.DocumentRef{}, fmt.Errorf("reading the allowlist that the host keeps: %w", err)
	}
	var list signing.Allowlist
	if err := json.Unmarshal(in.Payload, &list); err != nil {
		return signing.DocumentRef{}, fmt.Errorf("reading the allowlist that the host keeps: %w", err)
	}
	return signing.DocumentRef{Version: list.Version, Digest: signing.Digest(in.Payload)}, nil
}

func refOf(version int64, envelope []byte) (signing.DocumentRef, error) {
	digest, err := signing.PayloadDigest(envelope)
	return signing.DocumentRef{Version: version, Digest: digest}, err
}

// authorSet names the set of author keys of a root, whatever their order.
func authorSet(root *signing.Root) string {
	var ids []string
	for _, k := range root.Author.Keys {
		ids = append(ids, k.ID())
	}
	slices.Sort(ids)
	return signing.Digest([]byte(strings.Join(ids, "\n")))
}

// rollRoot takes the next root. It returns what the host believes then.
func (t *trust) rollRoot(d *dir, envelope []byte) (*trust, error) {
	return update(d, func(now *trust) (*trust, error) {
		if ref, err := refOf(now.root.Version, envelope); err == nil && ref == now.rootRef {
			return now, nil // another session took the same step meanwhile
		}
		if _, err := signing.NextRoot(now.root, envelope); err != nil {
			return nil, err
		}
		// Without what nobody signed, and only what opens again: a host whose root does not has no session any more.
		sealed, err := signing.Reseal(envelope)
		if err != nil {
			return nil, err
		}
		if _, err := signing.OpenFirstRoot(sealed); err != nil {
			return nil, err
		}
		if err := d.write(rootFile, sealed); err != nil {
			return nil, unwritable(err)
		}
		return loadTrust(d)
	})
}

// rollAllowlist takes a newer allowlist, expired or not: that blocks orders, never documents.
func (t *trust) rollAllowlist(d *dir, envelope []byte) (*trust, error) {
	return update(d, func(now *trust) (*trust, error) {
		list, err := signing.OpenAllowlist(envelope, now.root)
		if err != nil {
			return nil, err
		}
		ref, err := refOf(list.Version, envelope)
		switch {
		case err != nil:
			return nil, err
		case ref == now.listRef && now.floor == list.Version:
			return now, nil
		case list.Version < now.floor:
			return nil, refuse(signing.ReasonRollback, "allowlist version %d, host has %d", list.Version, now.floor)
		case list.Version == now.floor && ref != now.floorRef:
			return nil, refuse(signing.ReasonRollback, "another allowlist of version %d than the host has", list.Version)
		}
		next, err := now.withAllowlist(envelope, ref)
		if err != nil {
			return nil, err
		}
		if err := d.write(allowlistFile, next.listBytes); err != nil {
			return nil, unwritable(err)
		}
		return next, nil
	})
}

// withAllowlist is what the host believes with a list that was verified, as it will read it from the file that this
// makes: what nobody signed is dropped, and what would not open again is refused before it is written.
func (t *trust) withAllowlist(envelope []byte, ref signing.DocumentRef) (*trust, error) {
	sealed, err := signing.Reseal(envelope)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(keptAllowlist{Author: authorSet(t.root), Envelope: sealed})
	if err != nil {
		return nil, refuse(signing.ReasonMalformed, "allowlist envelope is not JSON")
	}
	next := &trust{root: t.root, rootRef: t.rootRef, rootBytes: t.rootBytes}
	next.believe(data)
	if len(data) > maxAllowlistFile || next.listRef != ref || next.floorRef != ref {
		return nil, refuse(signing.ReasonMalformed, "allowlist version %d does not open again once it is kept", ref.Version)
	}
	return next, nil
}

// update changes the documents under their lock and from what is on disk, not from what this
// session read when it began: two sessions that bring documents must not undo each other.
func update(d *dir, change func(*trust) (*trust, error)) (*trust, error) {
	l, err := d.waitLock(trustLock)
	if err != nil {
		return nil, unwritable(err)
	}
	defer l.release()
	now, err := loadTrust(d)
	if err != nil {
		return nil, unwritable(err)
	}
	return change(now)
}

// checkExpiry holds root and allowlist against the latest time that is known: the clock, the time
// of the build, and what root and author signed. A leave script may have a grace.
func (t *trust) checkExpiry(script *signing.AllowedScript, now, built time.Time) error {
	var grace time.Duration
	if script.Phase == signing.PhaseLeave {
		grace = time.Duration(script.GraceSeconds) * time.Second
	}
	floors := []time.Time{now, built, t.root.Issued, t.list.Issued}
	if err := signing.CheckExpiry(t.root.Expires.Add(grace), floors...); err != nil {
		return err
	}
	return signing.CheckExpiry(t.list.Expires.Add(grace), floors...)
}

// refuse makes the refusal that a receipt and the log carry. Text of a peer goes in with %q.
func refuse(reason signing.Reason, format string, args ...any) error {
	return &signing.Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

func unwritable(err error) error {
	if signing.ReasonOf(err) != "" {
		return err
	}
	return refuse(signing.ReasonStateUnwritable, "%v", err)
}
