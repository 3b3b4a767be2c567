package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// onStage measures what takes real hosts. One of two is the pool; the other is enrolled like it and then taken out of
// the pool, for the bench to order by itself.
func (b *bench) onStage(ctx context.Context) (results []Result, err error) {
	s, err := stage.Up(ctx, stage.Options{Repo: b.repo, Hosts: 2, Log: b.detail, NoController: true})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && s.KeepLogs() == nil {
			b.say("the logs of all processes are kept in %s", s.LogDir())
		}
		err = errors.Join(err, s.Close())
	}()
	h, err := newHand(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("taking a host out of the pool: %w", err)
	}
	defer h.close()
	if b.wants("P10") {
		if results, err = b.securityTax(ctx, h); err != nil {
			return results, err
		}
	}
	if b.wants("Q2") {
		r, err := b.warmJoins(ctx, h)
		return append(results, r...), err
	}
	return results, nil
}

// hand is somebody who orders by hand, on a host outside the pool, what the controller orders on those in it: with the
// same documents, dispatch key, profile and class.
type hand struct {
	*stage.Stage
	machine *lab.Host
	host    *v1beta1.SSHHost
	reach   dispatch.Host
	way     *forward
	far     *forward // the same, 50 ms away
	trust   documents
	signer  signing.Signer
	// kept has connections that stay open, as the controller's do.
	kept *remote.Pool
}

func newHand(ctx context.Context, s *stage.Stage) (_ *hand, err error) {
	h := &hand{Stage: s, machine: s.Hosts()[1], host: &v1beta1.SSHHost{}, kept: remote.NewPool(remote.PoolOptions{})}
	if err := h.signScripts(ctx); err != nil { // which applies all manifests again, those of hosts too
		return nil, err
	}
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: stage.PoolNamespace, Name: h.machine.Name}, h.host); err != nil {
		return nil, err
	}
	if err := s.Client.Delete(ctx, h.host.DeepCopy()); err != nil {
		return nil, err
	}
	// What is not sure of the host's key does not get secrets; enrolment put the pin into the Secret.
	if h.reach, err = hostaccess.New(s.Client, stage.PoolNamespace, false).Host(ctx, h.host); err != nil {
		return nil, err
	}
	if h.trust, err = readTrust(ctx, s.Client); err != nil {
		return nil, err
	}
	key := &corev1.Secret{}
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: stage.ControllerNamespace, Name: "kpssh-dispatch-key"}, key); err != nil {
		return nil, err
	}
	if h.signer, err = keys.FromSecret(key.Data); err != nil {
		return nil, err
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		return s.DialContext(ctx, "tcp", h.machine.Address+":22")
	}
	if h.way, err = newForward(0, dial); err != nil {
		return nil, err
	}
	if h.far, err = newForward(farAway, dial); err != nil {
		h.way.close()
		return nil, err
	}
	h.reach.Target.Address, h.reach.Target.Port = h.way.address()
	return h, nil
}

func (h *hand) close() {
	_ = h.kept.Close()
	h.way.close()
	h.far.close()
}

// scripts of the bench's own profile: join is as small as a script can be, install as large as most.
func scripts() v1beta1.Scripts {
	return v1beta1.Scripts{Install: string(noOp(scriptSize)), Join: "true\n", Leave: "true\n"}
}

// signScripts has the author allow the scripts of the bench.
func (h *hand) signScripts(ctx context.Context) error {
	profile := &v1beta1.SSHJoinProfile{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "SSHJoinProfile"},
		ObjectMeta: metav1.ObjectMeta{Name: benchProfile},
		Spec:       v1beta1.SSHJoinProfileSpec{Version: "1", Scripts: scripts()},
	}
	manifest, err := yaml.Marshal(profile)
	if err != nil {
		return err
	}
	file := filepath.Join(h.Dir(), benchProfile+".yaml")
	if err := os.WriteFile(file, manifest, 0o600); err != nil {
		return err
	}
	if _, err := h.CLI(ctx, "profile", "sign", "--dir", h.TrustDir, "--pin-cluster", file); err != nil {
		return err
	}
	return h.ApplyTrust(ctx)
}

// dispatcher orders over the connections of a pool.
func (h *hand) dispatcher(pool *remote.Pool) *dispatch.Dispatcher {
	return dispatch.New(dispatch.Options{Trust: h.trust, Signer: h.signer, Pool: pool, AllowRaw: true})
}

// phases runs phases as the controller does.
func (h *hand) phases(pool *remote.Pool) *membership.Phases {
	return membership.NewPhases(membership.PhasesOptions{
		Dispatcher: h.dispatcher(pool), Access: h, Reader: h.Client, Namespace: stage.PoolNamespace, Clock: clock.RealClock{},
	})
}

// Host implements membership.Access.
func (h *hand) Host(context.Context, *v1beta1.SSHHost) (dispatch.Host, error) { return h.reach, nil }

// subject is what the host is joined for under a NodeClaim that exists nowhere else. Each has a fence of its own.
func (h *hand) subject(ctx context.Context, nodeClaim *karpv1.NodeClaim) (membership.Subject, error) {
	s := membership.Subject{Host: h.host, NodeClaim: nodeClaim, Class: &v1beta1.SSHNodeClass{}, Profile: &v1beta1.SSHJoinProfile{}}
	h.host.Status.Fence++
	if err := h.Client.Get(ctx, client.ObjectKey{Name: "default"}, s.Class); err != nil {
		return s, err
	}
	return s, h.Client.Get(ctx, client.ObjectKey{Name: s.Class.Spec.JoinProfileRef.Name}, s.Profile)
}

// documents are the signed documents of the cluster.
type documents struct {
	roots map[int64][]byte
	list  []byte
}

// Documents implements dispatch.Trust.
func (d documents) Documents() (map[int64][]byte, []byte, error) {
	return maps.Clone(d.roots), slices.Clone(d.list), nil
}

func readTrust(ctx context.Context, reader client.Reader) (documents, error) {
	d := documents{roots: map[int64][]byte{}}
	object := &corev1.ConfigMap{}
	if err := reader.Get(ctx, client.ObjectKey{Namespace: stage.ControllerNamespace, Name: "kpssh-trust"}, object); err != nil {
		return d, err
	}
	for name, text := range object.Data {
		version, ok := strings.CutPrefix(name, "root.")
		n, err := strconv.ParseInt(strings.TrimSuffix(version, ".json"), 10, 64)
		switch {
		case name == "allowlist.json":
			d.list = []byte(text)
		case ok && err == nil:
			d.roots[n] = []byte(text)
		}
	}
	if len(d.roots) == 0 || d.list == nil {
		return d, errors.New("the ConfigMap of the signed documents lacks some")
	}
	return d, nil
}
