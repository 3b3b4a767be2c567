package crds_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds/crdtest"
)

// The names, columns and categories of the contract.
func TestKindsAreNamedAndPrintedAsTheContractSays(t *testing.T) {
	type column struct{ Name, Path string }
	type kind struct {
		Kind, Plural, Scope  string
		ShortNames, Category []string
		Status               bool
		Columns              []column
	}
	ready := ".status.conditions[?(@.type=='Ready')].status"
	want := map[string]kind{
		"sshhosts.karpenter.dklesev.github.io": {
			Kind: "SSHHost", Plural: "sshhosts", Scope: "Namespaced", ShortNames: []string{"sshh"}, Category: []string{"karpenter"}, Status: true,
			Columns: []column{
				{"Address", ".spec.address"}, {"Class", `.metadata.labels.karpenter\.dklesev\.github\.io/host-class`},
				{"State", ".status.state"}, {"Ready", ready}, {"Claim", ".status.claimRef.name"},
				{"Installed", ".status.installedProfile"}, {"Age", ".metadata.creationTimestamp"},
			},
		},
		"sshnodeclasses.karpenter.dklesev.github.io": {
			Kind: "SSHNodeClass", Plural: "sshnodeclasses", Scope: "Cluster", ShortNames: []string{"snc"}, Category: []string{"karpenter"}, Status: true,
			Columns: []column{
				{"Profile", ".spec.joinProfileRef.name"}, {"Ready", ready},
				{"Reason", ".status.conditions[?(@.type=='Ready')].reason"}, {"Age", ".metadata.creationTimestamp"},
			},
		},
		"sshjoinprofiles.karpenter.dklesev.github.io": {
			Kind: "SSHJoinProfile", Plural: "sshjoinprofiles", Scope: "Cluster", ShortNames: []string{"sjp"}, Category: []string{"karpenter"}, Status: true,
			Columns: []column{{"Version", ".spec.version"}, {"Ready", ready}, {"Age", ".metadata.creationTimestamp"}},
		},
	}
	got := map[string]kind{}
	for _, manifest := range crds.Own() {
		crd := crdtest.Decode(t, manifest)
		k := kind{
			Kind: crd.Spec.Names.Kind, Plural: crd.Spec.Names.Plural, Scope: string(crd.Spec.Scope),
			ShortNames: crd.Spec.Names.ShortNames, Category: crd.Spec.Names.Categories,
			Status: crd.Spec.Subresources != nil && crd.Spec.Subresources.Status != nil,
		}
		for _, c := range crd.Spec.AdditionalPrinterColumns {
			k.Columns = append(k.Columns, column{c.Name, c.JSONPath})
		}
		got[crd.Name] = k
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// A greenfield cluster gets karpenter's own kinds in the version that is compiled in.
func TestKarpentersKindsAreThoseOfTheLinkedModule(t *testing.T) {
	var names []string
	for _, manifest := range crds.Karpenter() {
		names = append(names, crdtest.Decode(t, manifest).Name)
	}
	want := []string{
		"nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "nodeoverlays.karpenter.sh", "capacitybuffers.autoscaling.x-k8s.io",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestAnAPIServerAcceptsTheCRDs(t *testing.T) {
	if n := len(crdtest.Load(t, crds.Own())) + len(crdtest.Load(t, crds.Karpenter())); n != 7 {
		t.Errorf("%d kinds, want 3 of ours and 4 of karpenter", n)
	}
}
