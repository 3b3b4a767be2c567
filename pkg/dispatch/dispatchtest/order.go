package dispatchtest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// refuse ends a session with a signed refusal.
func (s *session) refuse(reason signing.Reason) int {
	s.answer.Outcome, s.answer.Reason = signing.OutcomeRefused, reason
	s.answer.Started, s.answer.Finished = time.Now(), time.Now()
	s.send(s.answer, nil)
	return exitRefused
}

func (s *session) send(receipt signing.Receipt, output []byte) {
	if mangle := s.behaviour.MangleReceipt; mangle != nil {
		mangle(&receipt)
	}
	envelope, err := signing.Sign(context.Background(), &receipt, s.host.signer)
	if err != nil {
		return
	}
	if mangle := s.behaviour.MangleEnvelope; mangle != nil {
		envelope = mangle(envelope)
	}
	if mangle := s.behaviour.MangleOutput; mangle != nil {
		output = mangle(output)
	}
	_ = wire.WriteOutput(s.out, output)
	_ = wire.Write(s.out, wire.Receipt, envelope)
}

func (s *session) collect(order string) int {
	s.host.mu.Lock()
	last := s.host.last
	var state signing.RunState
	var receipt signing.Receipt
	var output []byte
	if last != nil {
		state, receipt, output = last.state, last.receipt, last.output
	}
	s.host.mu.Unlock()
	s.answer.Order = order
	switch {
	case last == nil || receipt.Order != order:
		return s.refuse(signing.ReasonUnknownRun)
	case state == signing.RunStarted:
		s.answer.Running = order
		return s.refuse(signing.ReasonBusy)
	case state == signing.RunInterrupted:
		receipt.Outcome = signing.OutcomeInterrupted
	}
	s.send(receipt, output)
	return 0
}

// order takes the frames of an order as a shim does, and refuses for the same reasons.
func (s *session) order(kind wire.Type, payload []byte) int {
	order, refusal := s.read(kind, payload)
	if refusal != "" {
		return s.refuse(refusal)
	}
	if lose := s.behaviour.LoseOrder; lose != nil && lose() {
		s.host.Server.Cut()
		return -1
	}
	if refusal := s.admit(order); refusal != "" {
		return s.refuse(refusal)
	}
	if cut := s.behaviour.CutAfterOrder; cut != nil && cut() {
		s.host.Server.Cut()
	}
	receipt, output := s.execute(order)
	if cut := s.behaviour.CutBeforeReceipt; cut != nil && cut() {
		s.host.Server.Cut()
	}
	s.send(receipt, output)
	return 0
}

func (s *session) read(kind wire.Type, payload []byte) (*Order, signing.Reason) {
	if kind != wire.Order {
		return nil, signing.ReasonUnexpectedFrame
	}
	s.answer.Order, _ = signing.PayloadDigest(payload)
	s.host.mu.Lock()
	root, list, ref := s.host.root, s.host.list, s.host.listRef
	s.host.mu.Unlock()
	signed, err := signing.OpenOrder(payload, root)
	if err != nil {
		return nil, signing.ReasonOf(err)
	}
	order := &Order{Order: *signed}
	s.answer.Claim, s.answer.Fence, s.answer.Profile, s.answer.Version = order.Claim, order.Fence, order.Profile, order.Version
	s.answer.Phase, s.answer.Script, s.answer.Parameters = order.Phase, order.Order.Script, order.Order.Parameters
	switch {
	case order.HostID != s.host.id:
		return nil, signing.ReasonWrongHost
	case !bytes.Equal(order.Challenge, s.challenge):
		return nil, signing.ReasonStaleChallenge
	case list == nil:
		return nil, signing.ReasonNotAllowed
	case order.Allowlist != ref.Digest:
		return nil, signing.ReasonRollback
	}
	allowed, err := list.Find(order.Profile, order.Version, order.Phase, order.Order.Script)
	if err != nil {
		return nil, signing.ReasonOf(err)
	}
	return order, s.readRest(order, allowed)
}

// roll takes a newer document.
func (s *session) roll(kind wire.Type, envelope []byte) error {
	h := s.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if kind == wire.Root {
		root, err := signing.NextRoot(h.root, envelope)
		if err == nil {
			h.root, h.rootRef = root, reference(root.Version, envelope)
		}
		return err
	}
	list, err := signing.OpenAllowlist(envelope, h.root)
	if err != nil {
		return err
	}
	if list.Version < h.listRef.Version {
		return &signing.Refusal{Reason: signing.ReasonRollback}
	}
	h.list, h.listRef = list, reference(list.Version, envelope)
	return nil
}

func (s *session) readRest(order *Order, allowed *signing.AllowedScript) signing.Reason {
	kind, payload, err := s.next()
	if err != nil || kind != wire.Parameters {
		return signing.ReasonUnexpectedFrame
	}
	if signing.Digest(payload) != order.Order.Parameters {
		return signing.ReasonParam
	}
	if order.Parameters, err = signing.DecodeParameters(payload); err != nil {
		return signing.ReasonOf(err)
	}
	if err := allowed.Check(order.Parameters, slices.Collect(maps.Keys(order.Order.Secrets))); err != nil {
		return signing.ReasonOf(err)
	}
	s.host.mu.Lock()
	order.Script = s.host.scripts[order.Order.Script]
	s.host.mu.Unlock()
	if kind, payload, err = s.next(); kind == wire.Script {
		order.Script = payload
		kind, payload, err = s.next()
	}
	if err != nil || kind != wire.Secrets || order.Script == nil {
		return signing.ReasonUnexpectedFrame
	}
	if signing.Digest(order.Script) != order.Order.Script {
		return signing.ReasonNotAllowed
	}
	return s.readSecrets(order, payload)
}

func (s *session) readSecrets(order *Order, payload []byte) signing.Reason {
	var err error
	if order.Secrets, err = signing.DecodeParameters(payload); err != nil {
		return signing.ReasonOf(err)
	}
	for name, value := range order.Secrets {
		if order.Order.Secrets[name] != signing.Commitment(s.challenge, name, value) {
			return signing.ReasonSecretMismatch
		}
	}
	if len(order.Secrets) != len(order.Order.Secrets) {
		return signing.ReasonSecretMismatch
	}
	return ""
}

// admit takes the host for an order, or says why not.
func (s *session) admit(order *Order) signing.Reason {
	h := s.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil && h.last.state == signing.RunStarted {
		s.answer.Running = h.last.receipt.Order
		return signing.ReasonBusy
	}
	leaving := order.Phase == signing.PhaseLeave || order.Phase == signing.PhaseUninstall
	same := h.claim.UID == order.Claim && order.Fence >= h.claim.Fence
	free := h.claim.UID == "" && (order.Fence > h.claim.Fence || leaving && order.Fence == h.claim.Fence)
	if !same && !free {
		return signing.ReasonStaleFence
	}
	h.claim.Fence = order.Fence
	if !leaving {
		h.claim.UID = order.Claim
	}
	h.scripts[order.Order.Script] = order.Script
	receipt := s.answer
	receipt.Started = time.Now()
	s.run = &lastRun{state: signing.RunStarted, receipt: receipt, deadline: order.TimeoutSeconds}
	h.last = s.run
	h.orders = append(h.orders, *order)
	return ""
}

// execute has the script's part played, and writes down how it ended unless the host was rebooted.
func (s *session) execute(order *Order) (signing.Receipt, []byte) {
	h := s.host
	began := time.Now()
	exit := Exit{}
	if s.behaviour.Run != nil {
		exit = s.behaviour.Run(*order)
	}
	if exit.Outcome == "" {
		exit.Outcome = signing.OutcomeOK
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	output := []byte(exit.Output)
	r := &s.run.receipt
	r.Outcome, r.ExitCode, r.Signal = exit.Outcome, exit.Code, exit.Signal
	r.Output = signing.OutputRef{Bytes: int64(len(output)), Kept: int64(len(output)), Digest: signing.Digest(output)}
	r.Finished, r.DurationMillis = time.Now(), time.Since(began).Milliseconds()
	if s.run.state == signing.RunInterrupted {
		r.Outcome = signing.OutcomeInterrupted
		return *r, nil
	}
	s.run.state, s.run.output = signing.RunFinished, output
	if exit.Outcome == signing.OutcomeOK && (order.Phase == signing.PhaseLeave || order.Phase == signing.PhaseUninstall) {
		h.claim.UID = ""
	}
	return *r, output
}
