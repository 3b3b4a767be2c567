package bootstrap

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	clusterInfoName      = "cluster-info"
	clusterInfoKey       = "kubeconfig"
	maxCertificateBundle = 256 << 10
)

// Errors that a reader of the cluster's endpoint tells apart: both are somebody's configuration,
// and neither is a host's fault.
var (
	// ErrClusterInfoMissing says that there is neither an override nor kube-public/cluster-info.
	ErrClusterInfoMissing = errors.New("no endpoint of the API server")
	// ErrClusterInfoInvalid says that the endpoint or the certificates cannot be used.
	ErrClusterInfoInvalid = errors.New("unusable endpoint of the API server")
)

// Cluster is how a kubelet finds and trusts the API server.
type Cluster struct {
	// Endpoint is an https URL.
	Endpoint string
	// CA is a PEM bundle.
	CA []byte
}

// CABase64 is the form that scripts get.
func (c Cluster) CABase64() string { return base64.StdEncoding.EncodeToString(c.CA) }

// Override is what a node class says about the cluster; empty fields are read from
// kube-public/cluster-info. CABundle is PEM, or base64 of PEM.
type Override struct {
	Endpoint string
	CABundle string
}

// FindCluster returns the cluster's endpoint and certificates.
func FindCluster(ctx context.Context, reader client.Reader, override Override) (Cluster, error) {
	cluster := Cluster{Endpoint: override.Endpoint}
	if override.CABundle != "" {
		bundle, err := decodeBundle(override.CABundle)
		if err == nil {
			err = validateBundle(bundle)
		}
		if err != nil {
			return Cluster{}, fmt.Errorf("cluster.caBundle of the node class: %w", err)
		}
		cluster.CA = bundle
	}
	if cluster.Endpoint == "" || len(cluster.CA) == 0 {
		info, err := readClusterInfo(ctx, reader)
		if err != nil {
			return Cluster{}, err
		}
		if cluster.Endpoint == "" {
			cluster.Endpoint = info.Endpoint
		}
		if len(cluster.CA) == 0 {
			cluster.CA = info.CA
		}
	}
	return cluster, cluster.validate()
}

func readClusterInfo(ctx context.Context, reader client.Reader) (Cluster, error) {
	info := &corev1.ConfigMap{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: metav1.NamespacePublic, Name: clusterInfoName}, info)
	if apierrors.IsNotFound(err) {
		return Cluster{}, fmt.Errorf("%w: ConfigMap %s/%s does not exist and the node class names none",
			ErrClusterInfoMissing, metav1.NamespacePublic, clusterInfoName)
	}
	if err != nil {
		return Cluster{}, fmt.Errorf("reading cluster-info: %w", err)
	}
	config, err := clientcmd.Load([]byte(info.Data[clusterInfoKey]))
	if err != nil {
		// What the parser says may repeat what it read.
		return Cluster{}, fmt.Errorf("%w: key %q of cluster-info is no kubeconfig", ErrClusterInfoInvalid, clusterInfoKey)
	}
	entry := onlyCluster(config)
	if entry == nil {
		return Cluster{}, fmt.Errorf("%w: cluster-info must name one cluster, it names %d", ErrClusterInfoInvalid, len(config.Clusters))
	}
	return Cluster{Endpoint: entry.Server, CA: entry.CertificateAuthorityData}, nil
}

// onlyCluster returns the entry with the empty name that kubeadm writes, or the single one.
func onlyCluster(config *clientcmdapi.Config) *clientcmdapi.Cluster {
	if entry := config.Clusters[""]; entry != nil {
		return entry
	}
	if len(config.Clusters) != 1 {
		return nil
	}
	for _, entry := range config.Clusters {
		return entry
	}
	return nil
}

func (c Cluster) validate() error {
	endpoint, err := url.Parse(c.Endpoint)
	if err != nil || endpoint.Scheme != "https" || endpoint.Host == "" || endpoint.User != nil {
		return fmt.Errorf("%w: endpoint %q is not an https URL", ErrClusterInfoInvalid, c.Endpoint)
	}
	return validateBundle(c.CA)
}

func decodeBundle(text string) ([]byte, error) {
	if len(text) > maxCertificateBundle {
		return nil, fmt.Errorf("%w: certificate bundle is larger than %d bytes", ErrClusterInfoInvalid, maxCertificateBundle)
	}
	if strings.Contains(text, "-----BEGIN") {
		return []byte(text), nil
	}
	bundle, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		return nil, fmt.Errorf("%w: certificate bundle is neither PEM nor base64", ErrClusterInfoInvalid)
	}
	return bundle, nil
}

func validateBundle(bundle []byte) error {
	certificates := 0
	rest := bytes.TrimSpace(bundle)
	for len(rest) > 0 {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			return fmt.Errorf("%w: certificate bundle has text that is not PEM", ErrClusterInfoInvalid)
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("%w: certificate bundle has a %q block", ErrClusterInfoInvalid, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("%w: certificate %d of the bundle: %w", ErrClusterInfoInvalid, certificates+1, err)
		}
		certificates++
		rest = bytes.TrimSpace(rest)
	}
	if certificates == 0 {
		return fmt.Errorf("%w: certificate bundle is empty", ErrClusterInfoInvalid)
	}
	return nil
}
