package controllertest

import (
	"context"
	"sync"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Machines are the hosts behind the SSHHosts. They run nothing, but keep the rules by which the shim and the
// dispatcher go: the claim and fence of a host, and that a run which has ended for a claim is collected and not
// repeated.
type Machines struct {
	mu       sync.Mutex
	machines map[string]*Machine
	// Documents are the versions that hosts are brought by a probe; none when zero.
	Documents dispatch.Versions
	// Step, when set, is called before and after each run; a test may die in it.
	Step func(what string)
}

// Machine is one host. Change it before the controllers run, or within Do.
type Machine struct {
	Claim signing.Claim
	// Trust is what the machine believes, and Behind what keeps it from being brought newer documents.
	Trust   dispatch.Versions
	Behind  *dispatch.Error
	Last    *signing.RunRef
	Kubelet string
	// Answer is what a probe is answered with, beside what the machine knows.
	Answer dispatch.Probe
	Raw    bool
	// Probing, when set, is what every contact ends in.
	Probing *dispatch.Error
	// Refuse, when it returns an error for a request, is what the request ends in; nothing runs.
	Refuse func(dispatch.Request) *dispatch.Error
	// Do is the script. It runs under the lock of all machines.
	Do func(dispatch.Request) *dispatch.Error
	// Runs counts the scripts that ran, by phase; Requests keeps what they were given.
	Runs     map[signing.Phase]int
	Requests []dispatch.Request
}

// NewMachines returns machines that are found on demand, clean and idle.
func NewMachines() *Machines { return &Machines{machines: map[string]*Machine{}} }

// Machine returns the machine behind an SSHHost.
func (m *Machines) Machine(name string) *Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine(name)
}

func (m *Machines) machine(name string) *Machine {
	machine := m.machines[name]
	if machine == nil {
		machine = &Machine{Kubelet: "absent", Runs: map[signing.Phase]int{}}
		machine.Answer.HostKeyFingerprint = "SHA256:" + name
		facts := &machine.Answer.Facts
		facts.CPUs, facts.MemoryBytes, facts.Arch = 4, 8<<30, "amd64"
		m.machines[name] = machine
	}
	return machine
}

// Host implements membership.Access.
func (m *Machines) Host(_ context.Context, host *v1beta1.SSHHost) (dispatch.Host, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.machine(host.Name).Raw = host.Raw()
	return dispatch.Host{Name: host.Name}, nil
}

// Run implements membership.Dispatcher.
func (m *Machines) Run(_ context.Context, host dispatch.Host, request dispatch.Request) (*dispatch.Result, error) {
	m.step("before " + string(request.Phase))
	result, err := m.run(host.Name, request)
	m.step("after " + string(request.Phase))
	return result, err
}

func (m *Machines) step(what string) {
	if m.Step != nil {
		m.Step(what)
	}
}

func (m *Machines) run(name string, request dispatch.Request) (*dispatch.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	machine := m.machine(name)
	if machine.Probing != nil {
		return nil, named(*machine.Probing, name, request.Phase)
	}
	if machine.Refuse != nil {
		if err := machine.Refuse(request); err != nil {
			return nil, named(*err, name, request.Phase)
		}
	}
	machine.spellClaim(&request)
	if result, err := machine.collect(request); result != nil || err != nil {
		if err != nil {
			return nil, named(*err, name, request.Phase)
		}
		return result, nil
	}
	if err := machine.admit(request); err != nil {
		return nil, named(*err, name, request.Phase)
	}
	machine.Runs[request.Phase]++
	machine.Requests = append(machine.Requests, request)
	machine.Last = &signing.RunRef{
		Claim: request.Claim, Phase: request.Phase, Profile: request.Profile, Version: request.Version, Script: signing.Digest(request.Script),
		State: signing.RunFinished, Outcome: signing.OutcomeOK,
	}
	if machine.Do != nil {
		if err := machine.Do(request); err != nil {
			machine.Last.Outcome = signing.OutcomeFailed
			return nil, named(*err, name, request.Phase)
		}
	}
	switch request.Phase {
	case signing.PhaseJoin:
		machine.Kubelet = "active"
	case signing.PhaseLeave:
		machine.Kubelet = "inactive"
		machine.Claim.UID = ""
	}
	return &dispatch.Result{}, nil
}

// spellClaim is what the dispatcher does about a claim from before claims named their cluster.
func (m *Machine) spellClaim(request *dispatch.Request) {
	held := m.Claim.UID
	if held == "" && m.Last != nil {
		held = m.Last.Claim
	}
	if request.EarlierClaim != "" && held == request.EarlierClaim {
		request.Claim = held
	}
}

// collect is what the dispatcher does about a run that has ended already.
func (m *Machine) collect(request dispatch.Request) (*dispatch.Result, *dispatch.Error) {
	last := m.Last
	if m.Raw || request.Claim == "" || last == nil || last.State != signing.RunFinished || last.Claim != request.Claim || last.Phase != request.Phase ||
		last.Profile != request.Profile || last.Version != request.Version || last.Script != signing.Digest(request.Script) {
		return nil, nil
	}
	if last.Outcome == signing.OutcomeOK {
		return &dispatch.Result{Reused: true}, nil
	}
	if request.RetryFailed {
		return nil, nil
	}
	return nil, &dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 1}
}

// admit keeps the host's rules of claim and fence.
func (m *Machine) admit(request dispatch.Request) *dispatch.Error {
	if m.Raw {
		return nil
	}
	held := m.Claim
	switch {
	case request.Phase == signing.PhaseLeave && held.UID != "" && held.UID != request.Claim,
		request.Phase != signing.PhaseLeave && held.UID != "" && held.UID != request.Claim:
		return &dispatch.Error{Class: dispatch.StaleClaim, Reason: dispatch.ReasonHostClaimed, HostClaim: held}
	case request.Fence < held.Fence, request.Phase != signing.PhaseLeave && held.UID == "" && request.Fence == held.Fence:
		return &dispatch.Error{Class: dispatch.StaleFence, Reason: string(signing.ReasonStaleFence), HostClaim: held}
	}
	m.Claim.Fence = request.Fence
	if request.Phase != signing.PhaseLeave {
		m.Claim.UID = request.Claim
	}
	return nil
}

func named(err dispatch.Error, host string, phase signing.Phase) *dispatch.Error {
	err.Host, err.Phase = host, phase
	return &err
}

// Probe implements membership.Dispatcher.
func (m *Machines) Probe(_ context.Context, host dispatch.Host) (*dispatch.Probe, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	machine := m.machine(host.Name)
	if machine.Probing != nil {
		return nil, named(*machine.Probing, host.Name, "")
	}
	probe := machine.Answer
	probe.Facts.KubeletState = machine.Kubelet
	if !machine.Raw {
		if machine.Behind != nil {
			probe.Behind = named(*machine.Behind, host.Name, "")
		} else {
			machine.Trust = m.Documents
		}
		probe.Hello = &signing.Hello{
			Claim: machine.Claim, LastRun: machine.Last, ShimVersion: "v1.0.0",
			Root:      signing.DocumentRef{Version: machine.Trust.Root, Digest: machine.Trust.RootDigest},
			Allowlist: signing.DocumentRef{Version: machine.Trust.Allowlist, Digest: machine.Trust.AllowlistDigest},
		}
	}
	return &probe, nil
}

// Newest implements membership.Dispatcher.
func (m *Machines) Newest() (dispatch.Versions, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Documents == (dispatch.Versions{}) {
		return dispatch.Versions{}, &dispatch.Error{Class: dispatch.Config, Reason: dispatch.ReasonTrustMissing}
	}
	return m.Documents, nil
}

// Phases returns what the controllers run phases with.
func (e *Env) Phases(machines *Machines) *membership.Phases {
	return membership.NewPhases(membership.PhasesOptions{
		Dispatcher: machines, Access: machines, Reader: e.Client, Namespace: Namespace, Clock: e.Clock, Cluster: Cluster,
	})
}
