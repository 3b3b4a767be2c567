package dispatch_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func TestMangledReceiptsAreNotBelieved(t *testing.T) {
	zero := "sha256:" + strings.Repeat("0", 64)
	for name, mangle := range map[string]func(*signing.Receipt){
		"of another order":            func(r *signing.Receipt) { r.Order = zero },
		"of another host":             func(r *signing.Receipt) { r.HostID = strings.Repeat("0", 32) },
		"of another session":          func(r *signing.Receipt) { r.Challenge = make([]byte, signing.ChallengeSize) },
		"of another claim":            func(r *signing.Receipt) { r.Claim = claimB },
		"of no claim":                 func(r *signing.Receipt) { r.Claim = "" },
		"of another fence":            func(r *signing.Receipt) { r.Fence++ },
		"of another phase":            func(r *signing.Receipt) { r.Phase = signing.PhaseLeave },
		"of another profile":          func(r *signing.Receipt) { r.Profile = "other" },
		"of another version":          func(r *signing.Receipt) { r.Version = "2" },
		"of another script":           func(r *signing.Receipt) { r.Script = zero },
		"of other parameters":         func(r *signing.Receipt) { r.Parameters = zero },
		"success with an exit status": func(r *signing.Receipt) { r.ExitCode = 1 },
		"success with a signal":       func(r *signing.Receipt) { r.Signal = "SIGKILL" },
		"of other output":             func(r *signing.Receipt) { r.Output.Digest = zero },
		"of more output":              func(r *signing.Receipt) { r.Output.Bytes++; r.Output.Kept++ },
		"a refusal of another session": func(r *signing.Receipt) {
			r.Outcome, r.Reason, r.Challenge = signing.OutcomeRefused, signing.ReasonNotAllowed, make([]byte, signing.ChallengeSize)
		},
		"a refusal of another order": func(r *signing.Receipt) {
			r.Outcome, r.Reason, r.Order = signing.OutcomeRefused, signing.ReasonNotAllowed, zero
		},
		"a refusal with output": func(r *signing.Receipt) { r.Outcome, r.Reason = signing.OutcomeRefused, signing.ReasonNotAllowed },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			h.Behave(func(b *dispatchtest.Behaviour) {
				b.Run = func(dispatchtest.Order) dispatchtest.Exit { return dispatchtest.Exit{Output: "ok\n"} }
				b.MangleReceipt = mangle
			})
			_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
			e := failure(t, err, dispatch.Untrusted, dispatch.ReasonReceiptMismatch)
			if e.Output != "" || e.IsConfiguration() {
				t.Errorf("output of a receipt that is not believed: %+v", e)
			}
		})
	}
}

func TestForgedAnswersAreNotBelieved(t *testing.T) {
	w := newWorld(t)
	// An honest host whose receipts the others replay.
	honest := w.NewHost("honest")
	first := mustRun(t, w.Dispatcher(fast), honest, request(signing.PhaseInstall, claimA, 1))
	for name, test := range map[string]struct {
		behave func(*dispatchtest.Behaviour)
		reason string
	}{
		"the receipt of another host": {func(b *dispatchtest.Behaviour) { b.MangleEnvelope = func([]byte) []byte { return first.Envelope } }, dispatch.ReasonProtocol},
		"a flipped bit in the receipt": {func(b *dispatchtest.Behaviour) {
			b.MangleEnvelope = func(e []byte) []byte { e[len(e)/2] ^= 1; return e }
		}, dispatch.ReasonProtocol},
		"an empty receipt":            {func(b *dispatchtest.Behaviour) { b.MangleEnvelope = func([]byte) []byte { return nil } }, dispatch.ReasonProtocol},
		"a flipped bit in the output": {func(b *dispatchtest.Behaviour) { b.MangleOutput = func(o []byte) []byte { o[0] ^= 1; return o } }, dispatch.ReasonReceiptMismatch},
		"output left out":             {func(b *dispatchtest.Behaviour) { b.MangleOutput = func([]byte) []byte { return nil } }, dispatch.ReasonReceiptMismatch},
		"output added":                {func(b *dispatchtest.Behaviour) { b.MangleOutput = func(o []byte) []byte { return append(o, '!') } }, dispatch.ReasonReceiptMismatch},
		"more output than is kept": {func(b *dispatchtest.Behaviour) {
			b.MangleOutput = func([]byte) []byte { return make([]byte, 2<<20) }
		}, dispatch.ReasonProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			h := w.NewHost("pi4")
			h.Behave(func(b *dispatchtest.Behaviour) {
				b.Run = func(dispatchtest.Order) dispatchtest.Exit { return dispatchtest.Exit{Output: "ok\n"} }
				test.behave(b)
			})
			_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
			fails(t, err, dispatch.Untrusted, test.reason)
		})
	}
	t.Run("the host's own receipt of an earlier run", func(t *testing.T) {
		honest.Behave(func(b *dispatchtest.Behaviour) { b.MangleEnvelope = func([]byte) []byte { return first.Envelope } })
		_, err := w.Dispatcher(fast).Run(t.Context(), honest.Dispatch(), joinRequest())
		fails(t, err, dispatch.Untrusted, dispatch.ReasonReceiptMismatch)
	})
	t.Run("the same, collected", func(t *testing.T) {
		h := w.NewHost("pi4")
		mustRun(t, w.Dispatcher(fast), h, joinRequest())
		h.Behave(func(b *dispatchtest.Behaviour) {
			b.MangleReceipt = func(r *signing.Receipt) { r.Script = r.Parameters }
		})
		_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
		fails(t, err, dispatch.Untrusted, dispatch.ReasonReceiptMismatch)
	})
}

func TestNothingIsSentToAHostThatDoesNotProveItself(t *testing.T) {
	w := newWorld(t)
	for name, test := range map[string]struct {
		change func(*dispatch.Host)
		behave func(*dispatchtest.Behaviour)
		class  dispatch.Class
		reason string
	}{
		"another receipt key": {change: func(h *dispatch.Host) { h.ReceiptKey = w.Signer().Public() }, class: dispatch.Untrusted, reason: dispatch.ReasonWrongIdentity},
		"another host id":     {change: func(h *dispatch.Host) { h.HostID = strings.Repeat("0", 32) }, class: dispatch.Untrusted, reason: dispatch.ReasonWrongIdentity},
		"a newer protocol":    {behave: func(b *dispatchtest.Behaviour) { b.MangleHello = func(h *signing.Hello) { h.Protocol = 2 } }, class: dispatch.Untrusted, reason: dispatch.ReasonWrongIdentity},
		"no receipt key":      {change: func(h *dispatch.Host) { h.ReceiptKey = signing.Key{} }, class: dispatch.Config, reason: dispatch.ReasonIdentityMissing},
		"no host id":          {change: func(h *dispatch.Host) { h.HostID = "" }, class: dispatch.Config, reason: dispatch.ReasonIdentityMissing},
		"another host key": {change: func(h *dispatch.Host) {
			h.Target.HostKey, _ = remote.Pin("SHA256:" + base64.RawStdEncoding.EncodeToString(make([]byte, 32)))
		}, class: dispatch.HostKeyMismatch, reason: "HostKeyChanged"},
		"a host key that nobody pinned": {change: func(h *dispatch.Host) {
			h.Target.HostKey = remote.FirstUse(func(string) error { return nil })
		}, class: dispatch.Config, reason: dispatch.ReasonHostKeyUnpinned},
		"another chain of roots": {behave: func(b *dispatchtest.Behaviour) {
			b.MangleHello = func(h *signing.Hello) { h.Root.Digest = "sha256:" + strings.Repeat("0", 64) }
		}, class: dispatch.Untrusted, reason: dispatch.ReasonForeignRoot},
		"a newer root than ours": {behave: func(b *dispatchtest.Behaviour) {
			b.MangleHello = func(h *signing.Hello) { h.Root.Version = 9 }
		}, class: dispatch.Config, reason: string(signing.ReasonRollback)},
	} {
		t.Run(name, func(t *testing.T) {
			h := w.NewHost("pi4")
			if test.behave != nil {
				h.Behave(test.behave)
			}
			host := h.Dispatch()
			if test.change != nil {
				test.change(&host)
			}
			_, err := w.Dispatcher(fast).Run(t.Context(), host, joinRequest())
			fails(t, err, test.class, test.reason)
			for kind := wire.Root; kind <= wire.Collect; kind++ {
				if n := h.Received(kind); n != 0 {
					t.Errorf("host got %d %s frames", n, kind)
				}
			}
		})
	}
}

func TestConfigurationIsFoundWrongBeforeAnythingIsDialled(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*dispatch.Request)
		options func(*dispatch.Options)
		world   func(*dispatchtest.World)
		reason  string
		says    string
	}{
		"an edited script": {
			change: func(r *dispatch.Request) { r.Script = append(bytes.Clone(r.Script), '#') },
			reason: string(signing.ReasonNotAllowed), says: `the join script of profile "tls-bootstrap" version "1"`,
		},
		"a script of another phase": {
			change: func(r *dispatch.Request) { r.Script = scripts[signing.PhaseLeave] }, reason: string(signing.ReasonNotAllowed), says: "kpssh profile sign",
		},
		"another version":      {change: func(r *dispatch.Request) { r.Version = "2" }, reason: string(signing.ReasonNotAllowed)},
		"an unknown parameter": {change: func(r *dispatch.Request) { r.Parameters["KPSSH_X"] = "1" }, reason: string(signing.ReasonParam)},
		"a value that does not fit": {
			change: func(r *dispatch.Request) { r.Parameters["KPSSH_VAR_REGION"] = "much too long for it" }, reason: string(signing.ReasonParam),
		},
		"a secret as parameter": {change: func(r *dispatch.Request) { r.Parameters["KPSSH_BOOTSTRAP_TOKEN"] = canary }, reason: string(signing.ReasonParam)},
		"a secret that is none": {change: func(r *dispatch.Request) { r.Secrets["KPSSH_NODE_NAME"] = canary }, reason: string(signing.ReasonParam)},
		"a value that is pinned otherwise": {
			world: func(w *dispatchtest.World) {
				w.Change(func(l *signing.Allowlist) {
					for i := range l.Scripts {
						l.Scripts[i].Parameters = parameters()
						l.Scripts[i].Parameters[2].Pins = []string{"https://10.0.0.1:6443"}
					}
				})
			},
			change: func(r *dispatch.Request) { r.Parameters["KPSSH_CLUSTER_ENDPOINT"] = "https://10.0.0.2:6443" },
			reason: string(signing.ReasonPin),
		},
		"an expired allowlist": {
			options: func(o *dispatch.Options) {
				o.Now = func() time.Time { return time.Now().Add(2 * 365 * 24 * time.Hour) }
			},
			reason: string(signing.ReasonExpired),
		},
		"no dispatch key": {options: func(o *dispatch.Options) { o.Signer = nil }, reason: dispatch.ReasonSigner},
		"no documents": {options: func(o *dispatch.Options) {
			o.Trust = trustFunc(func() (map[int64][]byte, []byte, error) { return nil, nil, nil })
		}, reason: dispatch.ReasonTrustMissing},
		"documents unread": {options: func(o *dispatch.Options) {
			o.Trust = trustFunc(func() (map[int64][]byte, []byte, error) { return nil, nil, io.ErrUnexpectedEOF })
		}, reason: dispatch.ReasonTrustMissing},
		"no claim":  {change: func(r *dispatch.Request) { r.Claim = "" }, reason: dispatch.ReasonRequest},
		"no script": {change: func(r *dispatch.Request) { r.Script = nil }, reason: dispatch.ReasonRequest},
		"no phase":  {change: func(r *dispatch.Request) { r.Phase = "" }, reason: dispatch.ReasonRequest},
		"no time":   {change: func(r *dispatch.Request) { r.Timeout = time.Millisecond }, reason: dispatch.ReasonRequest},
		"a foreign allowlist": {options: func(o *dispatch.Options) {
			roots, _, _ := o.Trust.Documents()
			other := dispatchtest.NewSigner(t)
			envelope, _ := signing.Sign(context.Background(), &signing.Allowlist{Version: 9, Issued: time.Now(), Expires: time.Now().Add(time.Hour)}, other)
			o.Trust = trustFunc(func() (map[int64][]byte, []byte, error) { return roots, envelope, nil })
		}, reason: dispatch.ReasonTrustMissing},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if test.world != nil {
				test.world(w)
			}
			h := w.NewHost("pi4")
			r := joinRequest()
			if test.change != nil {
				test.change(&r)
			}
			options := []func(*dispatch.Options){fast}
			if test.options != nil {
				options = append(options, test.options)
			}
			_, err := w.Dispatcher(options...).Run(t.Context(), h.Dispatch(), r)
			e := failure(t, err, dispatch.Config, test.reason)
			if !e.IsConfiguration() || !strings.Contains(e.Error(), test.says) {
				t.Errorf("got %v", e)
			}
			if h.Server.Connections() != 0 {
				t.Error("the host was dialled")
			}
		})
	}
}

type trustFunc func() (map[int64][]byte, []byte, error)

func (f trustFunc) Documents() (map[int64][]byte, []byte, error) { return f() }

func TestAllowedNamesTheScript(t *testing.T) {
	w := newWorld(t)
	d := w.Dispatcher()
	if err := d.Allowed(profileName, "1", scripts); err != nil {
		t.Fatal(err)
	}
	edited := map[signing.Phase][]byte{signing.PhaseInstall: scripts[signing.PhaseInstall], signing.PhaseLeave: []byte("echo edited")}
	err := d.Allowed(profileName, "1", edited)
	fails(t, err, dispatch.Config, string(signing.ReasonNotAllowed))
	for _, want := range []string{"the leave script", profileName, "kpssh profile sign", signing.Digest([]byte("echo edited"))} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	w.Allow(dispatchtest.Script(profileName, "1", signing.PhaseLeave, []byte("echo edited")))
	if err := d.Allowed(profileName, "1", edited); err != nil {
		t.Errorf("the new allowlist does not count: %v", err)
	}
}

func TestLeaveHasItsGrace(t *testing.T) {
	w := newWorld(t)
	w.Change(func(l *signing.Allowlist) {
		for i := range l.Scripts {
			if l.Scripts[i].Phase == signing.PhaseLeave {
				l.Scripts[i].GraceSeconds = 30 * 24 * 60 * 60
			}
		}
	})
	d := w.Dispatcher(func(o *dispatch.Options) { o.Now = func() time.Time { return time.Now().Add(366 * 24 * time.Hour) } })
	if err := d.Allowed(profileName, "1", map[signing.Phase][]byte{signing.PhaseLeave: scripts[signing.PhaseLeave]}); err != nil {
		t.Error(err)
	}
	fails(t, d.Allowed(profileName, "1", scripts), dispatch.Config, string(signing.ReasonExpired))
}

func TestOrderOfAnUnlistedKeyIsRefusedByTheHost(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	d := w.Dispatcher(fast, func(o *dispatch.Options) { o.Signer = dispatchtest.NewSigner(t) })
	_, err := d.Run(t.Context(), h.Dispatch(), joinRequest())
	if e := failure(t, err, dispatch.Refused, string(signing.ReasonUntrusted)); !e.IsConfiguration() {
		t.Error("the host is to blame")
	}
	if len(h.Orders()) != 0 || h.Claim().UID != "" {
		t.Error("it ran")
	}
}

func TestRefusalsToldApart(t *testing.T) {
	for reason, configuration := range map[signing.Reason]bool{
		signing.ReasonNotAllowed: true, signing.ReasonParam: true, signing.ReasonPin: true, signing.ReasonRollback: true,
		signing.ReasonWrongType: true, signing.ReasonStateUnwritable: false, signing.ReasonShimTooOld: false,
		signing.ReasonStaleChallenge: false, signing.ReasonNotRoot: false,
	} {
		w := newWorld(t)
		h := w.NewHost("pi4")
		h.Behave(func(b *dispatchtest.Behaviour) {
			b.MangleReceipt = func(r *signing.Receipt) { r.Outcome, r.Reason = signing.OutcomeRefused, reason }
		})
		_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
		if e := failure(t, err, dispatch.Refused, string(reason)); e.IsConfiguration() != configuration {
			t.Errorf("%s: configuration is %v", reason, e.IsConfiguration())
		}
	}
}

func TestDocumentsExpiredByTheHostsClockOnlyAreTheHostsFault(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.Behave(func(b *dispatchtest.Behaviour) {
		b.MangleReceipt = func(r *signing.Receipt) { r.Outcome, r.Reason = signing.OutcomeRefused, signing.ReasonExpired }
	})
	_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
	if e := failure(t, err, dispatch.Refused, dispatch.ReasonClockSkew); e.IsConfiguration() {
		t.Error("configuration is to blame")
	}
}

func TestHostsWithoutASession(t *testing.T) {
	for name, test := range map[string]struct {
		stdout, stderr string
		code           int
		class          dispatch.Class
		reason         string
	}{
		"no shim":             {stderr: "bash: line 1: kpssh: command not found\n", code: 127, class: dispatch.Untrusted, reason: dispatch.ReasonNoHello},
		"a shell that greets": {stdout: "Welcome!\x1b]0;owned\a\n", class: dispatch.Untrusted, reason: dispatch.ReasonNoHello},
		"not enrolled":        {stderr: "kpssh-shim: refused: not-enrolled: \"no host.json\"\n", code: 125, class: dispatch.Refused, reason: string(signing.ReasonNotEnrolled)},
		"not root":            {stderr: "sudo: a password is required\nkpssh-shim: refused: not-root: \"x\"\n", code: 125, class: dispatch.Refused, reason: string(signing.ReasonNotRoot)},
		"an unknown reason":   {stderr: "kpssh-shim: refused: because: \"x\"\n", code: 125, class: dispatch.Untrusted, reason: dispatch.ReasonNoHello},
		"a reason, exit 0":    {stderr: "kpssh-shim: refused: not-root: \"x\"\n", class: dispatch.Untrusted, reason: dispatch.ReasonNoHello},
		"no exit status":      {code: -1, class: dispatch.Unreachable, reason: remote.ReasonInterrupted},
		"endless noise":       {stdout: strings.Repeat("noise\n", 40<<10), class: dispatch.Untrusted, reason: dispatch.ReasonNoHello},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.NewHost("pi4")
			h.Server.SetHandler(func(s *remotetest.Session) int {
				_, _ = io.WriteString(s.Stderr, test.stderr)
				_, _ = io.WriteString(s.Stdout, test.stdout)
				return test.code
			})
			_, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
			if e := failure(t, err, test.class, test.reason); e.IsConfiguration() {
				t.Error("configuration is to blame")
			}
		})
	}
}

func TestUnreachableHosts(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	d := w.Dispatcher(fast)
	h.Server.SetFault(remotetest.FaultRejectKeys)
	_, err := d.Run(t.Context(), h.Dispatch(), joinRequest())
	fails(t, err, dispatch.AuthRejected, "AuthRejected")
	h.Server.SetFault(remotetest.FaultHangUp)
	_, err = d.Probe(t.Context(), h.Dispatch())
	fails(t, err, dispatch.Unreachable, remote.ReasonHandshake)
	host := h.Dispatch()
	host.Target.Keys = nil
	_, err = d.Probe(t.Context(), host)
	fails(t, err, dispatch.Config, dispatch.ReasonTarget)
}

func TestSilentSessionEndsInTime(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	h.Server.SetHandler(func(s *remotetest.Session) int { <-s.Done; return 0 })
	began := time.Now()
	_, err := w.Dispatcher(fast, func(o *dispatch.Options) { o.HelloTimeout = 50 * time.Millisecond }).Run(t.Context(), h.Dispatch(), joinRequest())
	fails(t, err, dispatch.Unreachable, remote.ReasonTimeout)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestConnectionThatDiedUnnoticedIsReplaced(t *testing.T) {
	w := newWorld(t)
	h := w.NewHost("pi4")
	d := w.Dispatcher(fast)
	if _, err := d.Probe(t.Context(), h.Dispatch()); err != nil {
		t.Fatal(err)
	}
	// The first session on the old connection hangs, as one to a host that was switched off does.
	hang := once()
	serve := h.Serve
	h.Server.SetHandler(func(s *remotetest.Session) int {
		if hang() {
			<-s.Done
			return 0
		}
		return serve(s)
	})
	mustRun(t, w.Dispatcher(fast, func(o *dispatch.Options) { o.HelloTimeout = 500 * time.Millisecond }), h, joinRequest())
	if len(h.Orders()) != 1 {
		t.Errorf("%d runs", len(h.Orders()))
	}
}

func TestSecretsAreInNoText(t *testing.T) {
	forms := map[string]string{
		"plain": canary, "its secret half": "0123456789abcdef", "base64": base64.StdEncoding.EncodeToString([]byte(canary)),
		"URL": url.QueryEscape("p&q=" + canary), "coloured": "abcdef\x1b[1m.0123456789\x1b[0mabcdef",
	}
	quoted, _ := json.Marshal(canary)
	forms["JSON"] = string(quoted)
	for name, form := range forms {
		for _, outcome := range []signing.Outcome{signing.OutcomeOK, signing.OutcomeFailed} {
			t.Run(name+" in what ends "+string(outcome), func(t *testing.T) {
				w := newWorld(t)
				h := w.NewHost("pi4")
				h.Behave(func(b *dispatchtest.Behaviour) {
					b.Run = func(dispatchtest.Order) dispatchtest.Exit {
						return dispatchtest.Exit{Outcome: outcome, Code: len(outcome) - 2, Output: "+ kubeadm join --token " + form + "\n" + strings.Repeat("more\n", 10)}
					}
				})
				result, err := w.Dispatcher(fast).Run(t.Context(), h.Dispatch(), joinRequest())
				text := ""
				if result != nil {
					text = result.Output
				}
				var e *dispatch.Error
				if errors.As(err, &e) {
					text += e.Error() + e.Output + e.Detail
				}
				if text == "" || strings.Contains(text, "0123456789abcdef") || strings.Contains(text, base64.RawStdEncoding.EncodeToString([]byte(canary))) {
					t.Errorf("secret in %q", text)
				}
			})
		}
	}
}

// rootsAlone are the documents of a world whose allowlist somebody has spoilt.
type rootsAlone struct{ dispatch.Trust }

func (r rootsAlone) Documents() (map[int64][]byte, []byte, error) {
	roots, _, err := r.Trust.Documents()
	return roots, []byte("{}"), err
}

func TestWhatVerifiesOfTheNewestDocuments(t *testing.T) {
	w := newWorld(t)
	with := func(trust dispatch.Trust, signer signing.Signer) *dispatch.Dispatcher {
		return w.Dispatcher(fast, func(o *dispatch.Options) { o.Trust, o.Signer = trust, signer })
	}
	if v, err := with(w, w.Signer()).Newest(); err != nil || !v.DispatchKeyListed || v.Root != 1 || v.Allowlist == 0 {
		t.Errorf("all verifies: %+v, %v", v, err)
	}
	if v, err := with(w, dispatchtest.NewSigner(t)).Newest(); err != nil || v.DispatchKeyListed || v.Root != 1 {
		t.Errorf("root does not list the key: %+v, %v", v, err)
	}
	if v, err := with(w, nil).Newest(); err != nil || v.DispatchKeyListed {
		t.Errorf("there is no key: %+v, %v", v, err)
	}
	if v, err := with(rootsAlone{w}, w.Signer()).Newest(); err == nil || !v.DispatchKeyListed || v.Root != 1 || v.RootExpires.IsZero() || v.Allowlist != 0 {
		t.Errorf("the allowlist does not verify: %+v, %v", v, err)
	}
	if v, err := with(noTrust{}, w.Signer()).Newest(); err == nil || v != (dispatch.Versions{}) {
		t.Errorf("there are none: %+v, %v", v, err)
	}
}
