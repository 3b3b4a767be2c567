// Package manifest writes the Kubernetes manifests that kpssh hands to kubectl, and reads those that
// an author signs. It talks to no API server.
package manifest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

// Names that the controller looks for.
const (
	// TrustName is the ConfigMap with root.N.json and allowlist.json in the controller's namespace.
	TrustName = "kpssh-trust"
	// DispatchName is the Secret with the dispatch key in the controller's namespace.
	DispatchName = "kpssh-dispatch-key"
	// SSHName is the Secret with the SSH client key in the pool namespace.
	SSHName = "kpssh-ssh"

	// AllowlistEntry is the ConfigMap's entry of the allowlist.
	AllowlistEntry = "allowlist.json"
)

// maxTrust leaves room below the 1 MiB that the API server takes for a ConfigMap.
const maxTrust = 1_000_000

// ApplyCommand is how kubectl takes a manifest. Above a quarter of a MiB client-side apply fails, since
// it keeps a copy in an annotation.
func ApplyCommand(path string, size int) string {
	if size > 200_000 {
		return "kubectl apply --server-side -f " + path
	}
	return "kubectl apply -f " + path
}

// RootEntry is the ConfigMap's entry of root version n.
func RootEntry(n int) string { return fmt.Sprintf("root.%d.json", n) }

type meta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Annotations hold what may be read without reading a Secret's data.
	Annotations map[string]string `json:"annotations,omitempty"`
}

type object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   meta              `json:"metadata"`
	Type       string            `json:"type,omitempty"`
	Data       map[string]string `json:"data,omitempty"`
	StringData map[string]string `json:"stringData,omitempty"`
	Spec       any               `json:"spec,omitempty"`
}

const managedBy = "app.kubernetes.io/managed-by"

func render(comment string, objects ...object) ([]byte, error) {
	var b strings.Builder
	for line := range strings.Lines(comment) {
		b.WriteString("# " + line)
	}
	for i, o := range objects {
		out, err := yaml.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("encoding %s %q: %w", o.Kind, o.Metadata.Name, err)
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		b.Write(out)
	}
	return []byte(b.String()), nil
}

// Namespaces makes the namespaces that the other manifests live in.
func Namespaces(names ...string) ([]byte, error) {
	var objects []object
	seen := map[string]bool{}
	for _, n := range names {
		if !seen[n] {
			objects = append(objects, object{APIVersion: "v1", Kind: "Namespace", Metadata: meta{Name: n}})
		}
		seen[n] = true
	}
	return render("", objects...)
}

// Trust makes the ConfigMap of the trust documents. chain are the root envelopes from version 1;
// allowlist may be empty.
func Trust(namespace string, chain [][]byte, allowlist []byte) ([]byte, error) {
	data := map[string]string{}
	size := len(allowlist)
	for i, root := range chain {
		data[RootEntry(i+1)] = string(root)
		size += len(root)
	}
	if len(allowlist) > 0 {
		data[AllowlistEntry] = string(allowlist)
	}
	if size > maxTrust {
		return nil, fmt.Errorf("root documents and allowlist have %d bytes together, more than a ConfigMap holds (%d): drop old profile versions with 'profile sign --drop-older'", size, maxTrust)
	}
	return render("Public: what the offline keys signed. kpssh writes it anew whenever it signs; apply it each time.\n", object{
		APIVersion: "v1", Kind: "ConfigMap",
		Metadata: meta{Name: TrustName, Namespace: namespace, Labels: map[string]string{managedBy: "kpssh"}},
		Data:     data,
	})
}

// DispatchKeyAnnotation is the public half of the dispatch key, on its Secret.
const DispatchKeyAnnotation = apis.Group + "/dispatch-key"

// Dispatch makes the Secret of the dispatch key.
func Dispatch(namespace string, privatePEM []byte, public signing.Key) ([]byte, error) {
	return render("SECRET: the key that signs orders. Apply it, then delete this file: only the controller needs it.\n", object{
		APIVersion: "v1", Kind: "Secret", Type: string(corev1.SecretTypeOpaque),
		Metadata: meta{
			Name: DispatchName, Namespace: namespace, Labels: map[string]string{managedBy: "kpssh"},
			Annotations: map[string]string{DispatchKeyAnnotation: public.String()},
		},
		StringData: map[string]string{keys.SecretKey: string(privatePEM)},
	})
}

// SSH makes a Secret of the SSH client key; knownHost, when not empty, pins one host's key.
func SSH(namespace, name string, privatePEM []byte, knownHost string) ([]byte, error) {
	data := map[string]string{"privateKey": string(privatePEM)}
	if knownHost != "" {
		data["knownHost"] = knownHost
	}
	return render("SECRET: the key that the controller logs in with. It runs nothing on a host by itself.\n", object{
		APIVersion: "v1", Kind: "Secret", Type: string(corev1.SecretTypeOpaque),
		Metadata:   meta{Name: name, Namespace: namespace, Labels: map[string]string{managedBy: "kpssh"}},
		StringData: data,
	})
}

// ReadSecret returns the data of a Secret's manifest.
func ReadSecret(text []byte) (map[string][]byte, error) {
	var s corev1.Secret
	if err := yaml.UnmarshalStrict(text, &s); err != nil {
		return nil, err
	}
	data := map[string][]byte{}
	for k, v := range s.Data {
		data[k] = v
	}
	for k, v := range s.StringData {
		data[k] = []byte(v)
	}
	return data, nil
}

// Host makes an SSHHost.
func Host(namespace, name string, labels map[string]string, spec v1beta1.SSHHostSpec) ([]byte, error) {
	return render("", object{
		APIVersion: apis.Group + "/v1beta1", Kind: "SSHHost",
		Metadata: meta{Name: name, Namespace: namespace, Labels: labels},
		Spec:     spec,
	})
}
