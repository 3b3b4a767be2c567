package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const (
	// joinPairs is small, because a pair takes half a minute.
	joinPairs = 6
	// batchWindow is for how long core waits for more pods, which the figure leaves out.
	batchWindow = time.Second
	// joinDeadline bounds one way of a join.
	joinDeadline = 3 * time.Minute
	// lookInterval is how exact times are.
	lookInterval = 20 * time.Millisecond
)

func authorizedKey(signer ssh.Signer) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}

// warmJoins measures from a pending pod to its Node's being Ready on a host that was joined before, and the same join
// ordered by hand on the host outside the pool.
func (b *bench) warmJoins(ctx context.Context, h *hand) ([]Result, error) {
	w := &warm{hand: h, tokens: bootstrap.NewTokens(h.Client, h.Client, clock.RealClock{})}
	if err := w.prepare(ctx); err != nil {
		return nil, fmt.Errorf("joining both hosts for the first time: %w", err)
	}
	b.say("  both hosts are warm")
	var s sides
	for i := range joinPairs {
		var took [2]time.Duration
		steps := []func(context.Context) (time.Duration, error){w.throughProvider, w.byHand}
		for j := range steps {
			if i%2 == 1 {
				j = 1 - j
			}
			var err error
			if took[j], err = steps[j](ctx); err != nil {
				return nil, err
			}
		}
		s.add(took[0]-batchWindow, took[1])
		b.say("  pair %d of %d: %.2f s through the provider, %.2f s by hand", i+1, joinPairs, took[0].Seconds(), took[1].Seconds())
	}
	g := goal{figure: "Q2", what: "warm join, pod pending to Node Ready less 1 s of batching / by hand", most: 1.15, quantile: 0.5, unit: "s"}
	return []Result{g.judge(&s)}, nil
}

type warm struct {
	*hand
	tokens *bootstrap.Tokens
	// model is a NodeClaim as core made it, for the parameters of the join by hand.
	model *karpv1.NodeClaim
	round int
}

// prepare joins each host once, which installs it.
func (w *warm) prepare(ctx context.Context) error {
	if err := w.StartController(ctx); err != nil {
		return err
	}
	if err := w.WaitAvailable(ctx); err != nil {
		return err
	}
	if err := w.ApplyExamples(ctx, "nodepool.yaml"); err != nil {
		return err
	}
	if _, err := w.throughProvider(ctx); err != nil {
		return err
	}
	s, err := w.subject(ctx, w.nodeClaim())
	if err != nil {
		return err
	}
	if err := w.phases(w.kept).Install(ctx, s); err != nil {
		return err
	}
	if err := w.leave(ctx, s); err != nil {
		return err
	}
	_, err = w.byHand(ctx)
	return err
}

// ready waits until the cluster has a Ready node and tells how long that took.
func (w *warm) ready(ctx context.Context, began time.Time) (time.Duration, error) {
	err := w.until(ctx, "a Ready node", func(ctx context.Context) error {
		nodes, err := w.Nodes(ctx)
		if err != nil {
			return err
		}
		for i := range nodes {
			if membership.Ready(&nodes[i]) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	return time.Since(began), err
}

// until is the stage's Until with closer looks.
func (w *warm) until(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, joinDeadline)
	defer cancel()
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; last: %v", what, ctx.Err(), err)
		case <-w.Controller().Done():
			return fmt.Errorf("waiting for %s: the controller ended; its log is %s", what, w.Controller().LogPath)
		case <-ticker.C:
		}
	}
}

// throughProvider makes a pod that nothing has room for and waits for its Node; then it takes both away.
func (w *warm) throughProvider(ctx context.Context) (time.Duration, error) {
	w.round++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("bench-%d", w.round)},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{karpv1.NodePoolLabelKey: "pool"},
			Containers:   []corev1.Container{{Name: "idle", Image: lab.SandboxImage, ImagePullPolicy: corev1.PullNever}},
		},
	}
	began := time.Now()
	if err := w.Client.Create(ctx, pod); err != nil {
		return 0, err
	}
	took, err := w.ready(ctx, began)
	if err != nil {
		return 0, err
	}
	claims, err := w.NodeClaims(ctx)
	if err != nil {
		return 0, err
	}
	if len(claims) != 1 {
		return 0, fmt.Errorf("%d NodeClaims for one pod", len(claims))
	}
	w.model = &claims[0]
	// Only a host in use goes back as it came.
	if err := w.until(ctx, "the host to be in use", w.inState(v1beta1.HostInUse)); err != nil {
		return 0, err
	}
	if err := w.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		return 0, err
	}
	if err := w.Client.Delete(ctx, &claims[0]); err != nil {
		return 0, err
	}
	return took, w.until(ctx, "the host to go back", func(ctx context.Context) error {
		claims, err := w.NodeClaims(ctx)
		if err != nil {
			return err
		}
		if len(claims) > 0 {
			return errors.New("its NodeClaim is there")
		}
		return w.inState(v1beta1.HostAvailable)(ctx)
	})
}

func (w *warm) inState(state v1beta1.HostState) func(context.Context) error {
	return func(ctx context.Context) error {
		hosts, err := w.SSHHosts(ctx)
		if err != nil {
			return err
		}
		for _, host := range hosts {
			if host.Status.State != state {
				return fmt.Errorf("host %q is %s: %s", host.Name, host.Status.State, host.Status.LastProbeError)
			}
		}
		return nil
	}
}

// nodeClaim is one like core's, of another name.
func (w *warm) nodeClaim() *karpv1.NodeClaim {
	w.round++
	n := w.model.DeepCopy()
	n.Name, n.UID = fmt.Sprintf("by-hand-%d", w.round), uuid.NewUUID()
	return n
}

// byHand orders the join at once and waits for the Node; then it orders the leave.
func (w *warm) byHand(ctx context.Context) (time.Duration, error) {
	s, err := w.subject(ctx, w.nodeClaim())
	if err != nil {
		return 0, err
	}
	id := bootstrap.NewTokenID()
	token, err := w.tokens.Ensure(ctx, id, bootstrap.Owner{Name: s.NodeClaim.Name, UID: string(s.NodeClaim.UID)}, 0)
	if err != nil {
		return 0, err
	}
	phases := w.phases(w.kept)
	began := time.Now()
	joined := make(chan error, 1)
	go func() { joined <- phases.Join(ctx, s, token) }()
	err = w.approve(ctx, id)
	took, lost := w.ready(ctx, began)
	if err = errors.Join(err, lost, <-joined); err != nil {
		return 0, err
	}
	if err := w.leave(ctx, s); err != nil {
		return 0, err
	}
	node := &corev1.Node{}
	node.Name = s.NodeClaim.Name
	return took, errors.Join(w.Client.Delete(ctx, node), w.tokens.Delete(ctx, id))
}

// approve approves what the kubelet with that token asks for. The controller would not: no host is claimed with it.
func (w *warm) approve(ctx context.Context, tokenID string) error {
	return w.until(ctx, "the kubelet's request for a certificate", func(ctx context.Context) error {
		var requests certificatesv1.CertificateSigningRequestList
		if err := w.Client.List(ctx, &requests); err != nil {
			return err
		}
		for i := range requests.Items {
			request := &requests.Items[i]
			if request.Spec.Username != bootstrap.UserPrefix+tokenID {
				continue
			}
			request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByHand",
			})
			return w.Client.SubResource("approval").Update(ctx, request)
		}
		return fmt.Errorf("%d requests, none of them with token %s", len(requests.Items), tokenID)
	})
}

func (w *warm) leave(ctx context.Context, s membership.Subject) error {
	return w.phases(w.kept).Leave(ctx, s.Host, s.Profile, s.Class.Spec.Vars, s.NodeClaim.UID)
}
