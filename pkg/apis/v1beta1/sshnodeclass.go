package v1beta1

import (
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/awslabs/operatorpkg/status"
)

// ProviderIDSource is where a node's provider id comes from.
// +kubebuilder:validation:Enum=Static;Adopt
type ProviderIDSource string

const (
	// ProviderIDStatic registers the node as kpssh://<namespace>/<host>.
	ProviderIDStatic ProviderIDSource = "Static"
	// ProviderIDAdopt takes over the provider id that the node registered with.
	ProviderIDAdopt ProviderIDSource = "Adopt"
)

// Values of SSHNodeClassSpec.Prepare that are no numbers.
const (
	PrepareNone = "none"
	PrepareAll  = "all"
)

// SSHNodeClassSpec is how NodePools that refer to the class use the pool.
type SSHNodeClassSpec struct {
	// HostSelector selects the hosts of the pool namespace; empty selects all.
	// +optional
	HostSelector metav1.LabelSelector `json:"hostSelector,omitempty"`

	// JoinProfileRef names the SSHJoinProfile whose scripts run on the hosts.
	JoinProfileRef JoinProfileRef `json:"joinProfileRef"`

	// Vars reach install and join as KPSSH_VAR_<KEY>, the key in upper case.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[A-Za-z_][A-Za-z0-9_]{0,62}$'))",message="keys of vars must be shell identifiers of at most 63 characters"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self.all(l, k == l || k.upperAscii() != l.upperAscii()))",message="keys of vars must differ in more than upper and lower case"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !self[k].matches('[[:cntrl:]]'))",message="values of vars must not hold control characters"
	// +optional
	Vars Vars `json:"vars,omitempty"`

	// JoinSecretRef names a Secret in the pool namespace whose keys reach install and join as
	// KPSSH_SECRET_<KEY>.
	// +optional
	JoinSecretRef *SecretRef `json:"joinSecretRef,omitempty"`

	// ProviderIDSource is where a node's provider id comes from.
	// +kubebuilder:default=Static
	// +optional
	ProviderIDSource ProviderIDSource `json:"providerIDSource,omitempty"`

	// PricePerCPUHour is the price of one vCPU for one hour, a decimal number; karpenter compares
	// instance types by it.
	// +kubebuilder:default="0.02"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	// +optional
	PricePerCPUHour string `json:"pricePerCPUHour,omitempty"`

	// KubeReserved is what the kubelet and the system keep of a host.
	// +kubebuilder:default={cpu:"80m",memory:"300Mi"}
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu','memory','ephemeral-storage','pid'])",message="kubeReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, [string(self[k])].all(v, v.size() <= 32 && !v.contains('e') && (!v.contains('E') || v.endsWith('E') || v.endsWith('Ei')) && isQuantity(v)))",message="kubeReserved must be quantities without an exponent"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="kubeReserved must not be negative"
	// +optional
	KubeReserved corev1.ResourceList `json:"kubeReserved,omitempty"`

	// MaxPods is the kubelet's limit of pods.
	// +kubebuilder:default=110
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +optional
	MaxPods int32 `json:"maxPods,omitempty"`

	// Cluster says how nodes reach the API server; what is unset comes from ConfigMap
	// kube-public/cluster-info.
	// +optional
	Cluster *ClusterSpec `json:"cluster,omitempty"`

	// StartupTaintGates remove startup taints of the NodeClaim once a condition holds.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=taintKey
	// +optional
	StartupTaintGates []StartupTaintGate `json:"startupTaintGates,omitempty"`

	// Prepare says how many free hosts have install run on them before they are claimed, so that a claim costs no more
	// than join: none, all, or a number of hosts to hold prepared and free.
	// +kubebuilder:default=none
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 100000 : self in ['none', 'all']",message="prepare must be none, all or a number of hosts"
	// +optional
	Prepare *intstr.IntOrString `json:"prepare,omitempty"`

	// UnreachableGracePeriod is how long the deletion of a NodeClaim waits for a host that cannot be reached. After it
	// the NodeClaim goes, and the host is left before it can be claimed again.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('24h')",message="unreachableGracePeriod must be at most 24h"
	// +optional
	UnreachableGracePeriod *metav1.Duration `json:"unreachableGracePeriod,omitempty"`

	// IgnoredPreflightChecks are the names of checks that do not keep a host from this class.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Enum=AddressConflict;ArchMismatch;CapacityDrift;CgroupV1;ClockSkew;DiskLow;HostnameConflict;MemoryCgroupMissing;NoExec;NodeAddressMissing;SwapOn
	// +listType=set
	// +optional
	IgnoredPreflightChecks []string `json:"ignoredPreflightChecks,omitempty"`

	// MaintenanceWindows are when this class claims no host. Hosts in use stay in use.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	MaintenanceWindows []MaintenanceWindow `json:"maintenanceWindows,omitempty"`
}

// Vars are values by key. Any map[string]string can be assigned to it, and it to one.
// +kubebuilder:object:generate=false
type Vars map[string]VarValue

// DeepCopyInto is by hand as the generator cannot copy values of an alias.
func (in Vars) DeepCopyInto(out *Vars) { *out = maps.Clone(in) }

// DeepCopy returns a copy.
func (in Vars) DeepCopy() Vars { return maps.Clone(in) }

// VarValue is a string; the alias only carries the bounds of the map's values into the schema, which
// a rule on all of them needs to stay within the API server's cost limit.
// +kubebuilder:validation:MaxLength=2048
type VarValue = string

// JoinProfileRef names an SSHJoinProfile.
type JoinProfileRef struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
}

// ClusterSpec overrides kube-public/cluster-info.
type ClusterSpec struct {
	// Endpoint is the https URL of the API server: host and port alone, in lower case.
	// +kubebuilder:validation:MaxLength=300
	// +kubebuilder:validation:XValidation:rule="self.matches('^https://([a-z0-9.-]+|[[][0-9a-f:.]+[]])(:[1-9][0-9]{0,4})?$') && isURL(self) && url(self).getHostname() != ''",message="endpoint must be https://HOST[:PORT]"
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// CABundle is the PEM bundle that the API server's certificate is checked with.
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="string(self).contains('-----BEGIN CERTIFICATE-----')",message="caBundle must be the base64 of PEM certificates"
	// +optional
	CABundle []byte `json:"caBundle,omitempty"`
}

// StartupTaintGate removes one startup taint.
type StartupTaintGate struct {
	// TaintKey is the key of a taint in the NodeClaim's startupTaints.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	TaintKey string `json:"taintKey"`
	// RemoveWhen says when.
	RemoveWhen RemoveWhen `json:"removeWhen"`
}

// RemoveWhen is a union: exactly one field is set.
// +kubebuilder:validation:XValidation:rule="has(self.podsReady) != has(self.nodeCondition)",message="exactly one of podsReady and nodeCondition must be set"
type RemoveWhen struct {
	// PodsReady holds once enough pods on the node are Ready.
	// +optional
	PodsReady *PodsReady `json:"podsReady,omitempty"`
	// NodeCondition holds once the node has a condition.
	// +optional
	NodeCondition *NodeCondition `json:"nodeCondition,omitempty"`
}

// PodsReady counts Ready pods on the node.
type PodsReady struct {
	// Namespace of the pods.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`
	// Selector of the pods.
	Selector metav1.LabelSelector `json:"selector"`
	// MinReady is how many must be Ready.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	MinReady int32 `json:"minReady,omitempty"`
}

// NodeCondition is a condition of a Node.
type NodeCondition struct {
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Type corev1.NodeConditionType `json:"type"`
	// +kubebuilder:default="True"
	// +kubebuilder:validation:Enum="True";"False";"Unknown"
	// +optional
	Status corev1.ConditionStatus `json:"status,omitempty"`
}

// SSHNodeClassStatus is what the controller knows about a class.
type SSHNodeClassStatus struct {
	// Conditions; karpenter launches nothing while Ready is not True.
	// +optional
	Conditions []status.Condition `json:"conditions,omitempty"`
}

// SSHNodeClass is how a NodePool uses the pool.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=sshnodeclasses,scope=Cluster,shortName=snc,categories=karpenter
// +kubebuilder:printcolumn:name="Profile",type="string",JSONPath=".spec.joinProfileRef.name"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type SSHNodeClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SSHNodeClassSpec   `json:"spec"`
	Status SSHNodeClassStatus `json:"status,omitempty"`
}

// SSHNodeClassList is a list of node classes.
// +kubebuilder:object:root=true
type SSHNodeClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SSHNodeClass `json:"items"`
}

// ToPrepare is how many free hosts are to be held prepared, math.MaxInt for all of them.
func (c *SSHNodeClass) ToPrepare() int {
	switch prepare := c.Spec.Prepare; {
	case prepare == nil:
		return 0
	case prepare.Type == intstr.Int:
		return max(0, prepare.IntValue())
	case prepare.StrVal == PrepareAll:
		return math.MaxInt
	default:
		return 0
	}
}

// Adopts says whether nodes keep the provider id they registered with.
func (c *SSHNodeClass) Adopts() bool { return c.Spec.ProviderIDSource == ProviderIDAdopt }

// Selects says whether the class selects the host. A selector that cannot be read selects none: the class's status says so.
func (c *SSHNodeClass) Selects(host *SSHHost) bool {
	selector, err := metav1.LabelSelectorAsSelector(&c.Spec.HostSelector)
	return err == nil && selector.Matches(labels.Set(host.Labels))
}

// GetConditions implements status.Object.
func (c *SSHNodeClass) GetConditions() []status.Condition { return c.Status.Conditions }

// SetConditions implements status.Object.
func (c *SSHNodeClass) SetConditions(conditions []status.Condition) {
	c.Status.Conditions = conditions
}

// StatusConditions implements status.Object. Ready depends on no other condition: one controller
// sets it with the first reason that stands in the way.
func (c *SSHNodeClass) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions().For(c, opts...)
}
