package faults

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

func claimed(fence int64, by string) v1beta1.SSHHostStatus {
	return v1beta1.SSHHostStatus{
		State: v1beta1.HostClaimed, Fence: fence, ClaimRef: &v1beta1.ClaimRef{Name: by, UID: types.UID(by)},
	}
}

func TestBrokenPromisesAreSeen(t *testing.T) {
	idle := func(fence int64) v1beta1.SSHHostStatus {
		return v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, Fence: fence}
	}
	type version struct {
		host   string
		status v1beta1.SSHHostStatus
	}
	ok := func(claim, phase string) run {
		return run{Claim: claim, Phase: phase, Outcome: "ok", Verdict: "ok", Time: time.Unix(2, 0)}
	}
	one := []version{{"a", idle(0)}, {"a", claimed(1, "x")}}
	const all = "install-began\ninstall-ended\njoin-began\njoin-ended\nleave-began\nleave-ended\n"
	tests := map[string]struct {
		versions []version
		runs     []run
		wrote    string
		cutShort bool
		want     string
	}{
		"a join and a leave":                     {one, []run{ok("c.x", "install"), ok("c.x", "join"), ok("c.x", "leave")}, all, false, ""},
		"a join cut short and run again":         {one, []run{{"c.x", "join", "interrupted", "ok", "", time.Unix(2, 0)}, ok("c.x", "join")}, "join-began\njoin-began\n", true, ""},
		"a host goes to the next claim and back": {[]version{{"a", claimed(1, "x")}, {"a", idle(1)}, {"a", claimed(2, "y")}}, nil, "", false, ""},
		"a host is claimed twice":                {[]version{{"a", claimed(1, "x")}, {"a", claimed(2, "y")}}, nil, "", false, "while it was x's"},
		"a claim has two hosts":                  {[]version{{"a", claimed(1, "x")}, {"b", claimed(1, "x")}}, nil, "", false, "two hosts"},
		"a fence falls":                          {[]version{{"a", idle(2)}, {"a", idle(1)}}, nil, "", false, "fell from 2 to 1"},
		"join runs again, having ended well":     {one, []run{ok("c.x", "join"), ok("c.x", "join")}, "join-began\njoin-began\n", true, "after it had ended well"},
		"join runs twice and nothing cut it":     {one, []run{{"c.x", "join", "failed", "ok", "", time.Unix(2, 0)}, ok("c.x", "join")}, "join-began\njoin-began\n", false, "ran 2 times"},
		"a run that no receipt tells of":         {one, []run{ok("c.x", "join")}, "join-began\njoin-began\n", true, "began 2 times"},
		"a receipt of what never began":          {one, []run{ok("c.x", "join")}, "", false, "began 0 times"},
		"a guard leaves once more":               {one, []run{ok("c.x", "leave"), ok("guard.x2", "leave")}, "leave-began\nleave-began\n", false, ""},
		"a run before the trial":                 {one, []run{{Claim: "c.w", Phase: "leave", Outcome: "ok", Verdict: "ok", Time: time.Unix(0, 0)}, ok("c.x", "leave")}, "leave-began\n", false, ""},
		"a receipt that does not verify":         {one, []run{{"c.x", "join", "ok", "refused", "forged", time.Unix(2, 0)}}, "join-began\n", false, "forged"},
		"a claim comes back after another": {
			[]version{{"a", claimed(1, "x")}, {"a", idle(1)}, {"a", claimed(2, "y")}},
			[]run{ok("c.x", "join"), ok("c.y", "join"), ok("c.x", "leave")}, "join-began\njoin-began\nleave-began\n", false, "the turn of c.y",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &promises{since: time.Unix(1, 0)}
			for _, v := range tt.versions {
				p.see(v.host, v.status, true)
			}
			p.ran("a", tt.runs, tt.wrote, tt.cutShort)
			got := strings.Join(p.broken, "\n")
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("broken: %q, want %q", got, tt.want)
			}
		})
	}
}
