//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// TestEveryKeyIsRotatedUnderAJoinedNode replaces dispatch, author and root key one after the other with the CLI, while
// one host serves a pod, another joins and leaves, and a third is switched off: no join fails, the pod's node is not
// touched, and the third is as the others again when it is switched on.
func TestEveryKeyIsRotatedUnderAJoinedNode(t *testing.T) {
	settled(t)
	began := time.Now()
	extraHost(t)
	steady, busy := shipped(t, "steady"), shipped(t, "busy")
	for _, p := range []*pool{steady, busy} {
		p.sign(t)
		p.apply(t)
		p.ready(t)
	}
	steady.scale(t, 1)
	claim, serving := steady.running(t)
	node, pod := nodeNamed(t, claim), steady.pod(t)
	off := otherThan(t, serving)
	machine(t, off).PowerCut()
	until(t, "the host that is off to be Unhealthy", hostState(off, v1beta1.HostUnhealthy))
	t.Logf("%s serves, %s is off after %s", serving, off, time.Since(began).Round(time.Second))

	rotated := make(chan error, 1)
	go func() { rotated <- rotateAll(within(t), off) }()
	rounds := 0
	for rotating := true; rotating; rounds++ {
		busy.scale(t, 1)
		_, host := busy.running(t)
		if host == off || host == serving {
			t.Fatalf("a pod runs on host %q", host)
		}
		busy.giveUp(t)
		until(t, "the busy host to be free again", hostState(host, v1beta1.HostAvailable))
		select {
		case err := <-rotated:
			must(t, err)
			rotating = false
		default:
		}
	}
	t.Logf("%d joins and leaves during three rotations, done after %s", rounds, time.Since(began).Round(time.Second))
	if joins := joinFailures(t, began); len(joins) > 0 {
		t.Errorf("joins failed: %v", joins)
	}
	if now := nodeNamed(t, claim); now.UID != node.UID || !membership.Ready(now) {
		t.Errorf("node %q is another one, or not Ready", claim)
	}
	if now := steady.pod(t); now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("the pod did not stay as it was")
	}
	until(t, "the host in use to have all documents", newest(serving))
	if err := newest(off)(within(t)); err == nil {
		t.Error("the host that is off is said to have all documents")
	}

	must(t, machine(t, off).Start(within(t)))
	until(t, "the host that was off to catch up", newest(off))
	until(t, "the host that was off to be Available", hostState(off, v1beta1.HostAvailable))
	if _, err := on.CLI(within(t), "trust", "status"); err != nil {
		t.Errorf("something still waits: %v", err)
	}
	park(t, otherThan(t, serving, off))
	busy.scale(t, 1)
	if _, host := busy.running(t); host != off {
		t.Errorf("the pod runs on %q", host)
	}
	busy.giveUp(t)
	steady.giveUp(t)
	for _, host := range []string{off, serving} {
		until(t, "host "+host+" to be free", hostState(host, v1beta1.HostAvailable))
	}
	t.Logf("all of it took %s", time.Since(began).Round(time.Second))
}

// rotateAll rotates the three roles as an operator does. The host that is off is not waited for.
func rotateAll(ctx context.Context, off string) error {
	for _, role := range []string{"dispatch", "author"} {
		for finished := false; !finished; {
			out, err := on.CLI(ctx, "keys", "rotate", role, "--no-passphrase", "--without", off, "-o", "json")
			if err != nil {
				return fmt.Errorf("rotating the %s key: %w", role, err)
			}
			var result struct{ Finished bool }
			if err := json.Unmarshal([]byte(out), &result); err != nil {
				return err
			}
			if err := on.ApplyTrust(ctx); err != nil {
				return err
			}
			finished = result.Finished
		}
	}
	old := filepath.Join(on.TrustDir, "public", "root-1.pub")
	if _, err := on.CLI(ctx, "root", "rotate", "--old", old, "--no-passphrase"); err != nil {
		return fmt.Errorf("rotating the root key: %w", err)
	}
	return on.ApplyTrust(ctx)
}

// extraHost adds a host to the stage, which stays.
func extraHost(t *testing.T) {
	t.Helper()
	const name = "host-c"
	if slices.ContainsFunc(on.Hosts(), func(h *lab.Host) bool { return h.Name == name }) {
		return
	}
	h, err := on.AddHost(within(t), lab.HostOptions{Name: name})
	must(t, err)
	must(t, on.Enroll(within(t), h))
	settled(t)
}

func otherThan(t *testing.T, names ...string) string {
	t.Helper()
	for _, h := range on.Hosts() {
		if !slices.Contains(names, h.Name) {
			return h.Name
		}
	}
	t.Fatal("there is no other host")
	return ""
}

func sshHost(ctx context.Context, name string) (*v1beta1.SSHHost, error) {
	h := &v1beta1.SSHHost{}
	return h, on.Client.Get(ctx, client.ObjectKey{Namespace: stage.PoolNamespace, Name: name}, h)
}

func hostState(name string, want v1beta1.HostState) moment {
	return func(ctx context.Context) error {
		h, err := sshHost(ctx, name)
		if err == nil && h.Status.State != want {
			err = fmt.Errorf("it is %s: %s", h.Status.State, h.Status.LastProbeError)
		}
		return err
	}
}

// newest says whether a host has the newest documents of the trust folder, by its own word.
func newest(name string) moment {
	return func(ctx context.Context) error {
		out, err := on.CLI(ctx, "root", "show", "-o", "json")
		if err != nil {
			return err
		}
		var root struct{ Version int64 }
		if err := json.Unmarshal([]byte(out), &root); err != nil {
			return err
		}
		h, err := sshHost(ctx, name)
		if err != nil {
			return err
		}
		if trust := h.Status.Trust; trust == nil || trust.RootVersion != root.Version {
			return fmt.Errorf("it has %+v, the newest root is %d", trust, root.Version)
		}
		return nil
	}
}

func nodeNamed(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	must(t, on.Client.Get(within(t), client.ObjectKey{Name: name}, node))
	return node
}

func (p *pool) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	must(t, on.Client.List(within(t), &pods, client.InNamespace("default"), client.MatchingLabels{"app": p.name}))
	if len(pods.Items) != 1 || len(pods.Items[0].Status.ContainerStatuses) != 1 {
		t.Fatalf("%d pods", len(pods.Items))
	}
	return &pods.Items[0]
}

// joinFailures are the JoinFailed events since a time.
func joinFailures(t *testing.T, since time.Time) []string {
	t.Helper()
	var events corev1.EventList
	must(t, on.Client.List(within(t), &events))
	var failed []string
	for _, e := range events.Items {
		if e.Reason == "JoinFailed" && !e.LastTimestamp.Time.Before(since.Truncate(time.Second)) {
			failed = append(failed, e.Message)
		}
	}
	return failed
}

// park keeps a host from being claimed until the test ends.
func park(t *testing.T, name string) {
	t.Helper()
	annotate := func(ctx context.Context, value string) error {
		_, err := on.Kubectl(ctx, "-n", stage.PoolNamespace, "annotate", "sshhost", name, apis.AnnotationMaintenance+value)
		return err
	}
	must(t, annotate(within(t), "="))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := annotate(ctx, "-"); err != nil {
			t.Error(err)
		}
		settled(t)
	})
	until(t, "the host to be parked", hostState(name, v1beta1.HostMaintenance))
}
