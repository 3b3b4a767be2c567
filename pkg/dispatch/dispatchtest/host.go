package dispatchtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Order is an order that a host accepted, as its script would see it.
type Order struct {
	signing.Order
	Parameters map[string]string
	Secrets    map[string]string
	Script     []byte
}

// Exit is how a script ended.
type Exit struct {
	Output  string
	Outcome signing.Outcome // ok when empty
	Code    int
	Signal  string
}

// Behaviour is how a host behaves; the zero value behaves well. Functions may be nil.
type Behaviour struct {
	// Run stands in for the execution of a script. It is called once for every order accepted.
	Run func(Order) Exit
	// Facts are what probes answer; something plausible when nil.
	Facts func() wire.HostFacts
	// Noise is printed before the session.
	Noise string
	// MangleHello and MangleReceipt change documents before they are signed.
	MangleHello   func(*signing.Hello)
	MangleReceipt func(*signing.Receipt)
	// MangleEnvelope replaces a receipt's envelope after it was signed.
	MangleEnvelope func(envelope []byte) []byte
	// MangleOutput changes what is sent as output.
	MangleOutput func([]byte) []byte
	// CutAfterOrder ends the connection when an order was read and before it is run, CutBeforeReceipt
	// when it was run and before it is answered. A function answers whether to.
	CutAfterOrder    func() bool
	CutBeforeReceipt func() bool
	// LoseOrder forgets an order that was read, and ends the connection.
	LoseOrder func() bool
}

// Host is a host that speaks the shim's protocol. It is safe for concurrent use.
type Host struct {
	Name   string
	Server *remotetest.Server

	world  *World
	id     string
	signer signing.Signer

	mu        sync.Mutex
	behaviour Behaviour
	bootID    string
	root      *signing.Root
	rootRef   signing.DocumentRef
	list      *signing.Allowlist
	listRef   signing.DocumentRef
	claim     signing.Claim
	last      *lastRun
	scripts   map[string][]byte
	orders    []Order
	sessions  int
	received  map[wire.Type]int
}

type lastRun struct {
	state    signing.RunState
	receipt  signing.Receipt
	deadline int64
	output   []byte
}

// NewHost enrols a host that trusts the world's newest root document.
func (w *World) NewHost(name string) *Host {
	w.tb.Helper()
	h := &Host{
		Name: name, world: w, id: randomID(), signer: NewSigner(w.tb), bootID: randomID(),
		scripts: map[string][]byte{}, received: map[wire.Type]int{},
	}
	roots, _, _ := w.Documents()
	newest := slices.Max(slices.Collect(maps.Keys(roots)))
	root, err := signing.OpenFirstRoot(roots[newest])
	if err != nil {
		w.tb.Fatal(err)
	}
	h.root, h.rootRef = root, reference(newest, roots[newest])
	server, err := remotetest.Start(remotetest.Config{Handler: h.Serve})
	if err != nil {
		w.tb.Fatal(err)
	}
	w.tb.Cleanup(server.Close)
	h.Server = server
	return h
}

func randomID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return hex.EncodeToString(id)
}

func reference(version int64, envelope []byte) signing.DocumentRef {
	digest, _ := signing.PayloadDigest(envelope)
	return signing.DocumentRef{Version: version, Digest: digest}
}

// Dispatch is the host as a dispatcher needs it.
func (h *Host) Dispatch() dispatch.Host {
	return dispatch.Host{
		Name: h.Name, Target: h.Server.Target(h.world.sshKey), Mode: dispatch.Verified, HostID: h.id, ReceiptKey: h.signer.Public(),
	}
}

// Behave changes how the host behaves from the next session on.
func (h *Host) Behave(change func(*Behaviour)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.behaviour)
}

// Orders are the orders that were run, in their order.
func (h *Host) Orders() []Order {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.orders)
}

// Sessions is how many sessions there were.
func (h *Host) Sessions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions
}

// Received is how many frames of a type the host was sent.
func (h *Host) Received(kind wire.Type) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.received[kind]
}

// Claim is who holds the host.
func (h *Host) Claim() signing.Claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.claim
}

// SetClaim makes somebody hold the host.
func (h *Host) SetClaim(claim signing.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claim = claim
}

// Reboot ends what runs and all connections.
func (h *Host) Reboot() {
	h.mu.Lock()
	h.bootID = randomID()
	if h.last != nil && h.last.state == signing.RunStarted {
		h.last.state = signing.RunInterrupted
	}
	h.mu.Unlock()
	h.Server.Cut()
}

// session is one conversation.
type session struct {
	host      *Host
	in        *wire.Reader
	out       io.Writer
	behaviour Behaviour
	challenge []byte
	answer    signing.Receipt
	run       *lastRun // of the order that was admitted
}

// Serve holds one session. The host's server calls it; tests may put something before it.
func (h *Host) Serve(s *remotetest.Session) int {
	h.mu.Lock()
	h.sessions++
	conversation := &session{
		host: h, in: wire.NewReader(s.Stdin), out: s.Stdout, behaviour: h.behaviour, challenge: make([]byte, signing.ChallengeSize),
	}
	h.mu.Unlock()
	_, _ = rand.Read(conversation.challenge) // never fails
	return conversation.hold()
}

const exitRefused = 125

func (s *session) hold() int {
	hello := s.hello()
	if mangle := s.behaviour.MangleHello; mangle != nil {
		mangle(hello)
	}
	envelope, err := signing.Sign(context.Background(), hello, s.host.signer)
	if err != nil {
		return exitRefused
	}
	_, _ = io.WriteString(s.out, s.behaviour.Noise+wire.Preamble)
	_ = wire.Write(s.out, wire.Hello, envelope)
	kind, payload, err := s.next()
	if err != nil {
		return 0
	}
	if kind == wire.Collect {
		return s.collect(string(payload))
	}
	for ; kind == wire.Root || kind == wire.Allowlist; kind, payload, _ = s.next() {
		if err := s.roll(kind, payload); err != nil {
			return s.refuse(signing.ReasonOf(err))
		}
	}
	if kind == wire.Probe {
		return s.facts()
	}
	return s.order(kind, payload)
}

func (s *session) next() (wire.Type, []byte, error) {
	kind, payload, err := s.in.Next()
	if err == nil {
		s.host.mu.Lock()
		s.host.received[kind]++
		s.host.mu.Unlock()
	}
	return kind, payload, err
}

func (s *session) hello() *signing.Hello {
	h := s.host
	h.mu.Lock()
	defer h.mu.Unlock()
	s.answer = signing.Receipt{HostID: h.id, BootID: h.bootID, Challenge: s.challenge}
	hello := &signing.Hello{
		Protocol: wire.Protocol, ShimVersion: "v1.0.0", HostID: h.id, BootID: h.bootID, Challenge: s.challenge,
		Root: h.rootRef, Allowlist: h.listRef, Claim: h.claim, Scripts: slices.Sorted(maps.Keys(h.scripts)),
		Clock: time.Now(), ClockSynced: true,
	}
	if h.last != nil {
		r := h.last.receipt
		hello.LastRun = &signing.RunRef{
			Order: r.Order, Claim: r.Claim, Profile: r.Profile, Version: r.Version, Phase: r.Phase, Script: r.Script,
			BootID: r.BootID, State: h.last.state, Outcome: r.Outcome, Deadline: h.last.deadline,
		}
	}
	return hello
}

func (s *session) facts() int {
	facts := wire.HostFacts{
		CPUs: 4, MemoryBytes: 8 << 30, DiskFreeBytes: 20 << 30, PageSize: 4096, Arch: "amd64", KernelArch: "x86_64",
		KubeletState: "inactive", ContainerdState: "inactive", Cgroup: "v2", MemoryCgroup: true, Hostname: s.host.Name,
		MachineID: s.host.id, BootID: s.answer.BootID, OS: "Debian GNU/Linux 13", Kernel: "6.12", Addresses: []string{"127.0.0.1"}, Clock: time.Now(),
	}
	if s.behaviour.Facts != nil {
		facts = s.behaviour.Facts()
	}
	data, err := json.Marshal(facts)
	if err != nil {
		return 1
	}
	_ = wire.Write(s.out, wire.Facts, data)
	return 0
}
