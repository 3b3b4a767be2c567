package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/window"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// problem is what stands in the way of using a class.
type problem struct{ reason, message string }

func found(reason, format string, args ...any) *problem {
	return &problem{reason: reason, message: fmt.Sprintf(format, args...)}
}

// view is what the checks of one class share.
type view struct {
	class   *v1beta1.SSHNodeClass
	profile *v1beta1.SSHJoinProfile
	scripts map[profile.Phase][]byte
	hosts   []*v1beta1.SSHHost
	now     time.Time
	// recheck is when something that is good now will not be any more; zero when that is not known.
	recheck time.Time
}

// check returns the first problem of a class; nil when it can be used.
func (c *Controller) check(ctx context.Context, v *view) (*problem, error) {
	for _, step := range []func(context.Context, *view) (*problem, error){
		c.checkProfile, c.checkSelectors, c.checkJoinSecret, c.checkVars, c.checkTrust, c.checkEnvironment, c.checkSSHKeys, c.checkWindows,
	} {
		if p, err := step(ctx, v); p != nil || err != nil {
			return p, err
		}
	}
	if len(v.hosts) == 0 {
		return found(v1beta1.ReasonNoHosts, "no SSHHost in namespace %s matches hostSelector: \"kpssh host enroll\" makes one", c.Namespace), nil
	}
	return nil, nil
}

func (c *Controller) checkProfile(ctx context.Context, v *view) (*problem, error) {
	name := v.class.Spec.JoinProfileRef.Name
	prof := &v1beta1.SSHJoinProfile{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: name}, prof); err != nil {
		if apierrors.IsNotFound(err) {
			return found(v1beta1.ReasonProfileNotFound, "SSHJoinProfile %q does not exist: create it, or name another in joinProfileRef", name), nil
		}
		return nil, fmt.Errorf("reading join profile %q: %w", name, err)
	}
	scripts, err := profile.RenderAll(map[profile.Phase]string{
		profile.Install: prof.Spec.Scripts.Install, profile.Join: prof.Spec.Scripts.Join,
		profile.Leave: prof.Spec.Scripts.Leave, profile.Uninstall: prof.Spec.Scripts.Uninstall,
	}, profile.Values{Vars: v.class.Spec.Vars})
	if err != nil {
		return found(v1beta1.ReasonProfileInvalid, "profile %q: %v", name, err), nil
	}
	delete(scripts, profile.Uninstall) // never run by us, so that it may be unsigned
	v.profile, v.scripts = prof, scripts
	return nil, nil
}

func (c *Controller) checkSelectors(_ context.Context, v *view) (*problem, error) {
	selector, err := metav1.LabelSelectorAsSelector(&v.class.Spec.HostSelector)
	if err != nil {
		return found(v1beta1.ReasonSelectorError, "hostSelector: %v", err), nil
	}
	for _, gate := range v.class.Spec.StartupTaintGates {
		if ready := gate.RemoveWhen.PodsReady; ready != nil {
			if _, err := metav1.LabelSelectorAsSelector(&ready.Selector); err != nil {
				return found(v1beta1.ReasonSelectorError, "startupTaintGates, taint %q: %v", gate.TaintKey, err), nil
			}
		}
	}
	hosts, err := c.Hosts.List()
	if err != nil {
		return nil, fmt.Errorf("listing hosts: %w", err)
	}
	exists := map[string]bool{}
	for _, host := range hosts {
		exists[host.Name] = true
		if selector.Matches(labels.Set(host.Labels)) {
			v.hosts = append(v.hosts, host)
		}
	}
	c.Logins.Keep(func(host string) bool { return exists[host] })
	return nil, nil
}

func (c *Controller) checkJoinSecret(ctx context.Context, v *view) (*problem, error) {
	if v.class.Spec.JoinSecretRef == nil {
		return nil, nil
	}
	name := v.class.Spec.JoinSecretRef.Name
	secret, err := c.secret(ctx, name)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		return found(v1beta1.ReasonJoinSecretNotFound, "Secret %s/%s does not exist: create it, or name another in joinSecretRef", c.Namespace, name), nil
	}
	if err := profile.CheckSecrets(secret.Data); err != nil {
		return found(v1beta1.ReasonJoinSecretInvalid, "Secret %s/%s: %v", c.Namespace, name, err), nil
	}
	return nil, nil
}

func (c *Controller) checkVars(_ context.Context, v *view) (*problem, error) {
	if err := profile.CheckVars(v.class.Spec.Vars); err != nil {
		return found(v1beta1.ReasonVarsInvalid, "vars: %v", err), nil
	}
	return nil, nil
}

// raw says whether none of the class's hosts has the shim.
func (v *view) raw() bool {
	return len(v.hosts) > 0 && !slices.ContainsFunc(v.hosts, func(h *v1beta1.SSHHost) bool { return !h.Raw() })
}

// checkEnvironment makes the variables of a node as there might be one, and holds them against what the
// author allows: a var that is not declared, or an endpoint that is not the pinned one, would be refused
// by every host.
func (c *Controller) checkEnvironment(ctx context.Context, v *view) (*problem, error) {
	sample := membership.Subject{
		Host: &v1beta1.SSHHost{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "sample"},
			Spec:       v1beta1.SSHHostSpec{Address: "192.0.2.1"},
		},
		NodeClaim: &karpenterv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "sample", Labels: map[string]string{karpenterv1.NodePoolLabelKey: "sample"}}},
		Class:     v.class,
		Profile:   v.profile,
	}
	for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseJoin} {
		params, secrets, err := c.Environment.Environment(ctx, sample, phase, "abcdef.0123456789abcdef")
		var failure *membership.Failure
		if errors.As(err, &failure) && failure.Kind == membership.Configuration {
			return found(failure.Reason, "%s", failure.Detail), nil
		}
		if err != nil {
			return nil, err
		}
		if v.raw() {
			continue
		}
		if p := c.checkParameters(v, phase, params, slices.Collect(maps.Keys(secrets))); p != nil {
			return p, nil
		}
	}
	return nil, nil
}

// checkWindows keeps the class from claiming while one of its maintenance windows is open, which is no fault, or cannot be
// read: see pool.ParkingOf.
func (c *Controller) checkWindows(_ context.Context, v *view) (*problem, error) {
	status, err := window.At(v.class.Spec.MaintenanceWindows, c.Clock.Now())
	switch {
	case err != nil:
		return found(v1beta1.ReasonMaintenanceWindowInvalid, "nothing is claimed until that is put right in maintenanceWindows: %v", err), nil
	case status.Open:
		return found(v1beta1.ReasonMaintenanceWindow, "nothing is claimed: %s", status.Message), nil
	}
	return nil, nil
}

func (c *Controller) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := c.Live.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s/%s: %w", c.Namespace, name, err)
	}
	return secret, nil
}
