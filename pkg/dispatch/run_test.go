package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func TestMembershipFromInstallToLeave(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.Noise = "Welcome to pi4!\nLast login: never\n"
		b.Run = func(o dispatchtest.Order) dispatchtest.Exit {
			return dispatchtest.Exit{Output: fmt.Sprintf("%s of %s\n", o.Phase, o.Parameters["KPSSH_NODE_NAME"])}
		}
	})
	d := w.Dispatcher(fast)
	for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave} {
		r := request(phase, claimA, 1)
		if phase == signing.PhaseJoin {
			r = joinRequest()
		}
		result := mustRun(t, d, h, r)
		if result.Reused || result.Output != string(phase)+" of node-1" || result.Receipt.Phase != phase || len(result.Envelope) == 0 {
			t.Errorf("%s: got %+v", phase, result)
		}
		if _, err := signing.OpenReceipt(result.Envelope, h.Dispatch().ReceiptKey); err != nil {
			t.Errorf("%s: %v", phase, err)
		}
		if want := map[bool]string{true: "", false: claimA}[phase == signing.PhaseLeave]; h.Claim().UID != want {
			t.Errorf("%s: host is held by %q", phase, h.Claim().UID)
		}
	}
	orders := h.Orders()
	if len(orders) != 3 || orders[1].Secrets["KPSSH_BOOTSTRAP_TOKEN"] != canary {
		t.Errorf("host got %+v", orders)
	}
	if h.Received(wire.Allowlist) != 1 || h.Received(wire.Root) != 0 || h.Received(wire.Script) != 3 {
		t.Errorf("host got %d allowlists, %d roots, %d scripts", h.Received(wire.Allowlist), h.Received(wire.Root), h.Received(wire.Script))
	}
	if h.Server.Connections() != 1 {
		t.Errorf("%d connections, want 1", h.Server.Connections())
	}
}

func TestWarmOrderSendsNeitherDocumentsNorScript(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	d := w.Dispatcher(fast)
	for fence := range int64(3) {
		r := request(signing.PhaseJoin, claimA, fence+1)
		r.Claim = fmt.Sprintf("claim-%d", fence)
		mustRun(t, d, h, r)
		mustRun(t, d, h, func() dispatch.Request {
			l := request(signing.PhaseLeave, r.Claim, fence+1)
			return l
		}())
	}
	if h.Received(wire.Script) != 2 || h.Received(wire.Allowlist) != 1 {
		t.Errorf("host got %d scripts and %d allowlists, want 2 and 1", h.Received(wire.Script), h.Received(wire.Allowlist))
	}
}

func TestHostThatIsBehindIsRolledForward(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	fresh := dispatchtest.NewSigner(t)
	w.Rotate(func(r *signing.Root) { r.Dispatch.Keys = append(r.Dispatch.Keys, fresh.Public()) })
	w.Rotate(func(r *signing.Root) { r.Dispatch.Keys = r.Dispatch.Keys[1:] })
	w.SetSigner(fresh)
	d := w.Dispatcher(fast)
	mustRun(t, d, h, request(signing.PhaseInstall, claimA, 1))
	if h.Received(wire.Root) != 2 {
		t.Errorf("host got %d roots, want 2", h.Received(wire.Root))
	}
	w.Allow() // the next allowlist
	mustRun(t, d, h, joinRequest())
	if h.Received(wire.Allowlist) != 2 || h.Received(wire.Root) != 2 {
		t.Errorf("host got %d allowlists and %d roots", h.Received(wire.Allowlist), h.Received(wire.Root))
	}
}

func TestWhatEndedForThisClaimIsNotRunAgain(t *testing.T) {
	failing := dispatchtest.Exit{Output: "no route\n", Outcome: signing.OutcomeFailed, Code: 7}
	for name, test := range map[string]struct {
		exit   dispatchtest.Exit
		change func(*dispatch.Request)
		runs   int
		reused bool
		class  dispatch.Class
	}{
		"success is collected":                     {runs: 1, reused: true},
		"a failure is collected":                   {exit: failing, runs: 1, class: dispatch.ScriptFailed},
		"a failure is tried again when told so":    {exit: failing, change: func(r *dispatch.Request) { r.RetryFailed = true }, runs: 2, class: dispatch.ScriptFailed},
		"success is collected, told so or not":     {change: func(r *dispatch.Request) { r.RetryFailed = true }, runs: 1, reused: true},
		"a later fence of the claim changes none ": {change: func(r *dispatch.Request) { r.Fence++ }, runs: 1, reused: true},
		"another phase is run":                     {change: func(r *dispatch.Request) { r.Phase, r.Script = signing.PhaseJoin, scripts[signing.PhaseJoin] }, runs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			h.Behave(func(b *dispatchtest.Behaviour) {
				b.Run = func(dispatchtest.Order) dispatchtest.Exit { return test.exit }
			})
			r := request(signing.PhaseInstall, claimA, 1)
			_, _ = w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), r)
			if test.change != nil {
				test.change(&r)
			}
			// A new dispatcher, as after a crash: all it knows is what the host says.
			result, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), r)
			if got := len(h.Orders()); got != test.runs {
				t.Errorf("%d runs, want %d", got, test.runs)
			}
			if test.class != "" {
				if e := failure(t, err, test.class, dispatch.ReasonExit); e.ExitCode != 7 || e.Output != "no route" {
					t.Errorf("got %+v", e)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if result.Reused != test.reused {
				t.Errorf("reused: %v", result.Reused)
			}
		})
	}
}

func TestLeaveOfNoClaimIsNeverTakenAsDone(t *testing.T) {
	// The zombie guard asks for it: an earlier leave says nothing about a kubelet that came back.
	w := newWorld(t)
	h := w.NewHost("pi4")
	d := w.Dispatcher(fast)
	for range 2 {
		mustRun(t, d, h, request(signing.PhaseLeave, "", 1))
	}
	if len(h.Orders()) != 2 {
		t.Errorf("%d runs, want 2", len(h.Orders()))
	}
}

func TestKilledControllerResumesWithoutASecondRun(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	release := make(chan struct{})
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.Run = func(dispatchtest.Order) dispatchtest.Exit { <-release; return dispatchtest.Exit{Output: "done"} }
	})
	ctx, kill := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := w.Dispatcher(fast).Run(ctx, h.Dispatch(), joinRequest())
		first <- err
	}()
	waitFor(t, "the run to start", func() bool { return len(h.Orders()) == 1 })
	kill()
	e := failure(t, <-first, dispatch.Unreachable, dispatch.ReasonInterrupted)
	if !errors.Is(e, context.Canceled) {
		t.Errorf("cause is lost: %v", e)
	}
	sessions := h.Sessions()
	second := make(chan error)
	var result *dispatch.Result
	go func() {
		var err error
		result, err = w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
		second <- err
	}()
	waitFor(t, "the resumed controller to ask more than once", func() bool { return h.Sessions() > sessions+2 })
	close(release)
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if !result.Reused || result.Output != "done" || len(h.Orders()) != 1 {
		t.Errorf("got %+v after %d runs", result, len(h.Orders()))
	}
}

func TestCutConnectionIsFollowedByCollecting(t *testing.T) {
	// The leave that ends its own network is the live case: the host left and the report was lost.
	for name, cut := range map[string]func(*dispatchtest.Behaviour){
		"before the run":    func(b *dispatchtest.Behaviour) { b.CutAfterOrder = once() },
		"before the answer": func(b *dispatchtest.Behaviour) { b.CutBeforeReceipt = once() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			h.Behave(func(b *dispatchtest.Behaviour) {
				cut(b)
				b.Run = func(dispatchtest.Order) dispatchtest.Exit { return dispatchtest.Exit{Output: "ran"} }
			})
			result := mustRun(t, w.Dispatcher(fast), h, joinRequest())
			if result.Output != "ran" || result.Reused || len(h.Orders()) != 1 {
				t.Errorf("got %+v after %d runs", result, len(h.Orders()))
			}
		})
	}
}

func TestHostThatIsAwayForAWhileIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.CutAfterOrder = func() bool {
			h.Server.SetFault(remotetest.FaultHangUp)
			return true
		}
	})
	done := make(chan error)
	go func() {
		_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
		done <- err
	}()
	waitFor(t, "some dials in vain", func() bool { return h.Server.Connections() > 3 })
	h.Server.SetFault(remotetest.FaultNone)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(h.Orders()) != 1 {
		t.Errorf("%d runs", len(h.Orders()))
	}
}

// A host that is gone for good does not hold its caller up until install's ten minutes are over.
func TestHostThatStaysAwayIsNotWaitedForToTheEnd(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.CutBeforeReceipt = func() bool {
			h.Server.SetFault(remotetest.FaultHangUp)
			return true
		}
	})
	r := joinRequest()
	r.Timeout = 10 * time.Minute
	d := w.Dispatcher(fast, func(o *dispatch.Options) { o.AwayTime = 50 * time.Millisecond })
	_, err := d.Run(t.Context(), h.Dispatch(), r)
	fails(t, err, dispatch.Unreachable, dispatch.ReasonInterrupted)

	h.Server.SetFault(remotetest.FaultNone)
	if result := mustRun(t, d, h, r); !result.Reused || len(h.Orders()) != 1 {
		t.Errorf("the run that was waited for in vain was not collected: %d runs", len(h.Orders()))
	}
}

func TestOrderThatNeverArrivedIsInterruptedAndCanBeGivenAgain(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.Behave(func(b *dispatchtest.Behaviour) { b.LoseOrder = once() })
	d := w.Dispatcher(fast)
	_, err := d.Run(t.Context(), h.Dispatch(), joinRequest())
	fails(t, err, dispatch.Unreachable, dispatch.ReasonInterrupted)
	mustRun(t, d, h, joinRequest())
	if len(h.Orders()) != 1 {
		t.Errorf("%d runs, want 1", len(h.Orders()))
	}
}

func TestRunLostToARebootIsRunAgain(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	reboot := once()
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.Run = func(dispatchtest.Order) dispatchtest.Exit {
			if reboot() {
				h.Reboot()
			}
			return dispatchtest.Exit{}
		}
	})
	d := w.Dispatcher(fast)
	_, err := d.Run(t.Context(), h.Dispatch(), joinRequest())
	fails(t, err, dispatch.Unreachable, dispatch.ReasonInterrupted)
	mustRun(t, d, h, joinRequest())
	if len(h.Orders()) != 2 {
		t.Errorf("%d runs, want 2", len(h.Orders()))
	}
}

func TestSilentHostEndsInATimeout(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	release := make(chan struct{})
	defer close(release)
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.Run = func(dispatchtest.Order) dispatchtest.Exit { <-release; return dispatchtest.Exit{} }
	})
	r := joinRequest()
	r.Timeout = time.Second
	_, err := w.Dispatcher(fast, func(o *dispatch.Options) { o.ReceiptMargin = 100 * time.Millisecond }).Run(t.Context(), h.Dispatch(), r)
	fails(t, err, dispatch.Timeout, dispatch.ReasonNoReceipt)
}

func TestOutcomesOfScripts(t *testing.T) {
	for name, test := range map[string]struct {
		exit   dispatchtest.Exit
		class  dispatch.Class
		reason string
	}{
		"exit status": {dispatchtest.Exit{Outcome: signing.OutcomeFailed, Code: 3}, dispatch.ScriptFailed, dispatch.ReasonExit},
		"signal":      {dispatchtest.Exit{Outcome: signing.OutcomeFailed, Signal: "SIGKILL"}, dispatch.ScriptFailed, dispatch.ReasonSignal},
		"deadline":    {dispatchtest.Exit{Outcome: signing.OutcomeTimeout}, dispatch.Timeout, dispatch.ReasonDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			h.Behave(func(b *dispatchtest.Behaviour) {
				b.Run = func(dispatchtest.Order) dispatchtest.Exit { return test.exit }
			})
			_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
			e := failure(t, err, test.class, test.reason)
			if e.IsConfiguration() || e.Receipt == nil || e.Host != "pi4" || e.Phase != signing.PhaseJoin {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestHostHeldByAnother(t *testing.T) {
	for name, test := range map[string]struct {
		held    signing.Claim
		request dispatch.Request
		class   dispatch.Class
		reason  string
	}{
		"join for another claim":          {signing.Claim{UID: claimB, Fence: 3}, request(signing.PhaseJoin, claimA, 9), dispatch.StaleClaim, dispatch.ReasonHostClaimed},
		"install for another claim":       {signing.Claim{UID: claimB, Fence: 3}, request(signing.PhaseInstall, claimA, 9), dispatch.StaleClaim, dispatch.ReasonHostClaimed},
		"leave for another claim":         {signing.Claim{UID: claimB, Fence: 3}, request(signing.PhaseLeave, claimA, 9), dispatch.StaleClaim, dispatch.ReasonHostClaimed},
		"leave for none of a held host":   {signing.Claim{UID: claimB, Fence: 3}, request(signing.PhaseLeave, "", 9), dispatch.StaleClaim, dispatch.ReasonHostClaimed},
		"join with a used fence":          {signing.Claim{Fence: 3}, request(signing.PhaseJoin, claimA, 3), dispatch.StaleFence, string(signing.ReasonStaleFence)},
		"join with an old fence":          {signing.Claim{UID: claimA, Fence: 3}, request(signing.PhaseJoin, claimA, 2), dispatch.StaleFence, string(signing.ReasonStaleFence)},
		"leave with an old fence":         {signing.Claim{UID: claimA, Fence: 3}, request(signing.PhaseLeave, claimA, 2), dispatch.StaleFence, string(signing.ReasonStaleFence)},
		"leave of a free host, old fence": {signing.Claim{Fence: 3}, request(signing.PhaseLeave, claimA, 2), dispatch.StaleFence, string(signing.ReasonStaleFence)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			h.SetClaim(test.held)
			_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), test.request)
			e := failure(t, err, test.class, test.reason)
			if e.HostClaim != test.held || e.IsConfiguration() {
				t.Errorf("got %+v", e)
			}
			if h.Received(wire.Order) != 0 {
				t.Error("an order was sent that the host has to refuse")
			}
			// What the error says is enough to go on with: leave for the holder, or a higher fence.
			d := w.Dispatcher(fast)
			if test.class == dispatch.StaleClaim {
				mustRun(t, d, h, request(signing.PhaseLeave, e.HostClaim.UID, e.HostClaim.Fence))
			}
			next := test.request
			next.Fence = e.HostClaim.Fence + 1
			mustRun(t, d, h, next)
		})
	}
}

func TestFenceThatRoseSinceTheHelloIsReported(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.SetClaim(signing.Claim{Fence: 5})
	h.Behave(func(b *dispatchtest.Behaviour) { b.MangleHello = func(hello *signing.Hello) { hello.Claim.Fence = 0 } })
	_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
	fails(t, err, dispatch.StaleFence, string(signing.ReasonStaleFence))
	if len(h.Orders()) != 0 {
		t.Error("it ran")
	}
}

func TestBusyHost(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	release := make(chan struct{})
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.Run = func(dispatchtest.Order) dispatchtest.Exit { <-release; return dispatchtest.Exit{} }
	})
	done := make(chan error)
	go func() {
		_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
		done <- err
	}()
	waitFor(t, "the run to start", func() bool { return len(h.Orders()) == 1 })
	d := w.Dispatcher(fast)
	_, err := d.Run(t.Context(), h.Dispatch(), request(signing.PhaseLeave, claimA, 1))
	fails(t, err, dispatch.Busy, string(signing.ReasonBusy))
	// Once more, where only the host knows.
	h.Behave(func(b *dispatchtest.Behaviour) { b.MangleHello = func(hello *signing.Hello) { hello.LastRun = nil } })
	_, err = d.Run(t.Context(), h.Dispatch(), request(signing.PhaseLeave, claimA, 1))
	fails(t, err, dispatch.Busy, string(signing.ReasonBusy))
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestManyHostsAtOnce(t *testing.T) {
	w := newWorld(t)
	registry := prometheus.NewRegistry()
	metrics, err := dispatch.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	d := w.Dispatcher(fast, func(o *dispatch.Options) { o.Metrics = metrics })
	const hosts = 32
	var wg sync.WaitGroup
	for i := range hosts {
		h := w.NewHost(fmt.Sprintf("host-%d", i))
		wg.Go(func() {
			for _, r := range []dispatch.Request{request(signing.PhaseInstall, claimA, 1), joinRequest(), request(signing.PhaseLeave, claimA, 1)} {
				if _, err := d.Run(t.Context(), h.Dispatch(), r); err != nil {
					t.Errorf("%s: %v", h.Name, err)
				}
			}
			if h.Server.Connections() != 1 || len(h.Orders()) != 3 {
				t.Errorf("%s: %d connections, %d runs", h.Name, h.Server.Connections(), len(h.Orders()))
			}
		})
	}
	wg.Wait()
	_, err = d.Run(t.Context(), w.NewHost("other").Dispatch(), dispatch.Request{Phase: signing.PhaseJoin, Profile: profileName, Version: "1", Script: []byte("x"), Claim: claimA, Fence: 1, Timeout: time.Second})
	fails(t, err, dispatch.Config, string(signing.ReasonNotAllowed))
	want := map[string]float64{
		"kpssh_orders_total config join": 1, "kpssh_orders_total ok install": hosts, "kpssh_orders_total ok join": hosts,
		"kpssh_orders_total ok leave": hosts, "kpssh_refusals_total not-allowed": 1,
	}
	if diff := cmp.Diff(want, counted(t, registry)); diff != "" {
		t.Error(diff)
	}
}

// counted are the counters of a registry that are not zero, by name and label values.
func counted(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			if n := metric.GetCounter().GetValue(); n != 0 {
				counts[name] = n
			}
		}
	}
	return counts
}

func TestProbe(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	d := w.Dispatcher(fast)
	probe, err := d.Probe(t.Context(), h.Dispatch())
	if err != nil {
		t.Fatal(err)
	}
	if probe.Facts.CPUs != 4 || probe.Facts.Hostname != "pi4" || probe.Hello == nil || probe.HostKeyFingerprint != h.Server.Fingerprint() || probe.Duration <= 0 {
		t.Errorf("got %+v", probe)
	}
	if len(h.Orders()) != 0 || h.Received(wire.Order) != 0 {
		t.Error("a probe gave an order")
	}
}

func TestFactsThatAreNoneAreRefused(t *testing.T) {
	w := newWorld(t)
	for name, facts := range map[string]wire.HostFacts{
		"no CPU":              {},
		"negative memory":     {CPUs: 1, MemoryBytes: -1},
		"absurd memory":       {CPUs: 1, MemoryBytes: 1 << 60},
		"a state with spaces": {CPUs: 1, KubeletState: "active; rm -rf /"},
		"a templated arch":    {CPUs: 1, Arch: "{{.Env}}"},
		"a long word":         {CPUs: 1, MachineID: strings.Repeat("a", 500)},
		"no address":          {CPUs: 1, Addresses: []string{"10.0.0.1", "evil.example"}},
		"too many addresses":  {CPUs: 1, Addresses: strings.Split(strings.Repeat("10.0.0.1 ", 65), " ")[:65]},
	} {
		t.Run(name, func(t *testing.T) {
			h := w.NewHost("pi4")
			h.Behave(func(b *dispatchtest.Behaviour) { b.Facts = func() wire.HostFacts { return facts } })
			_, err := w.Dispatcher(fast).Probe(t.Context(), h.Dispatch())
			fails(t, err, dispatch.Untrusted, dispatch.ReasonProtocol)
		})
	}
	h := w.NewHost("pi4")
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.Facts = func() wire.HostFacts {
			return wire.HostFacts{CPUs: 1, OS: "Debian\x1b[31m\nroot", Hostname: "a\u202eb"}
		}
	})
	probe, err := w.Dispatcher(fast).Probe(t.Context(), h.Dispatch())
	if err != nil {
		t.Fatal(err)
	}
	if probe.Facts.OS != "Debian | root" || probe.Facts.Hostname != "ab" {
		t.Errorf("got %q, %q", probe.Facts.OS, probe.Facts.Hostname)
	}
}

// Hosts that were in use when the controller was upgraded hold a claim as it was spelled before.
func TestAClaimInItsEarlierSpellingIsTheSameClaim(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("a")
	d := w.Dispatcher(fast)
	mustRun(t, d, h, request(signing.PhaseInstall, claimA, 1))
	upgraded := request(signing.PhaseInstall, "cluster."+claimA, 1)
	upgraded.EarlierClaim = claimA
	if result := mustRun(t, d, h, upgraded); !result.Reused {
		t.Error("install ran again")
	}
	leave := request(signing.PhaseLeave, "cluster."+claimA, 1)
	leave.EarlierClaim = claimA
	mustRun(t, d, h, leave)
	if h.Claim().UID != "" {
		t.Errorf("host is held by %q", h.Claim().UID)
	}
	if result := mustRun(t, d, h, leave); !result.Reused {
		t.Error("leave ran again")
	}
	next := request(signing.PhaseInstall, "cluster."+claimB, 2)
	next.EarlierClaim = claimB
	mustRun(t, d, h, next)
	if h.Claim().UID != "cluster."+claimB {
		t.Errorf("host is held by %q", h.Claim().UID)
	}
}

// The clock may have run away since the probe (kubeadm#240, R34): what a join needs would not be valid there.
func TestAHostWhoseClockIsWrongIsNotJoined(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("a")
	d := w.Dispatcher(fast, func(o *dispatch.Options) { o.Now = func() time.Time { return time.Now().Add(5 * time.Minute) } })
	mustRun(t, d, h, request(signing.PhaseInstall, claimA, 1))
	join := joinRequest()
	join.MaxClockSkew = time.Minute
	_, err := d.Run(t.Context(), h.Dispatch(), join)
	if e := failure(t, err, dispatch.Config, dispatch.ReasonClockSkew); !strings.Contains(e.Detail, "clock is -30") { // 300 s, and what the test takes
		t.Errorf("got %v", e)
	}
	join.MaxClockSkew = 0
	mustRun(t, d, h, join)
}
