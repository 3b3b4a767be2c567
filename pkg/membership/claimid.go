package membership

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cluster is the uid of the namespace kube-system, which tells one cluster from every other and outlives a restore.
type Cluster types.UID

// ReadCluster reads it from the API server.
func ReadCluster(ctx context.Context, reader client.Reader) (Cluster, error) {
	namespace := &corev1.Namespace{}
	if err := reader.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, namespace); err != nil {
		return "", fmt.Errorf("reading namespace %s, whose uid marks the hosts of this cluster: %w", metav1.NamespaceSystem, err)
	}
	if namespace.UID == "" {
		return "", errors.New("namespace " + metav1.NamespaceSystem + " has no uid")
	}
	return Cluster(namespace.UID), nil
}

// claimSeparator stands between the two uids of a claim. A uid has none.
const claimSeparator = "."

// Claim is what orders for a NodeClaim say, and hosts keep, as their claim: the cluster and the NodeClaim's uid. It is
// empty for the empty uid, which is nobody's.
func (c Cluster) Claim(uid types.UID) string {
	if c == "" || uid == "" {
		return string(uid)
	}
	return string(c) + claimSeparator + string(uid)
}

// Owner is the uid of the NodeClaim in a claim; ours is false for a claim of another cluster, which has none that means
// anything here. A claim without a cluster was made by a controller from before claims named one, and is ours.
func (c Cluster) Owner(claim string) (uid types.UID, ours bool) {
	cluster, uidOf, found := strings.Cut(claim, claimSeparator)
	switch {
	case !found:
		return types.UID(claim), true
	case cluster != string(c):
		return "", false
	default:
		return types.UID(uidOf), true
	}
}

// Marks says whether a claim names this cluster. Owner takes more for ours: claims that name none.
func (c Cluster) Marks(claim string) bool {
	return c != "" && strings.HasPrefix(claim, string(c)+claimSeparator)
}
