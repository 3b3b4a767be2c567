package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// nodeClaims is where the NodeClaims of karpenter are; its types are more than a list of names is worth.
const nodeClaims = "/apis/karpenter.sh/v1/nodeclaims"

// Hosts are the SSHHosts of a pool, to be looked at and annotated.
type Hosts struct {
	api       *apiServer
	namespace string
}

// OpenHosts finds the API server of the pool. It is not spoken to yet.
func OpenHosts(a Access) (*Hosts, error) {
	api, err := connect(a.Kubeconfig, a.Context)
	if err != nil {
		return nil, cli.Hint(err, "set KUBECONFIG or --kubeconfig")
	}
	return &Hosts{api: api, namespace: a.PoolNamespace}, nil
}

func (h *Hosts) path() string {
	return "/apis/" + apis.Group + "/v1beta1/namespaces/" + h.namespace + "/sshhosts"
}

// List reads all hosts.
func (h *Hosts) List(ctx context.Context) ([]v1beta1.SSHHost, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var hosts v1beta1.SSHHostList
	err := h.api.get(ctx, h.path(), "", maxList, &hosts)
	if errors.Is(err, errNotFound) {
		return nil, cli.Hint(errors.New("the cluster knows no SSHHosts"), "is it the right one? --context and --kubeconfig choose another")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the SSHHosts of namespace %q: %w", h.namespace, err)
	}
	return hosts.Items, nil
}

// Get reads a host.
func (h *Hosts) Get(ctx context.Context, name string) (*v1beta1.SSHHost, error) {
	host := &v1beta1.SSHHost{}
	if err := h.api.do(ctx, http.MethodGet, h.path()+"/"+name, "", nil, host); err != nil {
		return nil, h.about(name, "reading", err)
	}
	return host, nil
}

// Annotate sets an annotation of a host, or takes it away when value is nil, and returns the host as it is then.
func (h *Hosts) Annotate(ctx context.Context, name, key string, value *string) (*v1beta1.SSHHost, error) {
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]*string{key: value}}}
	host := &v1beta1.SSHHost{}
	if err := h.api.do(ctx, http.MethodPatch, h.path()+"/"+name, "application/merge-patch+json", patch, host); err != nil {
		return nil, h.about(name, "annotating", err)
	}
	return host, nil
}

func (h *Hosts) about(name, doing string, err error) error {
	if errors.Is(err, errNotFound) {
		return cli.Hint(fmt.Errorf("there is no SSHHost %q in namespace %q", name, h.namespace), "'host list' shows those that there are; --pool-namespace and --context choose others")
	}
	return fmt.Errorf("%s SSHHost %q: %w", doing, name, err)
}

// DeleteNodeClaim deletes the NodeClaim of that name and uid. One that is gone, also when another one has its name, is
// deleted.
func (h *Hosts) DeleteNodeClaim(ctx context.Context, name string, uid types.UID) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	err := h.api.do(ctx, http.MethodDelete, nodeClaims+"/"+name, "application/json", options, nil)
	if err != nil && !errors.Is(err, errNotFound) && !errors.Is(err, errConflict) {
		return fmt.Errorf("deleting NodeClaim %q: %w", name, err)
	}
	return nil
}

// NodeNames are names of nodes by the uid of their NodeClaim.
type NodeNames map[types.UID]string

// Nodes reads which NodeClaim has which node.
func (h *Hosts) Nodes(ctx context.Context) (NodeNames, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var list struct {
		Items []struct {
			metav1.ObjectMeta `json:"metadata"`
			Status            struct {
				NodeName string `json:"nodeName"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := h.api.get(ctx, nodeClaims, "", maxList, &list); err != nil {
		return nil, fmt.Errorf("reading the NodeClaims: %w", err)
	}
	names := NodeNames{}
	for _, claim := range list.Items {
		names[claim.UID] = claim.Status.NodeName
	}
	return names, nil
}

var errConflict = errors.New("the API server answers that it has changed")

// do sends a request about one object.
func (a *apiServer) do(ctx context.Context, method, path, contentType string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var sent []byte
	if body != nil {
		var err error
		if sent, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, a.base.JoinPath(path).String(), bytes.NewReader(sent))
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxObject))
	if err != nil {
		return err
	}
	switch response.StatusCode {
	case http.StatusOK, http.StatusAccepted:
	case http.StatusNotFound:
		return errNotFound
	case http.StatusConflict:
		return errConflict
	default:
		var status metav1.Status
		_ = json.Unmarshal(answer, &status) // a proxy in between may answer with something else
		return fmt.Errorf("the API server answers: %s", cmp.Or(status.Message, response.Status))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// maxObject bounds what is read of an object; the API server stores no larger ones.
const maxObject = 4 << 20
