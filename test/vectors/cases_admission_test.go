package vectors

import (
	"encoding/json"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// admission is one row of admission.json: who has the host, what an order asks for, and who has it from
// the start of its run.
type admission struct {
	Held    signing.Claim  `json:"held"`
	Phase   signing.Phase  `json:"phase"`
	Claim   string         `json:"claim"`
	Fence   int64          `json:"fence"`
	Verdict string         `json:"verdict"`
	After   *signing.Claim `json:"after,omitempty"`
}

// admissions are the table of the protocol's section 10, for every combination of one fence below, at and
// above the host's, of the same claim, another and none.
func admissions(t testing.TB) []byte {
	t.Helper()
	var all []admission
	for _, held := range []string{"", "a"} {
		for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseJoin, signing.PhaseLeave, signing.PhaseUninstall} {
			for _, claim := range []string{"", "a", "b"} {
				for _, fence := range []int64{4, 5, 6} {
					all = append(all, admit(admission{Held: signing.Claim{UID: held, Fence: 5}, Phase: phase, Claim: claim, Fence: fence}))
				}
			}
		}
	}
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

func admit(a admission) admission {
	free, leaving := a.Held.UID == "", a.Phase == signing.PhaseLeave || a.Phase == signing.PhaseUninstall
	a.Verdict = "refused stale-fence"
	after := signing.Claim{UID: a.Held.UID, Fence: a.Fence}
	switch {
	case free && leaving && a.Fence >= a.Held.Fence,
		!free && a.Claim == a.Held.UID && a.Fence >= a.Held.Fence:
	case free && !leaving && a.Claim != "" && a.Fence > a.Held.Fence:
		after.UID = a.Claim
	default:
		return a
	}
	a.Verdict, a.After = "ok", &after
	return a
}
