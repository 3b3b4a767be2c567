// Package cluster reads what of a cluster an author or an operator must know: the endpoint and the certificates by
// which nodes know their API server, to pin them, and what the hosts of the pool believe.
package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	infoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
	infoKey  = "kubeconfig"
	maxInfo  = 1 << 20
	timeout  = 30 * time.Second
)

// Identity is what is pinned of a cluster.
type Identity struct {
	// Endpoint is the API server's URL exactly as the controller will hand it to scripts.
	Endpoint string
	// CAPins are "sha256:<hex>" of the subject public key info of every certificate, sorted.
	CAPins []string
}

// Info reads kube-public/cluster-info of the cluster that a kubeconfig names: the same object that
// the controller reads.
func Info(ctx context.Context, kubeconfig, kubeContext string) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	api, err := connect(kubeconfig, kubeContext)
	if err != nil {
		return Identity{}, cli.Hint(err,
			"set KUBECONFIG or --kubeconfig; where the author's machine cannot reach the cluster, use --pin-endpoint and --pin-ca")
	}
	var cm corev1.ConfigMap
	err = api.get(ctx, infoPath, "", maxInfo, &cm)
	if errors.Is(err, errNotFound) {
		return Identity{}, cli.Hint(fmt.Errorf("the cluster at %s has no ConfigMap kube-public/cluster-info", api.base),
			"pin what spec.cluster of the SSHNodeClass says, by signing with its manifest, or use --pin-endpoint and --pin-ca")
	}
	if err != nil {
		return Identity{}, fmt.Errorf("reading cluster-info: %w", err)
	}
	nested, err := clientcmd.Load([]byte(cm.Data[infoKey]))
	if err != nil {
		return Identity{}, fmt.Errorf("reading cluster-info: %w", err)
	}
	entry := nested.Clusters[""]
	if entry == nil {
		if len(nested.Clusters) != 1 {
			return Identity{}, fmt.Errorf("reading cluster-info: it names %d clusters, not one", len(nested.Clusters))
		}
		for _, only := range nested.Clusters {
			entry = only
		}
	}
	pins, err := CAPins(entry.CertificateAuthorityData)
	if err != nil {
		return Identity{}, fmt.Errorf("reading cluster-info: %w", err)
	}
	return Identity{Endpoint: entry.Server, CAPins: pins}, nil
}

// apiServer is the API server that a kubeconfig names.
type apiServer struct {
	client *http.Client
	base   *url.URL
}

func connect(kubeconfig, kubeContext string) (*apiServer, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: kubeContext}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) { // whose own words advise a variable that does not help here
		return nil, errors.New("reading the kubeconfig: none was found, or it names no cluster")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return &apiServer{client: client, base: base}, nil
}

// CAPins are the pins of a PEM bundle: those that hosts compute, so that a bundle that no host would
// accept is found here.
func CAPins(bundle []byte) ([]string, error) {
	if len(bundle) == 0 {
		return nil, errors.New("there is no CA certificate")
	}
	pins, err := signing.SPKIPins(base64.StdEncoding.EncodeToString(bundle))
	if err != nil {
		return nil, fmt.Errorf("reading the CA bundle: %w", err)
	}
	slices.Sort(pins)
	return pins, nil
}
