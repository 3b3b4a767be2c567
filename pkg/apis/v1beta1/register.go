package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
)

// GroupVersion is the group and version of all types here.
var GroupVersion = schema.GroupVersion{Group: apis.Group, Version: "v1beta1"}

// SchemeBuilder and AddToScheme register the types. Karpenter core looks node classes up in
// client-go's global scheme, so a program that links core registers there too.
var (
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	AddToScheme   = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&SSHHost{}, &SSHHostList{},
		&SSHNodeClass{}, &SSHNodeClassList{},
		&SSHJoinProfile{}, &SSHJoinProfileList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
