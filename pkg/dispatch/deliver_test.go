package dispatch_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func mustProbe(t *testing.T, d *dispatch.Dispatcher, host dispatch.Host) *dispatch.Probe {
	t.Helper()
	probe, err := d.Probe(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	return probe
}

func TestAProbeBringsTheDocumentsThatTheHostLacks(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	d := w.Dispatcher(fast)
	w.Rotate(func(*signing.Root) {})
	w.Rotate(func(*signing.Root) {})
	for range 2 {
		probe := mustProbe(t, d, h.Dispatch())
		newest, err := d.Newest()
		if err != nil {
			t.Fatal(err)
		}
		if probe.Behind != nil || probe.Hello.Root.Version != newest.Root || probe.Hello.Allowlist.Version != newest.Allowlist ||
			probe.Hello.Root.Digest != newest.RootDigest || probe.Hello.Allowlist.Digest != newest.AllowlistDigest || probe.Facts.CPUs != 4 {
			t.Errorf("hello says root %d, allowlist %d, newest are %+v; behind: %v", probe.Hello.Root.Version, probe.Hello.Allowlist.Version, newest, probe.Behind)
		}
	}
	if h.Received(wire.Root) != 2 || h.Received(wire.Allowlist) != 1 || h.Sessions() != 3 || len(h.Orders()) != 0 {
		t.Errorf("%d roots, %d allowlists in %d sessions: an up-to-date host is sent nothing", h.Received(wire.Root), h.Received(wire.Allowlist), h.Sessions())
	}
}

// A host must not become Unhealthy because somebody published half of something.
func TestWhatStandsInTheWayOfDocumentsDoesNotStandInTheWayOfAProbe(t *testing.T) {
	for name, test := range map[string]struct {
		behave func(*dispatchtest.Behaviour)
		option func(*dispatch.Options)
		class  dispatch.Class
		reason string
	}{
		"the cluster has no documents": {option: func(o *dispatch.Options) { o.Trust = noTrust{} },
			class: dispatch.Config, reason: dispatch.ReasonTrustMissing},
		"the host trusts another chain": {behave: func(b *dispatchtest.Behaviour) {
			b.MangleHello = func(h *signing.Hello) { h.Root.Digest = signing.Digest(nil) }
		}, class: dispatch.Untrusted, reason: dispatch.ReasonForeignRoot},
		"the host has a newer root": {behave: func(b *dispatchtest.Behaviour) {
			b.MangleHello = func(h *signing.Hello) { h.Root.Version = 9 }
		}, class: dispatch.Config, reason: string(signing.ReasonRollback)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			options := []func(*dispatch.Options){fast}
			if test.option != nil {
				options = append(options, test.option)
			}
			if test.behave != nil {
				h.Behave(test.behave)
			}
			probe := mustProbe(t, w.Dispatcher(options...), h.Dispatch())
			fails(t, probe.Behind, test.class, test.reason)
			if probe.Facts.CPUs != 4 || probe.Hello == nil {
				t.Errorf("got %+v", probe)
			}
		})
	}
	t.Run("the host refuses them", func(t *testing.T) {
		w := newWorld(t)
		h := w.NewHost("pi4")
		first := mustProbe(t, w.Dispatcher(fast), h.Dispatch()).Hello.Root
		w.Rotate(func(*signing.Root) {})
		mustProbe(t, w.Dispatcher(fast), h.Dispatch())
		// It says that it has the first root and has the second.
		h.Behave(func(b *dispatchtest.Behaviour) { b.MangleHello = func(hello *signing.Hello) { hello.Root = first } })
		probe := mustProbe(t, w.Dispatcher(fast), h.Dispatch())
		fails(t, probe.Behind, dispatch.Refused, string(signing.ReasonRollback))
	})
}

type noTrust struct{}

func (noTrust) Documents() (map[int64][]byte, []byte, error) {
	return nil, nil, errors.New("no such ConfigMap")
}

// Otherwise a root with another author would leave its host without a floor until the next list is signed.
func TestWithARootGoesTheAllowlist(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	d := w.Dispatcher(fast)
	mustProbe(t, d, h.Dispatch())
	w.Rotate(func(r *signing.Root) { r.Author.Keys = append(r.Author.Keys, dispatchtest.NewSigner(t).Public()) })
	mustProbe(t, d, h.Dispatch())
	mustProbe(t, d, h.Dispatch())
	if h.Received(wire.Root) != 1 || h.Received(wire.Allowlist) != 2 {
		t.Errorf("%d roots and %d allowlists", h.Received(wire.Root), h.Received(wire.Allowlist))
	}
}

func TestRealShimTakesDocumentsFromAProbe(t *testing.T) {
	w := newWorld(t)
	h := newShimHost(t, w)
	d := w.Dispatcher(slow)
	fresh := dispatchtest.NewSigner(t)
	w.Rotate(func(r *signing.Root) { r.Dispatch.Keys = append(r.Dispatch.Keys, fresh.Public()) })
	w.Rotate(func(r *signing.Root) { r.Dispatch.Keys = r.Dispatch.Keys[1:] })
	probe := mustProbe(t, d, h.host)
	if probe.Behind != nil || probe.Hello.Root.Version != 3 || probe.Hello.Allowlist.Version < 1 {
		t.Fatalf("hello %+v, behind %v; log: %s", probe.Hello, probe.Behind, h.logged())
	}
	r := h.allow(w, signing.PhaseInstall, "echo installed >> marks")
	_, err := d.Run(t.Context(), h.host, r) // by the key that root 3 drops
	fails(t, err, dispatch.Refused, string(signing.ReasonUntrusted))
	w.SetSigner(fresh)
	if _, err := w.Dispatcher(slow).Run(t.Context(), h.host, r); err != nil || h.file("marks") != "installed\n" {
		t.Errorf("by the new key: %v, %q", err, h.file("marks"))
	}
}

// countersigned are the documents of a world, with the signature of a second author under its allowlist.
type countersigned struct {
	*dispatchtest.World
	second signing.Signer
}

// Documents implements dispatch.Trust.
func (c countersigned) Documents() (map[int64][]byte, []byte, error) {
	roots, list, err := c.World.Documents()
	if err != nil {
		return nil, nil, err
	}
	list, err = signing.AddSignature(context.Background(), list, c.second)
	return roots, list, err
}

// The author threshold is raised over the allowlist in effect, once a second author has signed that too: a host that has
// the list with one signature takes it again, under the same version.
func TestRealShimTakesAHigherAuthorThreshold(t *testing.T) {
	w := newWorld(t)
	h := newShimHost(t, w)
	requests := []dispatch.Request{
		h.allow(w, signing.PhaseInstall, "echo installed >> marks"), h.allow(w, signing.PhaseJoin, "echo joined >> marks"),
		h.allow(w, signing.PhaseLeave, "echo left >> marks"),
	}
	second := dispatchtest.NewSigner(t)
	steps := []func() dispatch.Trust{
		func() dispatch.Trust { return w },
		func() dispatch.Trust {
			w.Rotate(func(r *signing.Root) { r.Author.Keys = append(r.Author.Keys, second.Public()) })
			return w
		},
		func() dispatch.Trust {
			w.Rotate(func(r *signing.Root) { r.Author.Threshold = 2 })
			return countersigned{w, second}
		},
	}
	var list string
	for i, step := range steps {
		trust := step()
		d := w.Dispatcher(slow, func(o *dispatch.Options) { o.Trust = trust })
		if _, err := d.Run(t.Context(), h.host, requests[i]); err != nil {
			t.Fatalf("step %d: %v; log: %s", i+1, err, h.logged())
		}
		hello := mustProbe(t, d, h.host).Hello
		if hello.Root.Version != int64(i+1) || list != "" && hello.Allowlist.Digest != list {
			t.Errorf("step %d: the host has root %d and allowlist %+v", i+1, hello.Root.Version, hello.Allowlist)
		}
		list = hello.Allowlist.Digest
	}
	if got := h.file("marks"); got != "installed\njoined\nleft\n" {
		t.Errorf("ran %q", got)
	}
}

// The Secret of the dispatch key and the ConfigMap of the documents are two objects: one of them comes first.
func TestKeyAndDocumentsThatAreSwitchedApartBlameNoHost(t *testing.T) {
	for name, keyFirst := range map[string]bool{"the key first": true, "the documents first": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			fresh := dispatchtest.NewSigner(t)
			steps := []func(){
				func() { w.SetSigner(fresh) },
				func() {
					w.Rotate(func(r *signing.Root) { r.Dispatch.Keys = []signing.Key{fresh.Public()} })
				},
			}
			if !keyFirst {
				steps[0], steps[1] = steps[1], steps[0]
			}
			steps[0]()
			probe := mustProbe(t, w.Dispatcher(fast), h.Dispatch())
			if probe.Behind != nil {
				t.Errorf("in between a probe says %v", probe.Behind)
			}
			_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
			if e := failure(t, err, dispatch.Refused, string(signing.ReasonUntrusted)); !e.IsConfiguration() {
				t.Error("in between the host is to blame")
			}
			steps[1]()
			mustRun(t, w.Dispatcher(fast), h, joinRequest())
		})
	}
}
