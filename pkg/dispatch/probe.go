package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// probeVerified asks for facts. A host that is behind is brought the signed documents first, or one that is never
// ordered anything would never learn of a key that was replaced.
func (d *Dispatcher) probeVerified(ctx context.Context, host Host) (*Probe, error) {
	s, err := d.open(ctx, host)
	if err != nil {
		return nil, err
	}
	behind := d.bringUp(s)
	if behind.tried {
		// What it says now is what counts: facts are not signed, a hello is.
		s.close()
		if s, err = d.open(ctx, host); err != nil {
			return nil, err
		}
	}
	defer s.close()
	probe, err := d.facts(s)
	if err != nil {
		return nil, err
	}
	probe.Hello, probe.Behind = s.hello, behind.err
	return probe, nil
}

// delivery is what became of bringing a host's documents up to ours.
type delivery struct {
	tried bool
	err   error
}

// bringUp sends the documents that the host lacks, if there are any, and waits until it has taken them. Nothing that
// stands in the way of that is a reason not to look at the host.
func (d *Dispatcher) bringUp(s *session) delivery {
	docs, err := d.trust.load()
	if err != nil {
		return delivery{err: err}
	}
	frames, err := docs.missing(s.hello)
	if err != nil || len(frames) == 0 {
		return delivery{err: err}
	}
	return delivery{tried: true, err: d.deliver(s, frames)}
}

// deliver sends documents and a probe behind them: its answer says that they were taken.
func (d *Dispatcher) deliver(s *session, frames []frame) error {
	request, err := encode(append(frames, frame{wire.Probe, nil}))
	if err != nil {
		return err
	}
	timer := time.AfterFunc(d.options.HelloTimeout, func() { _ = s.stream.Close() })
	defer timer.Stop()
	go func() { _, _ = s.stream.Write(request) }() // a refusal comes before all was read
	kind, payload, err := s.in.Next()
	switch {
	case err != nil:
		return interrupted(err)
	case kind == wire.Facts:
		return nil
	case kind != wire.Receipt:
		return violation("%s frame where facts are due", kind)
	}
	receipt, err := signing.OpenReceipt(payload, s.host.ReceiptKey)
	if err != nil {
		return violation("receipt: %v", err)
	}
	if receipt.Outcome != signing.OutcomeRefused || !bytes.Equal(receipt.Challenge, s.hello.Challenge) {
		return mismatch("challenge")
	}
	return &Error{Class: Refused, Reason: string(receipt.Reason), Receipt: receipt, Detail: "the host did not take the newer documents"}
}

// facts asks for them, in a session that has asked for nothing yet.
func (d *Dispatcher) facts(s *session) (*Probe, error) {
	timer := time.AfterFunc(d.options.HelloTimeout, func() { _ = s.stream.Close() })
	defer timer.Stop()
	if err := wire.Write(s.stream, wire.Probe, nil); err != nil {
		return nil, interrupted(err)
	}
	kind, payload, err := s.in.Next()
	switch {
	case errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrUnknownType):
		return nil, violation("%v", err)
	case err != nil:
		return nil, interrupted(err)
	case kind != wire.Facts:
		return nil, violation("%s frame where facts are due", kind)
	}
	facts, err := parseFacts(payload)
	if err != nil {
		return nil, violation("%v", err)
	}
	return &Probe{
		Facts: facts, HostKeyFingerprint: s.conn.HostKeyFingerprint(),
		UserKeyFingerprint: s.conn.UserKeyFingerprint(),
	}, nil
}

// Bounds of facts. A host may lie within them; nothing is built on that.
const (
	maxFactText  = 128
	maxAddresses = 64
	maxServers   = 8
	maxNoExec    = 16
	maxLeftovers = 64
	maxLeftover  = 256
	maxCPUs      = 1 << 16
	maxBytes     = 1 << 53
)

var errFacts = errors.New("facts are not within their schema")

// parseFacts reads a probe's answer and holds it to its schema. Unknown fields are of a newer shim.
func parseFacts(data []byte) (wire.HostFacts, error) {
	var f wire.HostFacts
	if err := json.Unmarshal(data, &f); err != nil {
		return wire.HostFacts{}, errFacts
	}
	return f, checkFacts(&f)
}

func checkFacts(f *wire.HostFacts) error {
	numbers := []int64{f.MemoryBytes, f.SwapBytes, f.DiskFreeBytes, f.UptimeSeconds, int64(f.PageSize)}
	words := []string{f.UserlandArch, strings.ReplaceAll(f.KubeletVersion, "+", "."), f.Arch, f.KernelArch, f.KubeletState, f.ContainerdState, f.Cgroup, f.MachineID, f.BootID}
	switch {
	case f.CPUs < 1 || f.CPUs > maxCPUs,
		slices.Min(numbers) < 0 || slices.Max(numbers) > maxBytes,
		slices.ContainsFunc(words, func(w string) bool { return !isWord(w) }),
		len(f.Addresses) > maxAddresses || slices.ContainsFunc(f.Addresses, noAddress),
		len(f.Servers) > maxServers || slices.ContainsFunc(f.Servers, noServer),
		len(f.KubeletTolerates) > maxNoExec || slices.ContainsFunc(f.KubeletTolerates, func(w string) bool { return !isWord(w) }),
		len(f.NoExec) > maxNoExec || slices.ContainsFunc(f.NoExec, noPath),
		len(f.Leftovers) > maxLeftovers || slices.ContainsFunc(f.Leftovers, noLeftover):
		return errFacts
	}
	for i, l := range f.Leftovers {
		kind, what, _ := strings.Cut(l, ":")
		f.Leftovers[i] = kind + ":" + Sanitise(what, maxLeftover)
	}
	for _, text := range []*string{&f.Hostname, &f.OS, &f.Kernel} {
		*text = Sanitise(*text, maxFactText)
	}
	return nil
}

func noLeftover(s string) bool {
	kind, _, ok := strings.Cut(s, ":")
	return !ok || !slices.Contains(wire.LeftoverKinds, kind)
}

// noServer is false for HOST:PORT.
func noServer(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err != nil || len(s) > 2*maxFactText || port == "" || !isWord(port) || !isWord(strings.ReplaceAll(host, ":", ""))
}

func noPath(s string) bool {
	return !strings.HasPrefix(s, "/") || !isWord(strings.ReplaceAll(s, "/", ""))
}

func noAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err != nil
}

// isWord holds for names such as "x86_64", "activating", "auto-restart", and for none at all.
func isWord(s string) bool {
	return len(s) <= maxFactText && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '.'
	})
}
