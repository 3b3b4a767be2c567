// Package audit verifies audit trails without a cluster and without hosts: that each line's order was signed by a
// dispatch key of the chain of roots, that its receipt was signed by the host that it names, and that the one answers
// the other.
package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Trust is what a trail is held against.
type Trust struct {
	roots      []*signing.Root
	hosts      map[string][]host // by host id
	keys       []signing.Key     // receipt keys of hosts that nobody named
	allowlists map[string]*signing.Allowlist
}

// host is an enrolled host. A host that was enrolled anew has an entry for each of its keys.
type host struct {
	name string // of the SSHHost, may be empty
	key  signing.Key
}

// NewTrust verifies a chain of root documents, the first of which is trusted because it is given.
func NewTrust(chain [][]byte) (*Trust, error) {
	if len(chain) == 0 {
		return nil, errors.New("there is no root document")
	}
	t := &Trust{hosts: map[string][]host{}, allowlists: map[string]*signing.Allowlist{}}
	root, err := signing.OpenFirstRoot(chain[0])
	if err != nil {
		return nil, fmt.Errorf("opening the first root: %w", err)
	}
	t.roots = append(t.roots, root)
	for _, envelope := range chain[1:] {
		if root, err = signing.NextRoot(root, envelope); err != nil {
			return nil, fmt.Errorf("opening the root after version %d: %w", t.roots[len(t.roots)-1].Version, err)
		}
		t.roots = append(t.roots, root)
	}
	return t, nil
}

// AddAllowlist takes an allowlist that authors of any root of the chain have signed. With one or more of them, scripts
// that are in none are refused.
func (t *Trust) AddAllowlist(envelope []byte) error {
	digest, err := signing.PayloadDigest(envelope)
	if err != nil {
		return err
	}
	for _, root := range slices.Backward(t.roots) {
		list, openErr := signing.OpenAllowlist(envelope, root)
		if openErr == nil {
			t.allowlists[digest] = list
			return nil
		}
		err = openErr
	}
	return err
}

// AddKey takes a receipt key of a host whose id and name are not known.
func (t *Trust) AddKey(text string) error {
	key, err := signing.ParseKey(text)
	if err == nil {
		t.keys = append(t.keys, key)
	}
	return err
}

// Hosts is how many receipt keys are known.
func (t *Trust) Hosts() int {
	n := len(t.keys)
	for _, hosts := range t.hosts {
		n += len(hosts)
	}
	return n
}

// AddHosts takes the hosts of manifests of SSHHosts, as "kubectl get -o yaml" prints them too, and of the statements
// that "kpssh-shim enroll --json" prints. Other objects are passed over.
func (t *Trust) AddHosts(data []byte) error {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var doc json.RawMessage
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && len(doc) > 0 {
			err = t.addObject(doc)
		}
		if err != nil {
			return err
		}
	}
}

func (t *Trust) addObject(doc []byte) error {
	var kind struct {
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
		HostID     string            `json:"hostID"`
		ReceiptKey string            `json:"receiptKey"`
	}
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	switch {
	case kind.Kind == "List" || kind.Kind == "SSHHostList":
		for _, item := range kind.Items {
			if err := t.addObject(item); err != nil {
				return err
			}
		}
		return nil
	case kind.Kind == "SSHHost":
		return t.addManifest(doc)
	case kind.Kind == "" && kind.HostID != "" && kind.ReceiptKey != "":
		return t.addStatement(doc)
	}
	return nil
}

func (t *Trust) addManifest(doc []byte) error {
	var object v1beta1.SSHHost
	if err := yaml.Unmarshal(doc, &object); err != nil {
		return err
	}
	shim := object.Spec.Shim
	if shim == nil || shim.HostID == "" || shim.ReceiptKey == "" {
		return nil // in Raw mode, or not enrolled yet
	}
	key, err := signing.ParseKey(shim.ReceiptKey)
	if err != nil {
		return fmt.Errorf("SSHHost %q: %w", object.Name, err)
	}
	t.addHost(shim.HostID, host{name: object.Name, key: key})
	return nil
}

func (t *Trust) addStatement(doc []byte) error {
	var st wire.Statement
	if err := json.Unmarshal(doc, &st); err != nil {
		return fmt.Errorf("reading a host's statement: %w", err)
	}
	key, err := signing.ParseKey(st.ReceiptKey)
	if err != nil {
		return fmt.Errorf("reading a host's statement: %w", err)
	}
	hello, err := signing.OpenHello(st.Hello, key)
	if err != nil {
		return fmt.Errorf("checking the statement of host %q: %w", st.HostID, err)
	}
	if hello.HostID != st.HostID {
		return fmt.Errorf("checking the statement of host %q: it was signed by host %q", st.HostID, hello.HostID)
	}
	t.addHost(st.HostID, host{key: key})
	return nil
}

func (t *Trust) addHost(id string, h host) {
	known := slices.ContainsFunc(t.hosts[id], func(k host) bool { return k.name == h.name && k.key.Equal(h.key) })
	if !known {
		t.hosts[id] = append(t.hosts[id], h)
	}
}
