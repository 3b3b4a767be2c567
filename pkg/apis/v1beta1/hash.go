package v1beta1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
)

// NodeClassHashVersion changes whenever Hash would give another value for an unchanged spec; nodes
// hashed under another version are left alone.
const NodeClassHashVersion = "v1"

// Hash is over the fields that a node was joined with (vars, joinSecretRef, providerIDSource,
// cluster). A default spelled out, another order of keys and another wrapping of the same
// certificates give the same hash.
func (c *SSHNodeClass) Hash() string {
	h := struct {
		Vars         map[string]string `json:"vars"`
		Secret       string            `json:"secret"`
		Source       ProviderIDSource  `json:"source"`
		Endpoint     string            `json:"endpoint"`
		Certificates []string          `json:"certificates"`
	}{Vars: c.Spec.Vars, Source: c.Spec.ProviderIDSource}
	if len(h.Vars) == 0 {
		h.Vars = nil
	}
	if h.Source == "" {
		h.Source = ProviderIDStatic
	}
	if c.Spec.JoinSecretRef != nil {
		h.Secret = c.Spec.JoinSecretRef.Name
	}
	if c.Spec.Cluster != nil {
		h.Endpoint = c.Spec.Cluster.Endpoint
		h.Certificates = certificateDigests(c.Spec.Cluster.CABundle)
	}
	encoded, err := json.Marshal(h)
	if err != nil {
		panic(fmt.Sprintf("internal error: encoding a node class hash: %v", err)) // strings only
	}
	return digest(encoded)
}

func certificateDigests(bundle []byte) []string {
	var out []string
	rest := bundle
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		out = append(out, digest(block.Bytes))
	}
	if out == nil && len(bundle) > 0 {
		out = []string{digest(bundle)}
	}
	return out
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
