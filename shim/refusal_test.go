package shim

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const token = "abcdef.0123456789abcdef"

// refusalCase bends what a good controller sends; want is the one reason for it.
type refusalCase struct {
	want  signing.Reason
	world func(*world)         // before the session
	bend  func(*client, *plan) // the order
	send  func(*client, *plan) // instead of a plan
	dirty bool                 // documents are taken on the way, so the state changes
}

var refusals = map[string]refusalCase{
	"a stream that ends within the order": {want: signing.ReasonMalformed, send: func(c *client, p *plan) {
		p.Bind(c.w.t, c.hello.Challenge)
		c.write(wire.Order, sign(c.w.T, &p.Order, p.By...))
		c.hangUp()
	}},
	"a frame of an unknown type": {want: signing.ReasonMalformed, send: func(c *client, _ *plan) {
		_, _ = c.conn.Write([]byte{0, 0, 0, 0, 99})
	}},
	"an order that is no envelope": {want: signing.ReasonMalformed, bend: func(_ *client, p *plan) {
		p.Env = []byte("order me something")
	}},
	"a frame above its cap": {want: signing.ReasonTooLarge, send: func(c *client, _ *plan) {
		_, _ = c.conn.Write([]byte{0xff, 0xff, 0xff, 0xff, byte(wire.Script)})
	}},
	"an order signed by a key that nobody knows": {want: signing.ReasonUntrusted, bend: func(c *client, p *plan) {
		p.By = []signing.Signer{newSigner(c.w.t)}
	}},
	"an order signed by the author": {want: signing.ReasonUntrusted, bend: func(c *client, p *plan) { p.By = []signing.Signer{c.w.Author} }},
	"an order signed by root":       {want: signing.ReasonUntrusted, bend: func(c *client, p *plan) { p.By = []signing.Signer{c.w.Root[0]} }},
	"an allowlist signed by dispatch": {want: signing.ReasonUntrusted, bend: func(c *client, p *plan) {
		p.List = sign(c.w.T, &c.w.List, c.w.Dispatch)
	}},
	"a root signed by a stranger": {want: signing.ReasonUntrusted, bend: func(c *client, p *plan) {
		next := c.w.RootDoc
		next.Version++
		p.Roots = [][]byte{sign(c.w.T, &next, newSigner(c.w.t))}
	}},
	"an allowlist in the place of the order": {want: signing.ReasonWrongType, bend: func(c *client, p *plan) {
		p.Env = c.w.ListEnv
	}},
	"an order for another host": {want: signing.ReasonWrongHost, bend: func(_ *client, p *plan) {
		p.Order.HostID = strings.Repeat("0", 32)
	}},
	"an order of another session": {want: signing.ReasonStaleChallenge, bend: func(_ *client, p *plan) {
		p.Order.Challenge = bytes.Repeat([]byte{1}, signing.ChallengeSize)
	}},
	"an order of another allowlist": {want: signing.ReasonRollback, bend: func(_ *client, p *plan) {
		p.Order.Allowlist = signing.Digest([]byte("old list"))
	}},
	"an older allowlist": {want: signing.ReasonRollback, bend: func(c *client, p *plan) {
		older := c.w.List
		older.Version--
		p.List = sign(c.w.T, &older, c.w.Author)
	}, world: func(w *world) { w.NewList(func(*signing.Allowlist) {}) }},
	"another allowlist of the same version": {want: signing.ReasonRollback, bend: func(c *client, p *plan) {
		twin := c.w.List
		twin.Expires = twin.Expires.Add(time.Hour)
		p.List = sign(c.w.T, &twin, c.w.Author)
	}},
	"a root that skips a version": {want: signing.ReasonRollback, bend: func(c *client, p *plan) {
		next := c.w.RootDoc
		next.Version += 2
		p.Roots = [][]byte{sign(c.w.T, &next, c.w.Root...)}
	}},
	"an expired allowlist": {want: signing.ReasonExpired, world: func(w *world) { w.clock = issued.Add(2 * year) }},
	"an expired root":      {want: signing.ReasonExpired, world: func(w *world) { w.clock = issued.Add(6 * year) }},
	"an allowlist that expired before the shim was built": {want: signing.ReasonExpired, world: func(w *world) {
		w.cfg.Build.Time, w.clock = issued.Add(2*year), time.Unix(0, 0)
	}},
	"a script that is not in the list": {want: signing.ReasonNotAllowed, bend: func(_ *client, p *plan) {
		p.Script = []byte("echo evil")
		p.Order.Script = signing.Digest(p.Script)
	}},
	"a listed script in another phase": {want: signing.ReasonNotAllowed, bend: func(_ *client, p *plan) {
		p.Order.Phase = signing.PhaseLeave
	}},
	"a listed script of another version": {want: signing.ReasonNotAllowed, bend: func(_ *client, p *plan) {
		p.Order.Version = "2"
	}},
	"a listed script of another profile": {want: signing.ReasonNotAllowed, bend: func(_ *client, p *plan) {
		p.Order.Profile = "other"
	}},
	"other bytes than the order names": {want: signing.ReasonNotAllowed, bend: func(_ *client, p *plan) {
		p.Script = append([]byte("# \n"), p.Script...)
	}},
	"a parameter that the script does not have": {want: signing.ReasonParam, bend: func(_ *client, p *plan) {
		p.Params["KPSSH_ALLOWED_SIGNERS"] = "me"
	}},
	"a parameter of the wrong form": {want: signing.ReasonParam, bend: func(_ *client, p *plan) {
		p.Params["KPSSH_NODE_NAME"] = "Not A Name"
	}},
	"other parameters than the order names": {want: signing.ReasonParam, bend: func(_ *client, p *plan) {
		p.Order.Parameters = signing.Digest([]byte("{}\n"))
	}},
	"a secret as a plain parameter": {want: signing.ReasonParam, bend: func(_ *client, p *plan) {
		p.Params["KPSSH_BOOTSTRAP_TOKEN"] = token
	}},
	"a parameter that is no KPSSH_ name": {want: signing.ReasonParam, bend: func(_ *client, p *plan) {
		p.Raw = []byte(`{"LD_PRELOAD":"/tmp/x.so"}`)
	}},
	"another endpoint than the pinned one": {want: signing.ReasonPin, bend: func(_ *client, p *plan) {
		p.Params["KPSSH_CLUSTER_ENDPOINT"] = "https://evil.example:6443"
	}},
	"an older fence": {want: signing.ReasonStaleFence, bend: func(_ *client, p *plan) { p.Order.Fence = 4 }},
	"another claim on a held host": {want: signing.ReasonStaleFence, bend: func(_ *client, p *plan) {
		p.Order.Claim, p.Order.Fence = "uid-2", 99
	}},
	"a join without a claim": {want: signing.ReasonStaleFence, bend: func(_ *client, p *plan) { p.Order.Claim = "" }},
	"a shim below the list's minimum": {want: signing.ReasonShimTooOld, dirty: true, world: func(w *world) {
		w.NewList(func(l *signing.Allowlist) { l.MinShim = "v1.0.1" })
	}},
	"another secret than the order commits to": {want: signing.ReasonSecretMismatch, bend: func(c *client, p *plan) {
		p.Order.Secrets = map[string]string{"KPSSH_BOOTSTRAP_TOKEN": signing.Commitment(c.hello.Challenge, "KPSSH_BOOTSTRAP_TOKEN", "x")}
	}},
	"a secret less than the order names": {want: signing.ReasonSecretMismatch, bend: func(c *client, p *plan) {
		p.Secrets = map[string]string{}
		p.Order.Secrets = map[string]string{"KPSSH_BOOTSTRAP_TOKEN": signing.Commitment(c.hello.Challenge, "KPSSH_BOOTSTRAP_TOKEN", token)}
	}},
	"a secret more than the order names": {want: signing.ReasonSecretMismatch, bend: func(_ *client, p *plan) {
		p.Order.Secrets = map[string]string{}
	}},
	"a run that never was": {want: signing.ReasonUnknownRun, send: func(c *client, _ *plan) {
		c.write(wire.Collect, []byte(signing.Digest([]byte("never"))))
	}},
	"a collect of something that is no digest": {want: signing.ReasonUnknownRun, send: func(c *client, _ *plan) {
		c.write(wire.Collect, []byte("../../etc/shadow"))
	}},
	"parameters in the place of the order": {want: signing.ReasonUnexpectedFrame, send: func(c *client, _ *plan) {
		c.write(wire.Parameters, []byte("{}"))
	}},
	"secrets where a script is due": {want: signing.ReasonUnexpectedFrame, bend: func(_ *client, p *plan) { p.Script = nil }},
	"a second order where parameters are due": {want: signing.ReasonUnexpectedFrame, send: func(c *client, p *plan) {
		p.Bind(c.w.t, c.hello.Challenge)
		for range 2 {
			c.write(wire.Order, sign(c.w.T, &p.Order, p.By...))
		}
	}},
	"a frame that only hosts send": {want: signing.ReasonUnexpectedFrame, send: func(c *client, _ *plan) {
		c.write(wire.Output, []byte("x"))
	}},
	"a host whose state cannot be written": {want: signing.ReasonStateUnwritable, world: func(w *world) {
		w.swap(runLock, func(path string) error { return os.Mkdir(path, 0o700) })
	}},
	"a host whose spool cannot be reserved": {want: signing.ReasonStateUnwritable, world: func(w *world) {
		w.swap(spoolFile, func(path string) error { return os.Mkdir(path, 0o700) })
	}},
	"a host whose state is torn in both slots": {want: signing.ReasonStateUnwritable, dirty: true, send: func(c *client, p *plan) {
		if err := os.WriteFile(filepath.Join(c.w.cfg.State, stateFile), make([]byte, slotCount*slotSize), 0o600); err != nil {
			c.w.t.Fatal(err)
		}
		c.submit(p)
	}},
}

// Among them is what the reference documents (R32) leave possible: an older list or order after a newer one, bytes that
// are signed for another phase, an order for another host, documents that have expired, and other parameters than signed.
func TestEveryRefusalRunsNothing(t *testing.T) {
	for name, tc := range refusals {
		t.Run(name, func(t *testing.T) {
			script, marker := marking(t, "")
			w := newWorld(t, "join: "+script)
			endpoint := &w.List.Scripts[0].Parameters[1]
			endpoint.Pins = []string{"https://api.example:6443"}
			w.ListEnv = sign(w.T, &w.List, w.Author)
			good := func(p *plan) { p.Params["KPSSH_CLUSTER_ENDPOINT"] = endpoint.Pins[0] }
			w.mustRun(signing.PhaseJoin, script, "uid-1", 5, good)
			w.forget(script)
			if tc.world != nil {
				tc.world(w)
			}
			before, ran, logged := w.snapshot(), runs(t, marker), len(w.logged())

			c := w.connect()
			p := c.plan(signing.PhaseJoin, script, "uid-1", 5)
			good(p)
			p.Secrets["KPSSH_BOOTSTRAP_TOKEN"] = token
			if tc.bend != nil {
				tc.bend(c, p)
			}
			if tc.send != nil {
				tc.send(c, p)
			} else {
				c.submit(p)
			}
			r, out := c.finish()
			err := c.end()
			if r.Outcome != signing.OutcomeRefused || r.Reason != tc.want || signing.ReasonOf(err) != tc.want {
				t.Errorf("got %s %q (%v), want %q", r.Outcome, r.Reason, err, tc.want)
			}
			if runs(t, marker) != ran || out != "" {
				t.Errorf("something ran: %q", out)
			}
			if !tc.dirty && w.snapshot() != before {
				t.Error("the state changed")
			}
			lines := w.logged()[logged:]
			if strings.Count(lines, "\n") != 1 || !strings.HasPrefix(lines, "kpssh-shim: refused: "+string(tc.want)+": ") {
				t.Errorf("log %q", lines)
			}
			if strings.Contains(lines, token) {
				t.Error("the log holds the secret")
			}
		})
	}
}

// TestRefusalsCoverTheList keeps the table above and the closed list of reasons together.
func TestRefusalsCoverTheList(t *testing.T) {
	covered := map[signing.Reason]string{
		signing.ReasonBusy:             "TestOneRunAtATime",
		signing.ReasonNotEnrolled:      "TestOpenRefusesForeignState",
		signing.ReasonNotRoot:          "TestRootStageIsForRoot",
		signing.ReasonUnsupportedProto: "the dispatcher: hosts say their protocol first",
	}
	for _, tc := range refusals {
		covered[tc.want] = "here"
	}
	for _, reason := range []signing.Reason{
		signing.ReasonMalformed, signing.ReasonTooLarge, signing.ReasonUntrusted, signing.ReasonWrongType,
		signing.ReasonWrongHost, signing.ReasonStaleChallenge, signing.ReasonRollback, signing.ReasonExpired,
		signing.ReasonNotAllowed, signing.ReasonParam, signing.ReasonPin, signing.ReasonStaleFence,
		signing.ReasonBusy, signing.ReasonStateUnwritable, signing.ReasonShimTooOld, signing.ReasonSecretMismatch,
		signing.ReasonUnknownRun, signing.ReasonNotEnrolled, signing.ReasonNotRoot, signing.ReasonUnexpectedFrame,
		signing.ReasonUnsupportedProto,
	} {
		if covered[reason] == "" {
			t.Errorf("no case for %q", reason)
		}
	}
}

func TestClientThatLeavesAfterHelloIsNoRefusal(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	c.hangUp()
	if err := c.end(); err != nil || w.logged() != "" {
		t.Errorf("%v, log %q", err, w.logged())
	}
}
