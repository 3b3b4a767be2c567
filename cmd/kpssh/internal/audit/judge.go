package audit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// ordered is an order whose signature holds.
type ordered struct {
	order       *signing.Order
	first, last int64 // versions of the roots that list its key
	keys        []string
}

// openOrder verifies an order under every root of the chain: one that a key signed which has been dropped since is
// still that key's.
func (t *Trust) openOrder(envelope []byte) (*ordered, error) {
	var o *ordered
	var refused error
	for _, root := range t.roots {
		order, err := signing.OpenOrder(envelope, root)
		if err != nil {
			refused = err
			continue
		}
		if o == nil {
			o = &ordered{order: order, first: root.Version}
		}
		o.last = root.Version
		in, err := signing.Inspect(envelope, root.Dispatch.Keys...)
		if err != nil {
			return nil, err
		}
		for _, key := range in.SignedBy {
			if id := key.ID(); !slices.Contains(o.keys, id) {
				o.keys = append(o.keys, id)
			}
		}
	}
	if o == nil {
		return nil, fmt.Errorf("order: %w", refused)
	}
	return o, nil
}

// answered is a receipt whose signature holds, and the host that it is of.
type answered struct {
	receipt *signing.Receipt
	host    string
}

// openReceipt verifies a receipt under the keys of the host that a record names.
func (t *Trust) openReceipt(r *wire.Record) (*answered, error) {
	candidates := slices.Clone(t.hosts[r.HostID])
	for _, key := range t.keys {
		candidates = append(candidates, host{key: key})
	}
	if len(candidates) == 0 {
		return nil, fmt.Errorf("receipt: no receipt key of host %q is known", r.HostID)
	}
	var refused error
	for _, h := range candidates {
		receipt, err := signing.OpenReceipt(r.Receipt, h.key)
		if err != nil {
			refused = err
			continue
		}
		if h.name != "" && r.Host != "" && h.name != r.Host {
			refused = mismatch("host")
			continue
		}
		if receipt.HostID != r.HostID {
			return nil, mismatch("hostID")
		}
		return &answered{receipt, h.name}, nil
	}
	return nil, fmt.Errorf("receipt: %w", refused)
}

func mismatch(field string) error {
	return fmt.Errorf("%s is not what was signed", field)
}

// field is something that must hold, by the name under which its failure is told.
type field struct {
	name  string
	holds bool
}

func allHold(fields ...field) error {
	for _, f := range fields {
		if !f.holds {
			return mismatch(f.name)
		}
	}
	return nil
}

// checkForm holds a record to what any record may be, so that what nobody has signed can at least be printed.
func checkForm(r *wire.Record) error {
	if err := checkText(r); err != nil {
		return err
	}
	switch {
	case r.Source != wire.SourceHost && r.Source != wire.SourceController:
		return fmt.Errorf("unknown source %q", r.Source)
	case r.Mode != wire.ModeRaw && r.Mode != wire.ModeVerified:
		return fmt.Errorf("unknown mode %q", r.Mode)
	case (r.Mode == wire.ModeVerified) != (len(r.Order)+len(r.Receipt) > 0):
		return fmt.Errorf("mode %s does not go with what it holds", r.Mode)
	case r.DispatchKey != "" && len(r.Order) == 0:
		return errors.New("it names a dispatch key and lacks the order")
	case r.Source == wire.SourceHost && !ofHost(r):
		return errors.New("it is not what a host writes")
	}
	return nil
}

// checkText refuses what would do something to a terminal, and more than any name or digest has.
func checkText(r *wire.Record) error {
	for _, text := range []string{
		r.Stream, r.Host, r.HostID, r.NodeClaim, r.Claim, r.Profile, r.Version, r.Phase, r.Script, r.Parameters, r.Outcome, r.Reason, r.Signal,
		r.OrderDigest, r.DispatchKey,
	} {
		if len(text) > 253 || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return errors.New("a field holds what no name and no digest does")
		}
	}
	return nil
}

// ofHost says whether a host may have written it: one has both envelopes of a run, and knows nothing of the cluster.
func ofHost(r *wire.Record) bool {
	controllers := r.Host + r.Stream + r.NodeClaim + r.DispatchKey
	return controllers == "" && r.Time.IsZero() && len(r.Order) > 0 && len(r.Receipt) > 0
}

// matches holds a record against its own order.
func (o *ordered) matches(r *wire.Record) error {
	digest, err := signing.PayloadDigest(r.Order)
	if err != nil {
		return err
	}
	return allHold(
		field{"orderDigest", r.OrderDigest == digest},
		field{"hostID", r.HostID == o.order.HostID},
		field{"claim", r.Claim == o.order.Claim},
		field{"profile", r.Profile == o.order.Profile},
		field{"version", r.Version == o.order.Version},
		field{"phase", r.Phase == string(o.order.Phase)},
		field{"script", r.Script == o.order.Script},
		field{"parameters", r.Parameters == o.order.Parameters},
		field{"dispatchKey", r.DispatchKey == "" || slices.Contains(o.keys, r.DispatchKey)},
	)
}

// matches holds a record against its receipt.
func (a *answered) matches(r *wire.Record) error {
	c := a.receipt
	refused := c.Outcome == signing.OutcomeRefused
	says := func(name, here, signed string) field {
		return field{name, here == signed || refused && signed == ""}
	}
	return allHold(
		field{"outcome", r.Outcome == string(c.Outcome)},
		field{"reason", r.Reason == string(c.Reason)},
		field{"exitCode", r.ExitCode == c.ExitCode},
		field{"signal", r.Signal == c.Signal},
		says("orderDigest", r.OrderDigest, c.Order),
		says("claim", r.Claim, c.Claim),
		says("profile", r.Profile, c.Profile),
		says("version", r.Version, c.Version),
		says("phase", r.Phase, string(c.Phase)),
		says("script", r.Script, c.Script),
		says("parameters", r.Parameters, c.Parameters),
	)
}

// errOther is a receipt that is of another order.
var errOther = errors.New("the receipt answers another order")

// answers tells whether a receipt answers an order, as the dispatcher does.
func (a *answered) answers(o *signing.Order, digest string) error {
	c := a.receipt
	switch {
	case c.HostID != o.HostID || !bytes.Equal(c.Challenge, o.Challenge):
		return fmt.Errorf("%w: its host or challenge differs", errOther)
	case c.Outcome == signing.OutcomeRefused && c.Order == "":
		return nil // the host never read the order
	case c.Order != digest:
		return errOther
	case c.Outcome == signing.OutcomeRefused:
		return nil
	case !ranAsOrdered(c, o):
		return errOther
	case c.Outcome == signing.OutcomeOK && (c.ExitCode != 0 || c.Signal != ""):
		return errors.New("the receipt contradicts itself: it went well and did not")
	}
	return nil
}

// ranAsOrdered tells whether what ran, and for whom, is what an order says.
func ranAsOrdered(c *signing.Receipt, o *signing.Order) bool {
	return c.Claim == o.Claim && c.Fence == o.Fence && c.Profile == o.Profile && c.Version == o.Version &&
		c.Phase == o.Phase && c.Script == o.Script && c.Parameters == o.Parameters
}

// allows tells whether the allowlists that are given hold what ran. The one that the order names decides, where it is
// given.
func (t *Trust) allows(r *wire.Record, o *ordered) error {
	if len(t.allowlists) == 0 {
		return nil
	}
	find := func(list *signing.Allowlist) error {
		_, err := list.Find(r.Profile, r.Version, signing.Phase(r.Phase), r.Script)
		return err
	}
	if o != nil {
		if list, ok := t.allowlists[o.order.Allowlist]; ok {
			return find(list)
		}
	}
	var refused error
	for _, list := range t.allowlists {
		if refused = find(list); refused == nil {
			return nil
		}
	}
	return refused
}

const (
	// clockSlack is how far the clocks of host and controller may be apart without a word.
	clockSlack = 5 * time.Minute
	// endSlack is how long after its deadline a script may need to be ended.
	endSlack = time.Minute
)

// oddities are times that cannot all be right. Clocks of hosts are wrong at times and nobody vouches for them, so this
// refuses nothing.
func oddities(r *wire.Record, o *signing.Order, c *signing.Receipt, now time.Time) (odd []string) {
	note := func(holds bool, format string, args ...any) {
		if holds {
			odd = append(odd, fmt.Sprintf(format, args...))
		}
	}
	if c == nil {
		return nil
	}
	ended := !c.Finished.IsZero()
	note(ended && c.Finished.Before(c.Started), "it ended before it began, by the host's clock")
	note(ended && c.Finished.After(now.Add(clockSlack)), "the host's clock is ahead of now")
	if ended && !r.Time.IsZero() {
		// The controller may hear of an end late, and never early.
		note(c.Finished.Sub(r.Time) > clockSlack, "the host's clock is %s ahead of the controller's", c.Finished.Sub(r.Time).Round(time.Second))
	}
	if o != nil {
		limit := time.Duration(o.TimeoutSeconds)*time.Second + endSlack
		took := time.Duration(c.DurationMillis) * time.Millisecond
		note(took > limit, "it took %s, and had %d s", took.Round(time.Second), o.TimeoutSeconds)
	}
	return odd
}
