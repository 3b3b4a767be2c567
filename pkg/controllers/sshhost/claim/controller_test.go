package claim_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/claim"
)

const hostID = "kpssh://kpssh-system/host-a"

func newController(env *controllertest.Env, cached client.Client) *claim.Controller {
	return claim.NewController(claim.Options{
		Client: cached, Live: env.Client, Hosts: env.Pool, Tokens: bootstrap.NewTokens(env.Client, env.Client, env.Clock),
		Turns: env.Turns, Namespace: controllertest.Namespace,
	})
}

func run(t *testing.T, env *controllertest.Env) reconcile.Result {
	t.Helper()
	result, err := newController(env, env.Client).Reconcile(context.Background(), env.Host("host-a"))
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestStaleClaims(t *testing.T) {
	for _, state := range []v1beta1.HostState{v1beta1.HostClaimed, v1beta1.HostInUse} {
		tests := map[string]struct {
			nodeClaim *karpenterv1.NodeClaim
			want      v1beta1.HostState
		}{
			"held while the NodeClaim is there":                {controllertest.NodeClaim("pool-1", hostID), state},
			"released when the NodeClaim is gone":              {nil, v1beta1.HostPending},
			"released when another NodeClaim has its name now": {controllertest.NodeClaim("pool-1", "", func(n *karpenterv1.NodeClaim) { n.UID = "another" }), v1beta1.HostPending},
		}
		for name, tt := range tests {
			t.Run(string(state)+" "+name, func(t *testing.T) {
				objects := []client.Object{controllertest.Host("host-a", "10.0.0.1", controllertest.ClaimedBy("pool-1"), func(h *v1beta1.SSHHost) {
					h.Status.State = state
					h.Status.BootstrapTokenID = "abc123"
				})}
				if tt.nodeClaim != nil {
					objects = append(objects, tt.nodeClaim)
				}
				env := controllertest.New(t, objects...)
				tokens := bootstrap.NewTokens(env.Client, env.Client, env.Clock)
				if _, err := tokens.Ensure(context.Background(), "abc123", bootstrap.Owner{Name: "pool-1", UID: "uid-pool-1"}, time.Minute); err != nil {
					t.Fatal(err)
				}
				result := run(t, env)
				host := env.Host("host-a")
				if host.Status.State != tt.want {
					t.Errorf("state = %q, want %q", host.Status.State, tt.want)
				}
				released := tt.want == v1beta1.HostPending
				if (host.Status.ClaimRef == nil) != released || (host.Status.BootstrapTokenID == "") != released || (env.Tokens() == 0) != released {
					t.Errorf("claim %v, token %q, %d Secrets, want all gone = %t", host.Status.ClaimRef, host.Status.BootstrapTokenID, env.Tokens(), released)
				}
				if !released && result.RequeueAfter != 5*time.Minute {
					t.Errorf("looked at again after %s", result.RequeueAfter)
				}
			})
		}
	}
}

func TestACacheThatHasNotSeenTheNodeClaimDoesNotReleaseItsHost(t *testing.T) {
	env := controllertest.New(t, controllertest.NodeClaim("pool-1", hostID), controllertest.Host("host-a", "10.0.0.1", controllertest.ClaimedBy("pool-1")))
	stale := controllertest.New(t)
	if _, err := newController(env, stale.Client).Reconcile(context.Background(), env.Host("host-a")); err != nil {
		t.Fatal(err)
	}
	if got := env.Host("host-a").Status.State; got != v1beta1.HostClaimed {
		t.Errorf("state = %q", got)
	}
}

func TestARunningPhaseIsWaitedFor(t *testing.T) {
	env := controllertest.New(t, controllertest.Host("host-a", "10.0.0.1", controllertest.ClaimedBy("pool-1")))
	done, _ := env.Turns.Try("host-a")
	if result := run(t, env); result.RequeueAfter == 0 || env.Host("host-a").Status.State != v1beta1.HostClaimed {
		t.Errorf("result %v, state %q", result, env.Host("host-a").Status.State)
	}
	done()
	run(t, env)
	if got := env.Host("host-a").Status.State; got != v1beta1.HostPending {
		t.Errorf("state = %q", got)
	}
}

// Two controllers at once may each have claimed a host. Which one is extra shows only once the NodeClaim names one and
// the other claim is known; nobody says so to this host.
func TestAHostThatItsNodeClaimDoesNotNameIsSoonLookedAtAgain(t *testing.T) {
	for name, id := range map[string]string{
		"the NodeClaim names none yet":                          "",
		"the claim of the host that it names is not known here": "kpssh://kpssh-system/host-b",
	} {
		t.Run(name, func(t *testing.T) {
			env := controllertest.New(t, controllertest.NodeClaim("pool-1", id),
				controllertest.Host("host-a", "10.0.0.1", controllertest.ClaimedBy("pool-1")), controllertest.Host("host-b", "10.0.0.2"))
			if result := run(t, env); result.RequeueAfter != 2*time.Second {
				t.Errorf("looked at again after %s", result.RequeueAfter)
			}
			if env.Host("host-a").Status.ClaimRef == nil {
				t.Error("released")
			}
		})
	}
}

func TestAnExtraClaimOfALivingNodeClaimIsReleased(t *testing.T) {
	env := controllertest.New(t,
		controllertest.NodeClaim("pool-1", "kpssh://kpssh-system/host-b"),
		controllertest.Host("host-a", "10.0.0.1", controllertest.ClaimedBy("pool-1")),
		controllertest.Host("host-b", "10.0.0.2", controllertest.ClaimedBy("pool-1")))
	run(t, env)
	if got := env.Host("host-a"); got.Status.State != v1beta1.HostPending || got.Status.Conditions[len(got.Status.Conditions)-1].Reason != claim.ReasonExtraClaim {
		t.Errorf("status = %+v", got.Status)
	}
	if got := env.Host("host-b").Status.ClaimRef; got == nil || got.UID != types.UID("uid-pool-1") {
		t.Errorf("the other host lost its claim: %v", got)
	}
}
