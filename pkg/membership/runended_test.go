package membership_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// answering is a dispatcher that has one answer.
type answering struct {
	result *dispatch.Result
	err    error
}

func (a answering) Run(context.Context, dispatch.Host, dispatch.Request) (*dispatch.Result, error) {
	return a.result, a.err
}

func (a answering) Probe(context.Context, dispatch.Host) (*dispatch.Probe, error) { return nil, nil }

func (a answering) Newest() (dispatch.Versions, error) { return dispatch.Versions{}, nil }

func (a answering) Host(context.Context, *v1beta1.SSHHost) (dispatch.Host, error) {
	return dispatch.Host{}, nil
}

type published []events.Event

func (p *published) Publish(all ...events.Event) { *p = append(*p, all...) }

func TestARunThatEndedIsOneEventOnItsHost(t *testing.T) {
	digest := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	receipt := func(outcome signing.Outcome, exit int, signal string) *signing.Receipt {
		return &signing.Receipt{
			Order: digest("a"), Script: digest("b"), Parameters: digest("c"), Profile: "tls-bootstrap", Version: "v1", Phase: signing.PhaseLeave,
			Outcome: outcome, ExitCode: exit, Signal: signal,
		}
	}
	const tail = "; order aaaaaaaaaaaa, script bbbbbbbbbbbb, parameters cccccccccccc"
	for name, tt := range map[string]struct {
		answer answering
		kind   string
		want   string // "" for no event
	}{
		"it went well": {
			answering{result: &dispatch.Result{Receipt: receipt(signing.OutcomeOK, 0, ""), Output: "canary"}}, corev1.EventTypeNormal,
			"leave of tls-bootstrap@v1 for NodeClaim pool-1: ok" + tail,
		},
		"it failed": {
			answering{err: &dispatch.Error{Class: dispatch.ScriptFailed, Receipt: receipt(signing.OutcomeFailed, 3, ""), Output: "canary"}}, corev1.EventTypeWarning,
			"leave of tls-bootstrap@v1 for NodeClaim pool-1: failed, exit status 3" + tail,
		},
		"it was killed": {
			answering{err: &dispatch.Error{Class: dispatch.Timeout, Receipt: receipt(signing.OutcomeTimeout, 137, "SIGKILL")}}, corev1.EventTypeWarning,
			"leave of tls-bootstrap@v1 for NodeClaim pool-1: timeout, SIGKILL" + tail,
		},
		"nothing ran": {answering{err: &dispatch.Error{Class: dispatch.Refused, Receipt: receipt(signing.OutcomeRefused, 0, "")}}, "", ""},
		"no receipt":  {answering{err: &dispatch.Error{Class: dispatch.Unreachable}}, "", ""},
		"raw":         {answering{result: &dispatch.Result{}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got published
			phases := membership.NewPhases(membership.PhasesOptions{
				Dispatcher: tt.answer, Access: tt.answer, Clock: clock.RealClock{}, Recorder: &got,
			})
			host := &v1beta1.SSHHost{}
			host.Name, host.Spec.Address = "host-a", "10.0.0.1"
			host.Status.ClaimRef = &v1beta1.ClaimRef{Name: "pool-1", UID: "uid-1"}
			prof := &v1beta1.SSHJoinProfile{}
			prof.Name, prof.Spec.Scripts.Leave = "tls-bootstrap", "true"
			_ = phases.Leave(t.Context(), host, prof, nil, "uid-1")
			if tt.want == "" {
				if len(got) != 0 {
					t.Errorf("events %+v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Type != tt.kind || got[0].Reason != v1beta1.EventRunEnded || got[0].Message != tt.want || got[0].InvolvedObject != host {
				t.Fatalf("events %+v\nwant %s", got, tt.want)
			}
			if got[0].DedupeTimeout != time.Hour || !strings.Contains(fmt.Sprint(got[0].DedupeValues), digest("a")) {
				t.Errorf("the same receipt would be told again: %+v", got[0])
			}
		})
	}
}
