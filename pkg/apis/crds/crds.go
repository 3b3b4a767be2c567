// Package crds holds the custom resource definitions: ours, generated from pkg/apis/v1beta1, and
// those of karpenter itself for a cluster that has no other karpenter.
package crds

import (
	_ "embed" // the manifests below

	karpenter "sigs.k8s.io/karpenter/pkg/apis"
)

//go:generate go -C ../../.. tool -modfile=go.tools.mod controller-gen object crd paths=./pkg/apis/v1beta1 output:crd:dir=pkg/apis/crds output:object:dir=pkg/apis/v1beta1

var (
	//go:embed karpenter.dklesev.github.io_sshhosts.yaml
	sshHosts []byte
	//go:embed karpenter.dklesev.github.io_sshnodeclasses.yaml
	sshNodeClasses []byte
	//go:embed karpenter.dklesev.github.io_sshjoinprofiles.yaml
	sshJoinProfiles []byte
)

// Own are the manifests (YAML) of this provider's kinds.
func Own() [][]byte { return [][]byte{sshHosts, sshNodeClasses, sshJoinProfiles} }

// Karpenter are the manifests (YAML) of karpenter core's kinds, of the version that is compiled in.
// A cluster with another karpenter has them already, and that one owns them.
func Karpenter() [][]byte {
	return [][]byte{
		karpenter.NodePoolCRD, karpenter.NodeClaimCRD, karpenter.NodeOverlayCRD, karpenter.CapacityBufferCRD,
	}
}
