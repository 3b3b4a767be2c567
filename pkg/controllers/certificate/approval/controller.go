// Package approval approves the certificate requests of joining kubelets: one that comes with the bootstrap token of a
// claim and asks for the node of that claim. The cluster's own approver, bound to the group of these tokens, would
// approve any node's name: a host could then act as another one.
package approval

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const (
	// reasonApproved is that of the condition on a request.
	reasonApproved = "KpsshNodeOfClaim"

	nodePrefix = "system:node:"
	nodeGroup  = "system:nodes"

	// settle is how long after a request was made its host may still be unknown here: a token is recorded before it is
	// handed out, but this process may not have read that yet.
	settle = time.Minute
	retry  = 2 * time.Second
)

// Hosts is what this controller needs of the pool.
type Hosts interface {
	List() ([]*v1beta1.SSHHost, error)
}

// Tokens is what this controller needs of bootstrap.
type Tokens interface {
	// Owner is the uid of the NodeClaim that a token was made for, empty when there is no such token of ours.
	Owner(ctx context.Context, id string) (string, error)
}

// Options are what a Controller works with. All are required.
type Options struct {
	Client client.Client
	// Live reads hosts and NodeClaims from the API server.
	Live     client.Reader
	Hosts    Hosts
	Tokens   Tokens
	Recorder events.Recorder
	Clock    clock.PassiveClock
	Workers  int
}

// Controller approves certificate requests.
type Controller struct{ Options }

// NewController returns a Controller.
func NewController(opts Options) *Controller { return &Controller{opts} }

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (reconcile.Result, error) {
	if !concerned(request) {
		return reconcile.Result{}, nil
	}
	id := strings.TrimPrefix(request.Spec.Username, bootstrap.UserPrefix)
	host, err := c.claimedWith(ctx, id)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case host == nil && c.Clock.Since(request.CreationTimestamp.Time) < settle:
		return reconcile.Result{RequeueAfter: retry}, nil
	case host == nil:
		return reconcile.Result{}, nil // the claim is over, and with it what its token was for
	}
	if err := check(request, host.Status.ClaimRef.Name); err != nil {
		c.Recorder.Publish(events.Event{
			InvolvedObject: host, Type: corev1.EventTypeWarning, Reason: v1beta1.EventCertificateRefused,
			Message:      fmt.Sprintf("request %q with this host's bootstrap token is not approved: %v", request.Name, err),
			DedupeValues: []string{string(host.UID), request.Name},
		})
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, c.approve(ctx, request, host)
}

// concerned tells whether a request is by one of our tokens, for what kubelets ask for, and nobody has decided yet.
func concerned(request *certificatesv1.CertificateSigningRequest) bool {
	return request.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName &&
		strings.HasPrefix(request.Spec.Username, bootstrap.UserPrefix) && slices.Contains(request.Spec.Groups, bootstrap.Group) &&
		len(request.Status.Conditions) == 0 && len(request.Status.Certificate) == 0
}

// claimedWith returns the claimed host whose claim the token was made for, read live; nil when there is none, and when
// the host is asked for back or its NodeClaim goes: a certificate outlives both.
func (c *Controller) claimedWith(ctx context.Context, id string) (*v1beta1.SSHHost, error) {
	all, err := c.Hosts.List()
	if err != nil {
		return nil, fmt.Errorf("listing hosts: %w", err)
	}
	at := slices.IndexFunc(all, func(h *v1beta1.SSHHost) bool { return h.Status.BootstrapTokenID == id })
	if at < 0 || id == "" {
		return nil, nil
	}
	host := &v1beta1.SSHHost{}
	if err := c.Live.Get(ctx, client.ObjectKeyFromObject(all[at]), host); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if host.Status.BootstrapTokenID != id {
		return nil, nil
	}
	if wanted, err := c.wanted(ctx, host); err != nil || !wanted {
		return nil, err
	}
	owner, err := c.Tokens.Owner(ctx, id)
	if err != nil {
		return nil, err
	}
	if owner == "" || owner != string(host.Status.ClaimRef.UID) {
		return nil, nil
	}
	return host, nil
}

// wanted tells whether the host is still to become the node of its claim.
func (c *Controller) wanted(ctx context.Context, host *v1beta1.SSHHost) (bool, error) {
	claim := host.Status.ClaimRef
	if claim == nil || host.Status.State != v1beta1.HostClaimed || pool.HasCondition(host, v1beta1.ConditionLeaveRequested) {
		return false, nil
	}
	nodeClaim := &karpenterv1.NodeClaim{}
	if err := c.Live.Get(ctx, types.NamespacedName{Name: claim.Name}, nodeClaim); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return nodeClaim.UID == claim.UID && nodeClaim.DeletionTimestamp.IsZero(), nil
}

// check holds a request to what a kubelet of that node asks for when it joins.
func check(request *certificatesv1.CertificateSigningRequest, node string) error {
	block, rest := pem.Decode(request.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
		return errors.New("it is not one certificate request in PEM")
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	switch {
	case asked.Subject.CommonName != nodePrefix+node:
		return fmt.Errorf("it asks to be %.100q and not %q", asked.Subject.CommonName, nodePrefix+node)
	case !slices.Equal(asked.Subject.Organization, []string{nodeGroup}):
		return fmt.Errorf("it asks to be in %.100q and not in %s alone", asked.Subject.Organization, nodeGroup)
	case len(asked.DNSNames)+len(asked.EmailAddresses)+len(asked.IPAddresses)+len(asked.URIs) > 0:
		return errors.New("it asks for other names beside")
	case !usages(request.Spec.Usages):
		return fmt.Errorf("it asks for usages %.100q", request.Spec.Usages)
	}
	return nil
}

// usages tells whether they are a client's: digital signature and client auth, and for RSA keys key encipherment.
func usages(asked []certificatesv1.KeyUsage) bool {
	required := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	for _, u := range required {
		if !slices.Contains(asked, u) {
			return false
		}
	}
	return !slices.ContainsFunc(asked, func(u certificatesv1.KeyUsage) bool {
		return u != certificatesv1.UsageKeyEncipherment && !slices.Contains(required, u)
	})
}

// approve writes the approval. Somebody else's decision in between stands.
func (c *Controller) approve(ctx context.Context, request *certificatesv1.CertificateSigningRequest, host *v1beta1.SSHHost) error {
	request = request.DeepCopy()
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: reasonApproved,
		Message: fmt.Sprintf("node %s of host %s/%s, whose claim the bootstrap token was made for", host.Status.ClaimRef.Name, host.Namespace, host.Name),
	})
	err := c.Client.SubResource("approval").Update(ctx, request)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change brings us here again
	}
	if err != nil {
		return fmt.Errorf("approving certificate request %q: %w", request.Name, err)
	}
	return nil
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		request, ok := o.(*certificatesv1.CertificateSigningRequest)
		return ok && concerned(request)
	})
	return ctrl.NewControllerManagedBy(m).
		Named("certificate.approval").
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(ours)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Workers}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
