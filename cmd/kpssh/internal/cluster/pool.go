package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// maxList bounds what is read of a list: some ten thousand hosts.
const maxList = 128 << 20

// Access is which cluster, and where in it.
type Access struct {
	Kubeconfig, Context                string
	ControllerNamespace, PoolNamespace string
}

// Pool is what a cluster says of its hosts and of what they are to believe.
type Pool struct {
	Hosts []v1beta1.SSHHost
	// Documents are the entries of ConfigMap kpssh-trust; nil when there is none.
	Documents map[string]string
	// DispatchKey is the public half of the key in Secret kpssh-dispatch-key, as kpssh noted it there; empty when it
	// is not noted, or may not be read. The Secret's data is not asked for.
	DispatchKey string
}

// Look reads the pool of a cluster.
func Look(ctx context.Context, a Access) (*Pool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	api, err := connect(a.Kubeconfig, a.Context)
	if err != nil {
		return nil, cli.Hint(err, "set KUBECONFIG or --kubeconfig")
	}
	var hosts v1beta1.SSHHostList
	err = api.get(ctx, "/apis/"+apis.Group+"/v1beta1/namespaces/"+a.PoolNamespace+"/sshhosts", "", maxList, &hosts)
	if errors.Is(err, errNotFound) {
		return nil, cli.Hint(errors.New("the cluster knows no SSHHosts"), "its kinds are not there yet (kubectl apply -f pkg/apis/crds), or it is the wrong cluster: --context and --kubeconfig choose another")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the SSHHosts of namespace %q: %w", a.PoolNamespace, err)
	}
	pool := &Pool{Hosts: hosts.Items}
	var trust corev1.ConfigMap
	err = api.get(ctx, "/api/v1/namespaces/"+a.ControllerNamespace+"/configmaps/"+manifest.TrustName, "", 4<<20, &trust)
	if err != nil && !errors.Is(err, errNotFound) {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", a.ControllerNamespace, manifest.TrustName, err)
	}
	pool.Documents = trust.Data
	var secret metav1.PartialObjectMetadata
	const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	err = api.get(ctx, "/api/v1/namespaces/"+a.ControllerNamespace+"/secrets/"+manifest.DispatchName, metadataOnly, 4<<20, &secret)
	if err != nil && !errors.Is(err, errNotFound) && !errors.Is(err, errForbidden) {
		return nil, fmt.Errorf("reading the metadata of Secret %s/%s: %w", a.ControllerNamespace, manifest.DispatchName, err)
	}
	pool.DispatchKey = secret.Annotations[manifest.DispatchKeyAnnotation]
	return pool, nil
}

// Answers of an API server that are looked at.
var (
	errNotFound  = errors.New("the API server answers that it is not there")
	errForbidden = errors.New("the API server answers that you may not read it")
)

// get reads an object. What the API server can only answer in a moment it is asked again, until ctx ends.
func (a *apiServer) get(ctx context.Context, path, accept string, limit int64, into any) error {
	for {
		err := a.getOnce(ctx, path, accept, limit, into)
		var busy *busyError
		if !errors.As(err, &busy) {
			return err
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < busy.after {
			return cli.Hint(err, "it went on until %s were over; try again later", timeout)
		}
		timer := time.NewTimer(busy.after)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// busyError is an answer that is no longer true in a moment: a kind that was applied just now is being set up (429), the
// API server or its etcd starts anew (5xx).
type busyError struct {
	text  string
	after time.Duration
}

func (e *busyError) Error() string { return e.text }

// Bounds of the time between two tries.
const (
	retryLeast   = 200 * time.Millisecond
	retryDefault = time.Second
	retryMost    = 10 * time.Second
)

// retryAfter is how long the answer asks to wait.
func retryAfter(response *http.Response) time.Duration {
	seconds, err := strconv.ParseInt(response.Header.Get("Retry-After"), 10, 32)
	if err != nil {
		return retryDefault
	}
	return min(max(time.Duration(seconds)*time.Second, retryLeast), retryMost)
}

// answer is what the API server said beside OK.
func answer(response *http.Response) string {
	text := "the API server answers " + response.Status
	var status metav1.Status
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err == nil && json.Unmarshal(body, &status) == nil && status.Message != "" {
		text += ": " + status.Message
	}
	return text
}

// Temporary says whether an error may be over in a moment, for those who wait: besides what Look tries again by itself, an
// API server that cannot be reached just now.
func Temporary(err error) bool {
	var busy *busyError
	var failed *url.Error
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &busy) || errors.As(err, &failed) && !errors.As(err, &certificate)
}

func (a *apiServer) getOnce(ctx context.Context, path, accept string, limit int64, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base.JoinPath(path).String(), nil)
	if err != nil {
		return err
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return errNotFound
	case http.StatusForbidden:
		return errForbidden
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &busyError{text: answer(response), after: retryAfter(response)}
	default:
		return errors.New(answer(response))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit))
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}
