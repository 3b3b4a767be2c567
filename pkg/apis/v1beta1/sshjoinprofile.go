package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/awslabs/operatorpkg/status"
)

// SSHJoinProfileSpec is a set of scripts and what their author allows them to be given.
type SSHJoinProfileSpec struct {
	// Version is part of the install marker: raising it re-installs hosts and rolls nodes; editing a
	// script without raising it does neither.
	// +kubebuilder:default="1"
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]{1,63}$`
	// +optional
	Version string `json:"version,omitempty"`

	// Scripts are bash scripts, one per phase. Each is idempotent and may be run again after a crash.
	Scripts Scripts `json:"scripts"`

	// Timeouts of the phases; the host enforces them.
	// +kubebuilder:default={}
	// +optional
	Timeouts Timeouts `json:"timeouts,omitempty"`

	// Parameters declare the KPSSH_* variables of each script from which the author's allowlist entry
	// is made. The standard names need no declaration; one here replaces the built-in schema.
	// +optional
	Parameters *Parameters `json:"parameters,omitempty"`
}

// Scripts of a profile.
type Scripts struct {
	// Install prepares a host for membership, once per host and profile@version.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	Install string `json:"install"`
	// Join makes the host a node, on each claim.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	Join string `json:"join"`
	// Leave undoes Join on each release, keeps what Install made, and disables kubelet and containerd
	// so that a reboot does not rejoin.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	Leave string `json:"leave"`
	// Uninstall undoes Install; the controller never runs it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	// +optional
	Uninstall string `json:"uninstall,omitempty"`
}

// Timeouts of the phases. The pattern keeps out what metav1.Duration cannot decode: one such object
// would break every typed List of the kind.
type Timeouts struct {
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="timeout must be between 1s and 24h"
	// +optional
	Install *metav1.Duration `json:"install,omitempty"`
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="timeout must be between 1s and 24h"
	// +optional
	Join *metav1.Duration `json:"join,omitempty"`
	// +kubebuilder:default="3m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="timeout must be between 1s and 24h"
	// +optional
	Leave *metav1.Duration `json:"leave,omitempty"`
}

// Parameters of each script.
type Parameters struct {
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=name
	// +optional
	Install []Parameter `json:"install,omitempty"`
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=name
	// +optional
	Join []Parameter `json:"join,omitempty"`
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.name in ['KPSSH_HOST_ADDRESS','KPSSH_NODE_ADDRESS'])",message="leave gets KPSSH_HOST_ADDRESS and KPSSH_NODE_ADDRESS only"
	// +optional
	Leave []Parameter `json:"leave,omitempty"`
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.name in ['KPSSH_HOST_ADDRESS','KPSSH_NODE_ADDRESS'])",message="uninstall gets KPSSH_HOST_ADDRESS and KPSSH_NODE_ADDRESS only"
	// +optional
	Uninstall []Parameter `json:"uninstall,omitempty"`
}

// Parameter is the schema of one KPSSH_* variable of a script.
// +kubebuilder:validation:XValidation:rule="!(has(self.pattern) && has(self.enum))",message="pattern and enum exclude each other"
// +kubebuilder:validation:XValidation:rule="(self.name == 'KPSSH_BOOTSTRAP_TOKEN' || self.name.startsWith('KPSSH_SECRET_')) == (has(self.secret) && self.secret)",message="KPSSH_BOOTSTRAP_TOKEN and KPSSH_SECRET_* are secret, and nothing else is"
// +kubebuilder:validation:XValidation:rule="!(has(self.secret) && self.secret) || !(has(self.enum) || has(self.pin))",message="an enum or a pin would give a secret away"
type Parameter struct {
	// Name is the variable as the script reads it.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^KPSSH_[A-Z0-9_]+$`
	Name string `json:"name"`
	// Type selects the built-in checks; every type refuses control characters.
	// +kubebuilder:default=string
	// +kubebuilder:validation:Enum=string;endpoint;caBundle;ip;host;nodeName;uri;labels;taints;token
	// +optional
	Type string `json:"type,omitempty"`
	// Pattern is an RE2 expression that the whole value must match.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="''.matches(self) in [true, false] && ''.matches('^(?:' + self + ')$') in [true, false]",message="pattern must be an RE2 expression"
	// +optional
	Pattern string `json:"pattern,omitempty"`
	// Enum are the values allowed.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=2048
	// +listType=set
	// +optional
	Enum []string `json:"enum,omitempty"`
	// MaxLength in bytes; the type's own limit when unset.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	// +optional
	MaxLength int32 `json:"maxLength,omitempty"`
	// Optional lets an order leave the variable out.
	// +optional
	Optional bool `json:"optional,omitempty"`
	// Secret values travel apart from the order and are never printed.
	// +optional
	Secret bool `json:"secret,omitempty"`
	// Pin lists the only values that an order may carry. For a caBundle each is the "sha256:<hex>" of
	// a certificate's subject public key info.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=2048
	// +listType=set
	// +optional
	Pin []string `json:"pin,omitempty"`
}

// SSHJoinProfileStatus is what the controller knows about a profile.
type SSHJoinProfileStatus struct {
	// +optional
	Conditions []status.Condition `json:"conditions,omitempty"`
}

// SSHJoinProfile is the scripts that make a host a member of the cluster and undo it.
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters: it is part of the install marker"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=sshjoinprofiles,scope=Cluster,shortName=sjp,categories=karpenter
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".spec.version"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type SSHJoinProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SSHJoinProfileSpec   `json:"spec"`
	Status SSHJoinProfileStatus `json:"status,omitempty"`
}

// SSHJoinProfileList is a list of join profiles.
// +kubebuilder:object:root=true
type SSHJoinProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SSHJoinProfile `json:"items"`
}

// Marker is what an installed host carries: "<profile>@<version>".
func (p *SSHJoinProfile) Marker() string {
	version := p.Spec.Version
	if version == "" {
		version = "1"
	}
	return p.Name + "@" + version
}

// GetConditions implements status.Object.
func (p *SSHJoinProfile) GetConditions() []status.Condition { return p.Status.Conditions }

// SetConditions implements status.Object.
func (p *SSHJoinProfile) SetConditions(conditions []status.Condition) {
	p.Status.Conditions = conditions
}

// StatusConditions implements status.Object.
func (p *SSHJoinProfile) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions().For(p, opts...)
}
