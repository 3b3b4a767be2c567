package pool_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func condition(kind string) status.Condition {
	return status.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.NewTime(start)}
}

type heldWrite func(context.Context, *pool.Pool, *v1beta1.SSHHost, pool.Ref) (*v1beta1.SSHHost, error)

// heldWrites are all writes under a claim, with what they must leave behind.
func heldWrites() map[string]struct {
	do   heldWrite
	done func(*v1beta1.SSHHost) bool
} {
	type hw = struct {
		do   heldWrite
		done func(*v1beta1.SSHHost) bool
	}
	return map[string]hw{
		"SetInstalled": {
			func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost, r pool.Ref) (*v1beta1.SSHHost, error) {
				return p.SetInstalled(ctx, h, r, "p@1")
			}, func(h *v1beta1.SSHHost) bool { return h.Status.InstalledProfile == "p@1" },
		},
		"SetBootstrapToken": {
			func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost, r pool.Ref) (*v1beta1.SSHHost, error) {
				return p.SetBootstrapToken(ctx, h, r, "abcdef")
			}, func(h *v1beta1.SSHHost) bool { return h.Status.BootstrapTokenID == "abcdef" },
		},
		"SetProviderID": {
			func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost, r pool.Ref) (*v1beta1.SSHHost, error) {
				return p.SetProviderID(ctx, h, r, "own:///1")
			}, func(h *v1beta1.SSHHost) bool { return h.Status.ProviderID == "own:///1" },
		},
		"SetInUse": {
			func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost, r pool.Ref) (*v1beta1.SSHHost, error) {
				return p.SetInUse(ctx, h, r)
			}, func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostInUse },
		},
		"SetCondition": {
			func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost, r pool.Ref) (*v1beta1.SSHHost, error) {
				return p.SetCondition(ctx, h, r, condition("Some"))
			}, func(h *v1beta1.SSHHost) bool { return pool.HasCondition(h, "Some") },
		},
		"BumpFence": {
			func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost, r pool.Ref) (*v1beta1.SSHHost, error) {
				return p.BumpFence(ctx, h, r, 0)
			}, func(h *v1beta1.SSHHost) bool { return h.Status.Fence == 2 },
		},
		"RequestLeave": {
			func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost, r pool.Ref) (*v1beta1.SSHHost, error) {
				return p.RequestLeave(ctx, h, r, "Why", "because")
			}, func(h *v1beta1.SSHHost) bool { return pool.HasCondition(h, v1beta1.ConditionLeaveRequested) },
		},
		"Release": {
			func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost, r pool.Ref) (*v1beta1.SSHHost, error) {
				return p.Release(ctx, h, r, pool.Outcome{State: v1beta1.HostAvailable})
			}, func(h *v1beta1.SSHHost) bool {
				return h.Status.State == v1beta1.HostAvailable && h.Status.ClaimRef == nil && h.Status.ProviderID == ""
			},
		},
	}
}

func TestWritesUnderAClaim(t *testing.T) {
	ctx := context.Background()
	for name, write := range heldWrites() {
		t.Run(name+" is tried again on a fresh read while the claim holds", func(t *testing.T) {
			w := newWorld(t, newHost("a", inState(v1beta1.HostClaimed)))
			old := w.stored("a")
			w.meanwhile("a", func(h *v1beta1.SSHHost) { h.Status.HostKeyFingerprint = "SHA256:x" })
			got, err := write.do(ctx, w.pool, old, claimA)
			if err != nil {
				t.Fatal(err)
			}
			after := w.stored("a")
			if !write.done(after) || after.Status.HostKeyFingerprint != "SHA256:x" {
				t.Errorf("wrote %+v", after.Status)
			}
			if got.ResourceVersion != after.ResourceVersion {
				t.Errorf("returned version %s of %s", got.ResourceVersion, after.ResourceVersion)
			}
		})
		for loss, meanwhile := range map[string]func(*world){
			"the host changed hands": func(w *world) {
				w.meanwhile("a", func(h *v1beta1.SSHHost) {
					h.Status.ClaimRef = &v1beta1.ClaimRef{Name: claimB.Name, UID: claimB.UID}
				})
			},
			"a NodeClaim of the same name took it": func(w *world) {
				w.meanwhile("a", func(h *v1beta1.SSHHost) { h.Status.ClaimRef.UID = "other" })
			},
			"the host was released": func(w *world) {
				w.meanwhile("a", func(h *v1beta1.SSHHost) { h.Status.ClaimRef = nil; h.Status.State = v1beta1.HostPending })
			},
			"the host was deleted": func(w *world) {
				if err := w.client.Delete(ctx, w.stored("a")); err != nil {
					w.t.Fatal(err)
				}
			},
			"the host was made again": func(w *world) {
				if err := w.client.Delete(ctx, w.stored("a")); err != nil {
					w.t.Fatal(err)
				}
				if err := w.client.Create(ctx, newHost("a", inState(v1beta1.HostClaimed))); err != nil {
					w.t.Fatal(err)
				}
			},
		} {
			t.Run(name+" writes nothing when "+loss, func(t *testing.T) {
				w := newWorld(t, newHost("a", inState(v1beta1.HostClaimed)))
				old := w.stored("a")
				meanwhile(w)
				if _, err := write.do(ctx, w.pool, old, claimA); !errors.Is(err, pool.ErrClaimLost) {
					t.Errorf("got %v", err)
				}
				if loss != "the host was deleted" && write.done(w.stored("a")) && loss != "the host was released" {
					t.Errorf("wrote %+v", w.stored("a").Status)
				}
			})
		}
	}
}

func TestWritesOnFreeHostsAreNotRepeated(t *testing.T) {
	ctx := context.Background()
	for name, write := range map[string]struct {
		from v1beta1.HostState
		do   func(*pool.Pool, *v1beta1.SSHHost) (*v1beta1.SSHHost, error)
	}{
		"RecordProbe": {v1beta1.HostPending, func(p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
			return p.RecordProbe(ctx, h, pool.Probe{})
		}},
		"BeginLeaving": {v1beta1.HostPending, func(p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
			return p.BeginLeaving(ctx, h, "")
		}},
		"EndLeaving": {v1beta1.HostLeaving, func(p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
			return p.EndLeaving(ctx, h, pool.Outcome{State: v1beta1.HostAvailable, Reason: "Left"})
		}},
		"SyncMaintenance": {v1beta1.HostMaintenance, func(p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
			return p.SyncMaintenance(ctx, h)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newHost("a", inState(write.from)))
			old := w.stored("a")
			w.meanwhile("a", func(h *v1beta1.SSHHost) { h.Status.LastProbeError = "changed" })
			if _, err := write.do(w.pool, old); !errors.Is(err, pool.ErrConflict) {
				t.Errorf("got %v", err)
			}
			if got := w.stored("a").Status.State; got != write.from {
				t.Errorf("state became %s", got)
			}
		})
	}
}

func TestRecordProbeKeepsWhatItDoesNotKnow(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a", inState(v1beta1.HostPending), func(h *v1beta1.SSHHost) { h.Status.Fence = 3 }))
	facts := pool.Probe{
		Generation: 7, Arch: "arm64", HostKeyFingerprint: "SHA256:x", Fence: 9,
		Capacity:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		Trust:      &v1beta1.HostTrust{RootVersion: 2, AllowlistVersion: 5, ShimVersion: "v1"},
		Conditions: []status.Condition{{Type: v1beta1.ConditionCapacityMatches, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonCapacityDrift}},
	}
	host, err := w.pool.RecordProbe(ctx, w.stored("a"), facts)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Step(time.Minute)
	host, err = w.pool.RecordProbe(ctx, host, pool.Probe{Generation: 8, Reason: v1beta1.ReasonUnreachable, Message: "no route", Fence: 2})
	if err != nil {
		t.Fatal(err)
	}
	got := host.Status
	want := v1beta1.SSHHostStatus{
		State: v1beta1.HostUnhealthy, Fence: 9, ObservedArch: "arm64", HostKeyFingerprint: "SHA256:x",
		ObservedCapacity: facts.Capacity, Trust: facts.Trust, ObservedGeneration: 8, LastProbeError: "Unreachable: no route",
		LastProbeTime: &metav1.Time{Time: start.Add(time.Minute)},
	}
	got.Conditions = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if c := host.StatusConditions().Get(v1beta1.ConditionCapacityMatches); !c.IsFalse() {
		t.Errorf("CapacityMatches is %+v", c)
	}
}

func TestABootstrapTokenIsNotForgottenByBeingOverwritten(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a", inState(v1beta1.HostClaimed)))
	host, err := w.pool.SetBootstrapToken(ctx, w.stored("a"), claimA, "first1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool.SetBootstrapToken(ctx, host, claimA, "second"); !errors.Is(err, pool.ErrTokenRecorded) {
		t.Errorf("overwriting: %v", err)
	}
	if host, err = w.pool.Release(ctx, host, claimA, pool.Outcome{State: v1beta1.HostPending, Reason: "Stale"}); err != nil || host.Status.BootstrapTokenID != "first1" {
		t.Errorf("released: %+v, %v", host, err)
	}
	old := host.DeepCopy()
	w.meanwhile("a", func(h *v1beta1.SSHHost) { h.Status.LastProbeError = "x" })
	for _, step := range []struct{ id, want string }{{"second", "first1"}, {"first1", ""}} {
		if _, err := w.pool.ForgetBootstrapToken(ctx, old, step.id); err != nil {
			t.Fatal(err)
		}
		if got := w.stored("a").Status.BootstrapTokenID; got != step.want {
			t.Errorf("after forgetting %q: %q", step.id, got)
		}
	}
}

func TestWritingNothingNewIsNotAWrite(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a", inState(v1beta1.HostClaimed)))
	host, err := w.pool.RequestLeave(ctx, w.stored("a"), claimA, "Why", "because")
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Step(time.Hour)
	if again, err := w.pool.RequestLeave(ctx, host, claimA, "Why", "because"); err != nil || again.ResourceVersion != host.ResourceVersion {
		t.Errorf("got version %s after %s, %v", again.ResourceVersion, host.ResourceVersion, err)
	}
}

func TestLongMessagesAreCutBetweenCharacters(t *testing.T) {
	w := newWorld(t, newHost("a", inState(v1beta1.HostPending)))
	host, err := w.pool.RecordProbe(context.Background(), w.stored("a"), pool.Probe{Reason: v1beta1.ReasonUnreachable, Message: strings.Repeat("€", 10_000)})
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"condition": host.StatusConditions().Get(v1beta1.ConditionReady).Message, "lastProbeError": host.Status.LastProbeError,
	} {
		if len(text) > 1100 || !strings.HasSuffix(text, "€…") {
			t.Errorf("%s: %d bytes, ends with %q", what, len(text), text[len(text)-6:])
		}
	}
}
