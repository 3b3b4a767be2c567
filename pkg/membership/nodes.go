package membership

import (
	"context"
	"fmt"
	"net/netip"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// NodeIdentityIndex is the field index that NodesOf looks Nodes up by: a probe of each of thousands of
// hosts must not walk through all Nodes.
const NodeIdentityIndex = "kpssh.identity"

// IndexNodes registers NodeIdentityIndex; call it once per cache, before it starts.
func IndexNodes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &corev1.Node{}, NodeIdentityIndex, NodeIdentities); err != nil {
		return fmt.Errorf("indexing nodes: %w", err)
	}
	return nil
}

// NodeIdentities are the keys under which NodeIdentityIndex finds a Node.
func NodeIdentities(obj client.Object) []string {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	var keys []string
	if node.Spec.ProviderID != "" {
		keys = append(keys, idKey(node.Spec.ProviderID))
	}
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(address.Address); err == nil {
			keys = append(keys, ipKey(ip))
		}
	}
	return keys
}

func idKey(id string) string     { return "id:" + id }
func ipKey(ip netip.Addr) string { return "ip:" + ip.Unmap().String() }

// hostKeys are the identities that a Node of the host can be found by. An empty provider id is none
// (k0smotron#1309, R43).
func hostKeys(host *v1beta1.SSHHost) []string {
	keys := []string{idKey(host.StaticProviderID())}
	if id := host.Status.ProviderID; id != "" && id != host.StaticProviderID() {
		keys = append(keys, idKey(id))
	}
	if ip, err := netip.ParseAddr(host.AdvertisedAddress()); err == nil {
		keys = append(keys, ipKey(ip))
	}
	return keys
}

// NodesOf returns the Nodes that the host backs, by provider id or by InternalIP, sorted by name. A host
// that is known by a DNS name only is found by provider id only.
func NodesOf(ctx context.Context, reader client.Reader, host *v1beta1.SSHHost) ([]corev1.Node, error) {
	found := map[string]corev1.Node{}
	for _, key := range hostKeys(host) {
		list := &corev1.NodeList{}
		if err := reader.List(ctx, list, client.MatchingFields{NodeIdentityIndex: key}); err != nil {
			return nil, fmt.Errorf("listing nodes of host %q: %w", host.Name, err)
		}
		for i := range list.Items {
			found[list.Items[i].Name] = list.Items[i]
		}
	}
	nodes := make([]corev1.Node, 0, len(found))
	for _, node := range found {
		nodes = append(nodes, node)
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Name < nodes[j].Name })
	return nodes, nil
}

// NodesWithID returns the Nodes that have the provider id. There should be one; but a kubelet states its own.
func NodesWithID(ctx context.Context, reader client.Reader, id string) ([]corev1.Node, error) {
	list := &corev1.NodeList{}
	if err := reader.List(ctx, list, client.MatchingFields{NodeIdentityIndex: idKey(id)}); err != nil {
		return nil, fmt.Errorf("listing nodes with provider id %q: %w", id, err)
	}
	return list.Items, nil
}

// Backs says whether the host backs the Node, by the rule of NodesOf.
func Backs(host *v1beta1.SSHHost, node *corev1.Node) bool {
	identities := map[string]bool{}
	for _, key := range NodeIdentities(node) {
		identities[key] = true
	}
	for _, key := range hostKeys(host) {
		if identities[key] {
			return true
		}
	}
	return false
}

// HasAddress says whether the Node's InternalIP is the address that the host advertises. known is false
// when either side has no such address, so that nothing can be said.
func HasAddress(host *v1beta1.SSHHost, node *corev1.Node) (has, known bool) {
	want, err := netip.ParseAddr(host.AdvertisedAddress())
	if err != nil {
		return false, false
	}
	for _, key := range NodeIdentities(node) {
		if key == ipKey(want) {
			return true, true
		}
		known = known || strings.HasPrefix(key, "ip:")
	}
	return false, known
}

// Ready says whether the Node's kubelet reports it ready.
func Ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// DeleteNodes deletes the Nodes that nobody has begun to delete, exactly as they were read. Stop the
// kubelet first, or it registers again.
func DeleteNodes(ctx context.Context, writer client.Writer, nodes []corev1.Node) error {
	for i := range nodes {
		node := &nodes[i]
		if !node.DeletionTimestamp.IsZero() {
			continue
		}
		err := writer.Delete(ctx, node, client.Preconditions{UID: &node.UID})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting node %q: %w", node.Name, err)
		}
	}
	return nil
}
