package dispatch_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func tolerating(t *testing.T, text string) func(*dispatch.Options) {
	t.Helper()
	tolerance, err := dispatch.ParseTolerance(text)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *dispatch.Options) { o.Tolerated = tolerance }
}

func TestFindingsThatAreNotToleratedKeepOrdersFromAHost(t *testing.T) {
	byDefault := func(*dispatch.Options) {}
	for name, tc := range map[string]struct {
		tolerated func(*dispatch.Options)
		findings  []string
		refused   []string
	}{
		"nothing found":                       {byDefault, nil, nil},
		"a way around the shim":               {byDefault, []string{wire.FindingForceCommand, wire.FindingTTY}, []string{wire.FindingForceCommand}},
		"what leaves another wall":            {byDefault, []string{wire.FindingTTY, wire.FindingUnrestrictedKey}, nil},
		"a finding of a newer shim":           {byDefault, []string{"root-is-a-pumpkin"}, []string{"root-is-a-pumpkin"}},
		"a finding of a newer shim, known of": {tolerating(t, "root-is-a-pumpkin"), []string{"root-is-a-pumpkin"}, nil},
		"nothing is tolerated":                {tolerating(t, "none"), []string{wire.FindingTTY}, []string{wire.FindingTTY}},
		"everything is":                       {tolerating(t, "all"), []string{wire.FindingPrivilegedUser, "root-is-a-pumpkin"}, nil},
		"a list takes the default's place":    {tolerating(t, "forwarding, home"), []string{"forwarding", "home", "tty"}, []string{"tty"}},
		"the default as it is written":        {tolerating(t, dispatch.DefaultTolerance()), []string{"tty", "login-shell"}, []string{"login-shell"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			h.Behave(func(b *dispatchtest.Behaviour) {
				b.MangleHello = func(hello *signing.Hello) { hello.Findings = tc.findings }
			})
			d := w.Dispatcher(fast, tc.tolerated)
			probe, err := d.Probe(t.Context(), h.Dispatch())
			if err != nil {
				t.Fatal(err)
			}
			if (probe.Unfit == nil) != (len(tc.refused) == 0) {
				t.Errorf("the probe says %v", probe.Unfit)
			}
			for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseJoin} {
				_, err := d.Run(t.Context(), h.Dispatch(), request(phase, claimA, 1))
				if len(tc.refused) == 0 {
					if err != nil {
						t.Error(err)
					}
					continue
				}
				e := failure(t, err, dispatch.NotHardened, dispatch.ReasonFindings)
				for _, name := range tc.refused {
					if !strings.Contains(e.Detail, name) || !strings.Contains(e.Detail, wire.FindingOf(name).Fix) || e.IsConfiguration() {
						t.Errorf("%v", e)
					}
				}
			}
			if len(tc.refused) > 0 && (len(h.Orders()) > 0 || h.Received(wire.Order)+h.Received(wire.Script)+h.Received(wire.Secrets) > 0) {
				t.Error("something was sent to the host")
			}
			mustRun(t, d, h, request(signing.PhaseLeave, claimA, 2)) // the way back is always open
		})
	}
}

func TestManyFindingsAreAllNamed(t *testing.T) {
	var names []string
	for _, f := range wire.Findings() {
		names = append(names, f.Name)
	}
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.Behave(func(b *dispatchtest.Behaviour) { b.MangleHello = func(hello *signing.Hello) { hello.Findings = names } })
	probe, err := w.Dispatcher(fast, tolerating(t, "none")).Probe(t.Context(), h.Dispatch())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(probe.Unfit.Detail, name) {
			t.Errorf("%s is missing in %q", name, probe.Unfit.Detail)
		}
	}
}

func TestTolerancesThatAreNone(t *testing.T) {
	for _, text := range []string{"TTY", "tty;home", "all,tty", "none,tty", "a b"} {
		if _, err := dispatch.ParseTolerance(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	if !slices.Contains(strings.Split(dispatch.DefaultTolerance(), ","), wire.FindingTTY) {
		t.Errorf("by default %q", dispatch.DefaultTolerance())
	}
}

// An old shim may not know that the author has called it in: the controller does not rely on its refusal.
func TestAShimBelowTheAllowlistsMinimumIsGivenNoOrder(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.MangleHello = func(hello *signing.Hello) { hello.ShimVersion = "v1.0.0" }
	})
	w.Change(func(list *signing.Allowlist) { list.MinShim = "v2.0.0" })
	d := w.Dispatcher(fast, tolerating(t, "all"))
	probe, err := d.Probe(t.Context(), h.Dispatch())
	if err != nil {
		t.Fatal(err)
	}
	fails(t, probe.Unfit, dispatch.Refused, string(signing.ReasonShimTooOld))
	_, err = d.Run(t.Context(), h.Dispatch(), joinRequest())
	e := failure(t, err, dispatch.Refused, string(signing.ReasonShimTooOld))
	if e.IsConfiguration() || !strings.Contains(e.Detail, "v1.0.0") || !strings.Contains(e.Detail, "v2.0.0") {
		t.Errorf("%v", e)
	}
	if h.Received(wire.Order)+h.Received(wire.Secrets) > 0 {
		t.Error("an order was sent")
	}
}
