package membership

import (
	"context"
	"fmt"
	"sort"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// Scripts finds the profile, and the vars that its scripts are rendered with, by which a host is left. It
// is always the profile as it is now, not as it was at the join: an author who mends leave mends it for
// the nodes that are there (k0smotron#1596, R58).
type Scripts struct{ reader client.Reader }

// NewScripts returns Scripts that read node classes and profiles with reader, which may be a cache.
func NewScripts(reader client.Reader) *Scripts { return &Scripts{reader: reader} }

// ForClass returns what a NodeClaim of the class is left with. A missing object is a *Failure.
func (s *Scripts) ForClass(ctx context.Context, name string) (*v1beta1.SSHJoinProfile, map[string]string, error) {
	class := &v1beta1.SSHNodeClass{}
	if err := s.reader.Get(ctx, types.NamespacedName{Name: name}, class); err != nil {
		return nil, nil, notThere("SSHNodeClass", name, err)
	}
	prof, err := s.profile(ctx, class.Spec.JoinProfileRef.Name)
	return prof, class.Spec.Vars, err
}

// ForHost returns what a host is left with that no NodeClaim names: the profile that it carries the
// marker of, else that of a class that selects it. Of several classes the first by name is taken, one
// with the marker's profile before others.
func (s *Scripts) ForHost(ctx context.Context, host *v1beta1.SSHHost) (*v1beta1.SSHJoinProfile, map[string]string, error) {
	list := &v1beta1.SSHNodeClassList{}
	if err := s.reader.List(ctx, list); err != nil {
		return nil, nil, fmt.Errorf("listing node classes: %w", err)
	}
	installed, _, _ := profile.ParseMarker(host.Status.InstalledProfile)
	classes := list.Items
	sort.Slice(classes, func(i, j int) bool {
		a, b := classes[i].Spec.JoinProfileRef.Name == installed, classes[j].Spec.JoinProfileRef.Name == installed
		if a != b {
			return a
		}
		return classes[i].Name < classes[j].Name
	})
	for i := range classes {
		if !classes[i].Selects(host) {
			continue
		}
		if name := classes[i].Spec.JoinProfileRef.Name; installed == "" || name == installed {
			prof, err := s.profile(ctx, name)
			return prof, classes[i].Spec.Vars, err
		}
	}
	if installed == "" {
		return nil, nil, misconfigured(v1beta1.ReasonProfileNotFound, "no SSHNodeClass selects host %q, so that there is no script to leave with", host.Name)
	}
	prof, err := s.profile(ctx, installed)
	return prof, nil, err
}

func (s *Scripts) profile(ctx context.Context, name string) (*v1beta1.SSHJoinProfile, error) {
	prof := &v1beta1.SSHJoinProfile{}
	if err := s.reader.Get(ctx, types.NamespacedName{Name: name}, prof); err != nil {
		return nil, notThere("SSHJoinProfile", name, err)
	}
	return prof, nil
}

func notThere(kind, name string, err error) error {
	if apierrors.IsNotFound(err) {
		return misconfigured(v1beta1.ReasonProfileNotFound, "%s %q does not exist", kind, name)
	}
	return fmt.Errorf("reading %s %q: %w", kind, name, err)
}
