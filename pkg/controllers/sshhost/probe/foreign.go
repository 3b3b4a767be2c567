package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// foreignMember says why a host is a member of something else than this cluster, or what a member is made by, so that
// nothing may run on it, not even leave; empty when it is neither. A host without a claim that has a kubelet's credentials
// goes by their API server, unless a Node here shows that they work.
func (c *Controller) foreignMember(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, f finding) (string, error) {
	if probe.Hello != nil {
		if _, ours := c.Cluster.Owner(probe.Hello.Claim.UID); !ours {
			return fmt.Sprintf("the host holds claim %q of another cluster: have that cluster give it back, or run leave for it, before it is used here",
				probe.Hello.Claim.UID), nil
		}
	}
	if probe.Facts.ControlPlane {
		return "the host runs a control plane, or has the credentials of who runs one: delete its SSHHost, or take /etc/kubernetes/admin.conf " +
			"and the manifests of the control plane away if they are left over", nil
	}
	// What is being left was found to be ours before leave took the claim away. A debt alone says nothing of a host that
	// keeps its claim itself: somebody may have made it a member elsewhere while it was out of reach.
	if f.claim != "" || host.Raw() && pool.Owed(host) || host.Status.State == v1beta1.HostLeaving || slices.ContainsFunc(f.nodes, func(n corev1.Node) bool { return membership.Ready(&n) }) {
		return "", nil
	}
	known, err := c.endpoints(ctx, probe.Facts.Servers)
	if err != nil || len(known) == 0 {
		return "", err
	}
	for _, server := range probe.Facts.Servers {
		if !slices.Contains(known, server) && !loopback(server) {
			return fmt.Sprintf("the host has a kubelet's credentials for the API server %s, and this cluster's is %s: take it out of that cluster, "+
				"or remove the credentials if they are left over", server, strings.Join(known, ", ")), nil
		}
	}
	return "", nil
}

// foreigner is the finding about such a host.
func foreigner(f finding, why string) finding {
	f.verdict, f.reason, f.message, f.claim = foreign, v1beta1.ReasonForeignMember, why, ""
	return f
}

// parkedEvent is the event about a host that is left alone for a reason.
func parkedEvent(reason string) string {
	switch reason {
	case v1beta1.ReasonForeignMember:
		return v1beta1.EventForeignMember
	case v1beta1.ReasonNotClean:
		return v1beta1.EventNotClean
	case v1beta1.ReasonIdentityChanged:
		return v1beta1.EventIdentityChanged
	}
	return v1beta1.EventForeignKubelet
}

// endpoints are the API servers, as HOST:PORT, that nodes of this cluster are given; none when there is nothing to
// compare with them.
func (c *Controller) endpoints(ctx context.Context, servers []string) ([]string, error) {
	if len(servers) == 0 {
		return nil, nil
	}
	list := &v1beta1.SSHNodeClassList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing node classes: %w", err)
	}
	var known []string
	for i := range list.Items {
		if cluster := list.Items[i].Spec.Cluster; cluster != nil {
			known = appendEndpoint(known, cluster.Endpoint)
		}
	}
	cluster, err := bootstrap.FindCluster(ctx, c.Live, bootstrap.Override{})
	if err != nil && !errors.Is(err, bootstrap.ErrClusterInfoMissing) && !errors.Is(err, bootstrap.ErrClusterInfoInvalid) {
		return nil, err
	}
	return appendEndpoint(known, cluster.Endpoint), nil
}

func appendEndpoint(known []string, endpoint string) []string {
	u, err := url.Parse(strings.ToLower(endpoint))
	if err != nil || u.Host == "" {
		return known
	}
	server := u.Host
	if u.Port() == "" {
		server += ":443"
	}
	if slices.Contains(known, server) {
		return known
	}
	return append(known, server)
}

// loopback says whether a server is a proxy on the host itself, as of an HA set-up, which says nothing about the cluster.
func loopback(server string) bool {
	host, _, err := net.SplitHostPort(server)
	ip, parseErr := netip.ParseAddr(host)
	return err != nil || host == "localhost" || parseErr == nil && ip.IsLoopback()
}
