package membership

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// runEndedDedupe is how long the same receipt, collected again, is no news.
const runEndedDedupe = time.Hour

// runEnded tells on the host, as an Event, what its signed receipt says: which script and parameters ran for whom, and
// how that ended. One run is one Event. The proof is in the audit log, under the digest of the order.
func (p *Phases) runEnded(host *v1beta1.SSHHost, request *dispatch.Request, result *dispatch.Result, err error) {
	receipt := receiptOf(result, err)
	if p.opts.Recorder == nil || receipt == nil || receipt.Outcome == signing.OutcomeRefused {
		return
	}
	kind, ended := corev1.EventTypeNormal, string(receipt.Outcome)
	if receipt.Outcome != signing.OutcomeOK {
		kind = corev1.EventTypeWarning
	}
	switch {
	case receipt.Signal != "":
		ended += ", " + receipt.Signal
	case receipt.ExitCode != 0:
		ended += fmt.Sprintf(", exit status %d", receipt.ExitCode)
	}
	forWhom := ""
	if request.ClaimName != "" {
		forWhom = " for NodeClaim " + request.ClaimName
	}
	p.opts.Recorder.Publish(events.Event{
		InvolvedObject: host, Type: kind, Reason: v1beta1.EventRunEnded,
		Message: fmt.Sprintf("%s of %s@%s%s: %s; order %s, script %s, parameters %s", receipt.Phase, receipt.Profile, receipt.Version,
			forWhom, ended, short(receipt.Order), short(receipt.Script), short(receipt.Parameters)),
		DedupeValues: []string{string(host.UID), receipt.Order}, DedupeTimeout: runEndedDedupe,
	})
}

// receiptOf is the receipt in what a dispatcher answered, nil where there is none.
func receiptOf(result *dispatch.Result, err error) *signing.Receipt {
	var e *dispatch.Error
	switch {
	case err == nil && result != nil:
		return result.Receipt
	case errors.As(err, &e):
		return e.Receipt
	}
	return nil
}

// short is enough of a digest to find it by.
func short(digest string) string {
	const enough = 12
	digest = strings.TrimPrefix(digest, "sha256:")
	if len(digest) > enough {
		digest = digest[:enough]
	}
	return digest
}

// claimName is the name of the NodeClaim that has a uid, where the host still says so.
func claimName(host *v1beta1.SSHHost, claim types.UID) string {
	if ref := host.Status.ClaimRef; ref != nil && claim != "" && ref.UID == claim {
		return ref.Name
	}
	return ""
}
