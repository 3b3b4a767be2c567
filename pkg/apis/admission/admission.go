// Package admission holds what an API server is told to refuse beyond what the schemas of our kinds say.
package admission

import _ "embed" // the manifests below

//go:embed sshhost-deletion.yaml
var sshHostDeletion []byte

// Policies are the manifests (YAML), to be applied where the CRDs are: a policy and its binding each.
func Policies() [][]byte { return [][]byte{sshHostDeletion} }
