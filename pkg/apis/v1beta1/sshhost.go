package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"

	"github.com/awslabs/operatorpkg/status"
)

// ExecMode is how scripts reach a host.
// +kubebuilder:validation:Enum=Verified;Raw
type ExecMode string

const (
	// ExecModeVerified runs only what an offline author signed, through kpssh-shim on the host.
	ExecModeVerified ExecMode = "Verified"
	// ExecModeRaw runs scripts as they are with sudo; the controller refuses it unless it was
	// started with --allow-raw-exec.
	ExecModeRaw ExecMode = "Raw"
)

// SSHHostSpec is what the operator says about a machine.
// +kubebuilder:validation:XValidation:rule="!self.address.contains('%') || has(self.nodeAddress)",message="nodeAddress is required where address has a zone: a kubelet cannot advertise it"
// +kubebuilder:validation:XValidation:rule="self.execMode != 'Verified' || has(self.shim)",message="shim is required in execMode Verified: run 'kpssh host enroll'"
type SSHHostSpec struct {
	// Address is the IP address, a link-local one with its zone (fe80::1%eth0), or the DNS name that SSH dials. It cannot be changed: another address is
	// another machine until it has been enrolled.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isIP(self) ? ip.isCanonical(self) : self.matches('^fe80::[0-9a-f:]+%[A-Za-z0-9._-]{1,15}$') ? isIP(self.split('%')[0]) && ip.isCanonical(self.split('%')[0]) : self.matches('^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?[.])*[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",message="address must be an IP address (link-local with its zone) or a DNS name, in lower case and canonical form"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="address is immutable: delete and recreate the SSHHost"
	Address string `json:"address"`

	// Port is the port of sshd.
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// User is the login user: kpssh in Verified, root in Raw when unset.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9._@-]*$`
	// +optional
	User string `json:"user,omitempty"`

	// SSHKeySecretRef names the Secret in the pool namespace with privateKey (PEM), and optionally privateKey.retiring,
	// passphrase, ssh-certificate, and knownHost: a SHA256: fingerprint, a known_hosts line (with @cert-authority also of
	// a host CA) or a public key line. knownHost is required in Verified mode and authoritative over first-use pinning.
	SSHKeySecretRef SecretRef `json:"sshKeySecretRef"`

	// NodeAddress is the IP address that the kubelet advertises (--node-ip); address when unset.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="nodeAddress must be an IP address in canonical form"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="nodeAddress must be one that a kubelet can advertise: not unspecified, loopback, link-local or multicast"
	// +optional
	NodeAddress string `json:"nodeAddress,omitempty"`

	// Capacity is what the host has: cpu and memory, and extended resources as they are.
	// A rule that parses looks for an exponent first: 1e999999999 is a quantity that costs an API server, and
	// whoever decodes it, minutes and gigabytes.
	// +kubebuilder:validation:MinProperties=2
	// +kubebuilder:validation:MaxProperties=12
	// +kubebuilder:validation:XValidation:rule="'cpu' in self && [string(self['cpu'])].all(v, v.size() <= 32 && !v.contains('e') && (!v.contains('E') || v.endsWith('E') || v.endsWith('Ei')) && quantity(v).isGreaterThan(quantity('0')))",message="capacity.cpu is required and must be positive"
	// +kubebuilder:validation:XValidation:rule="'memory' in self && [string(self['memory'])].all(v, v.size() <= 32 && !v.contains('e') && (!v.contains('E') || v.endsWith('E') || v.endsWith('Ei')) && quantity(v).isGreaterThan(quantity('0')))",message="capacity.memory is required and must be positive"
	// +kubebuilder:validation:XValidation:rule="self.all(k, [string(self[k])].all(v, v.size() <= 32 && !v.contains('e') && (!v.contains('E') || v.endsWith('E') || v.endsWith('Ei')) && isQuantity(v)))",message="capacity must be quantities without an exponent"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="capacity must not be negative"
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu','memory','ephemeral-storage'] || [string(self[k])].all(v, !v.contains('.') && !v.endsWith('m')))",message="capacity of pods, huge pages and extended resources must be whole numbers"
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu','memory','ephemeral-storage','pods'] || k.matches('^(hugepages-[1-9][0-9]*[KMG]i|[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*)$'))",message="capacity may hold cpu, memory, ephemeral-storage, pods, hugepages-<size> and extended resources (domain/name)"
	Capacity corev1.ResourceList `json:"capacity"`

	// ExecMode is how scripts reach the host.
	// +kubebuilder:default=Verified
	// +optional
	ExecMode ExecMode `json:"execMode,omitempty"`

	// Shim is the host's identity from enrolment, required in Verified.
	// +optional
	Shim *ShimIdentity `json:"shim,omitempty"`

	// Jumps are the jump hosts to the host, the first one first. Each is logged in to through the one before it, and
	// has a login and a pinned host key of its own.
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	// +optional
	Jumps []JumpHost `json:"jumps,omitempty"`

	// MaintenanceWindows are when the host is not to be claimed, beside those of its node classes. A host in use stays
	// in use.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	MaintenanceWindows []MaintenanceWindow `json:"maintenanceWindows,omitempty"`
}

// JumpHost is an sshd that a connection is forwarded by.
type JumpHost struct {
	// Address is the IP address or DNS name that is dialled, from the hop before it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isIP(self) ? ip.isCanonical(self) : self.matches('^fe80::[0-9a-f:]+%[A-Za-z0-9._-]{1,15}$') ? isIP(self.split('%')[0]) && ip.isCanonical(self.split('%')[0]) : self.matches('^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?[.])*[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",message="address must be an IP address (link-local with its zone) or a DNS name, in lower case and canonical form"
	Address string `json:"address"`

	// Port is the port of its sshd.
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// User is the login user.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9._@-]*$`
	User string `json:"user"`

	// SSHKeySecretRef names a Secret like that of a host. knownHost is required: a jump host is never pinned by first
	// use.
	SSHKeySecretRef SecretRef `json:"sshKeySecretRef"`
}

// MaintenanceWindow opens at every time of a schedule and stays open for a duration.
type MaintenanceWindow struct {
	// Schedule is a cron expression of five fields (minute, hour, day of month, month, day of week), or @daily and its
	// like.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^(@(annually|yearly|monthly|weekly|daily|midnight|hourly)|[^ @]+( +[^ ]+){4})$`
	Schedule string `json:"schedule"`

	// Duration is how long it stays open.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="duration must be between 1m and 168h"
	Duration metav1.Duration `json:"duration"`

	// TimeZone of the schedule, a name of the IANA database.
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_+/-]*$`
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}

// SecretRef names a Secret in the pool namespace.
type SecretRef struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
}

// ShimIdentity is how a host proves that it is the enrolled one.
type ShimIdentity struct {
	// HostID is the random id that the shim made at enrolment.
	// +kubebuilder:validation:MinLength=16
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]+$`
	HostID string `json:"hostID"`
	// ReceiptKey is the public key that signs the host's hellos and receipts: "ed25519:" or
	// "ecdsa-p256-sha256:" and the base64 of its PKIX DER.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(ed25519:MCowBQYDK2VwAyEA[A-Za-z0-9+/]{43}=|ecdsa-p256-sha256:MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE[A-Za-z0-9+/]{86}==)$`
	ReceiptKey string `json:"receiptKey"`
}

// HostState is where a host is in its life.
// +kubebuilder:validation:Enum=Pending;Available;Claimed;InUse;Unhealthy;Leaving;Maintenance
type HostState string

// The states of a host. Only an Available, unannotated, unclaimed host can be claimed.
const (
	// HostPending awaits its first probe, or one after a stale claim or maintenance.
	HostPending HostState = "Pending"
	// HostAvailable answered its last probe and is free.
	HostAvailable HostState = "Available"
	// HostClaimed belongs to a NodeClaim whose node is not Ready yet.
	HostClaimed HostState = "Claimed"
	// HostInUse backs a Ready node.
	HostInUse HostState = "InUse"
	// HostUnhealthy failed a probe, a join for good or a leave.
	HostUnhealthy HostState = "Unhealthy"
	// HostLeaving is fenced against claims while the zombie guard runs leave.
	HostLeaving HostState = "Leaving"
	// HostMaintenance is parked by the operator's annotation.
	HostMaintenance HostState = "Maintenance"
)

// ClaimRef is the lock on a host: the NodeClaim that it belongs to.
type ClaimRef struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID tells the NodeClaim from an earlier one of the same name.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid"`
}

// HostTrust is what a host said of itself in the last hello that verified: what it believes and what it is.
type HostTrust struct {
	// RootVersion is the version of its root document.
	// +kubebuilder:validation:Minimum=0
	RootVersion int64 `json:"rootVersion"`
	// RootDigest is the digest of its root document: two copies of a trust folder can make different ones of one version.
	// It is empty in what a controller wrote that did not keep it.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	RootDigest string `json:"rootDigest,omitempty"`
	// AllowlistVersion is the version of its allowlist, 0 while it has none that it believes.
	// +kubebuilder:validation:Minimum=0
	// +optional
	AllowlistVersion int64 `json:"allowlistVersion,omitempty"`
	// AllowlistDigest is the digest of its allowlist, empty as RootDigest and while it has none.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	AllowlistDigest string `json:"allowlistDigest,omitempty"`
	// ShimVersion is the version of its kpssh-shim.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ShimVersion string `json:"shimVersion,omitempty"`
	// Findings are what its doctor found, sorted; nothing when it is hardened as it should be.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Findings []string `json:"findings,omitempty"`
	// ObservedTime is when it said so.
	// +optional
	ObservedTime *metav1.Time `json:"observedTime,omitempty"`
}

// HostFailures is the memory of what went wrong on a host since something last went well.
type HostFailures struct {
	// Count is how many phases in a row failed for a reason of the host.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Count int32 `json:"count,omitempty"`
	// Reason and Message are those of the last one.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=1100
	// +optional
	Message string `json:"message,omitempty"`
	// LastTime is when the last one was.
	// +optional
	LastTime *metav1.Time `json:"lastTime,omitempty"`
	// RetryTime is when the host is offered again; until then it is in quarantine or backs off.
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`
	// Generation is metadata.generation at the last one: an edit of the spec forgives.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// HostCleanup is the debt of a leave: a claim was given up while the host could not be left. It is settled before the
// host can be claimed again.
type HostCleanup struct {
	// ClaimRef is the NodeClaim that held the host.
	// +optional
	ClaimRef *ClaimRef `json:"claimRef,omitempty"`
	// Reason and Message say why the host could not be left then.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=1100
	// +optional
	Message string `json:"message,omitempty"`
	// Since is when the claim was given up.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Attempts is how many leaves were tried since.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
}

// HostIdentity is what a machine says of itself that tells it from another one, and one boot from the next.
type HostIdentity struct {
	// MachineID is that of systemd. Two hosts with one are clones.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	MachineID string `json:"machineID,omitempty"`
	// BootID changes at every boot.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	BootID string `json:"bootID,omitempty"`
	// Hostname of the machine.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// Generation is metadata.generation, and Reset the value of the reset annotation, when the machine id was taken:
	// with another of either, another machine id is taken in its place.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Reset string `json:"reset,omitempty"`
}

// PreflightFinding is a check that the host does not pass.
type PreflightFinding struct {
	// Check is its name.
	// +kubebuilder:validation:MaxLength=64
	Check string `json:"check"`
	// Message says what was found and how to mend it.
	// +kubebuilder:validation:MaxLength=1100
	// +optional
	Message string `json:"message,omitempty"`
	// Advisory says that it keeps the host from nothing.
	// +optional
	Advisory bool `json:"advisory,omitempty"`
}

// SSHHostStatus is what the controller knows about a host. pkg/pool is its only writer, and every
// write is a compare-and-swap on resourceVersion.
type SSHHostStatus struct {
	// State is where the host is in its life.
	// +optional
	State HostState `json:"state,omitempty"`
	// Conditions say why; Ready is true while the host is claimable or in use.
	// +optional
	Conditions []status.Condition `json:"conditions,omitempty"`
	// ClaimRef is the NodeClaim that holds the host.
	// +optional
	ClaimRef *ClaimRef `json:"claimRef,omitempty"`
	// Fence is the highest fence issued on this host: each claim raises it in the write that sets
	// claimRef, and the host refuses an order with a lower one. It never goes back.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Fence int64 `json:"fence,omitempty"`
	// InstalledProfile is the "<profile>@<version>" whose install ran last.
	// +optional
	InstalledProfile string `json:"installedProfile,omitempty"`
	// BootstrapTokenID is the id of the token minted for the join in flight.
	// +optional
	BootstrapTokenID string `json:"bootstrapTokenID,omitempty"`
	// ProviderID is the node's provider id while the host is claimed.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// HostKeyFingerprint is the SSH host key pinned on first use (SHA256:…).
	// +optional
	HostKeyFingerprint string `json:"hostKeyFingerprint,omitempty"`
	// ObservedCapacity is cpu and memory as the last probe found them.
	// +optional
	ObservedCapacity corev1.ResourceList `json:"observedCapacity,omitempty"`
	// ObservedArch is the architecture in Kubernetes' spelling (amd64, arm64).
	// +optional
	ObservedArch string `json:"observedArch,omitempty"`
	// ObservedGeneration is the metadata.generation that the last probe saw.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// ObservedPageSize is the page size of the kernel in bytes.
	// +optional
	ObservedPageSize int64 `json:"observedPageSize,omitempty"`
	// Identity is what the machine was at the last probe.
	// +optional
	Identity *HostIdentity `json:"identity,omitempty"`
	// Preflight are the checks that the last probe found failing, those too that a class ignores.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=check
	// +optional
	Preflight []PreflightFinding `json:"preflight,omitempty"`
	// Failures is what went wrong since something last went well.
	// +optional
	Failures *HostFailures `json:"failures,omitempty"`
	// ObservedReset is the value of the reset annotation that was heeded last.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	ObservedReset string `json:"observedReset,omitempty"`
	// Cleanup is the leave that is owed to the host.
	// +optional
	Cleanup *HostCleanup `json:"cleanup,omitempty"`
	// Trust is what the host believes by its own signed word.
	// +optional
	Trust *HostTrust `json:"trust,omitempty"`
	// LastProbeTime is when the last probe ended, whatever its outcome.
	// +optional
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`
	// LastProbeError is the error of the last probe, empty when it succeeded.
	// +optional
	LastProbeError string `json:"lastProbeError,omitempty"`
}

// SSHHost is a machine of the pool.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=sshhosts,scope=Namespaced,shortName=sshh,categories=karpenter
// +kubebuilder:printcolumn:name="Address",type="string",JSONPath=".spec.address"
// +kubebuilder:printcolumn:name="Class",type="string",JSONPath=".metadata.labels.karpenter\\.dklesev\\.github\\.io/host-class"
// +kubebuilder:printcolumn:name="State",type="string",JSONPath=".status.state"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Claim",type="string",JSONPath=".status.claimRef.name"
// +kubebuilder:printcolumn:name="Installed",type="string",JSONPath=".status.installedProfile"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.claimRef) || (has(self.spec.shim) == has(oldSelf.spec.shim) && (!has(self.spec.shim) || self.spec.shim == oldSelf.spec.shim))",message="spec.shim is immutable while the host is claimed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.claimRef) || self.spec.execMode == oldSelf.spec.execMode",message="spec.execMode is immutable while the host is claimed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.fence) || (has(self.status) && has(self.status.fence) && self.status.fence >= oldSelf.status.fence)",message="status.fence must not decrease"
type SSHHost struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SSHHostSpec   `json:"spec"`
	Status SSHHostStatus `json:"status,omitempty"`
}

// SSHHostList is a list of hosts.
// +kubebuilder:object:root=true
type SSHHostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SSHHost `json:"items"`
}

// StaticProviderID is the provider id of the host's node unless the class adopts the node's own.
func (h *SSHHost) StaticProviderID() string {
	return apis.ProviderIDPrefix + h.Namespace + "/" + h.Name
}

// Class is the host's class.
func (h *SSHHost) Class() string {
	if class := h.Labels[apis.LabelHostClass]; class != "" {
		return class
	}
	return apis.DefaultHostClass
}

// InMaintenance says whether the operator parked the host.
func (h *SSHHost) InMaintenance() bool {
	_, ok := h.Annotations[apis.AnnotationMaintenance]
	return ok
}

// Raw says whether scripts run without the shim.
func (h *SSHHost) Raw() bool { return h.Spec.ExecMode == ExecModeRaw }

// LoginUser is the user that SSH logs in as.
func (h *SSHHost) LoginUser() string {
	switch {
	case h.Spec.User != "":
		return h.Spec.User
	case h.Raw():
		return "root"
	default:
		return "kpssh"
	}
}

// SSHPort is the port of sshd, also for an object that never saw admission's default.
func (h *SSHHost) SSHPort() int {
	if h.Spec.Port == 0 {
		return 22
	}
	return int(h.Spec.Port)
}

// AdvertisedAddress is the IP address for --node-ip; a DNS name when the operator gave no other.
func (h *SSHHost) AdvertisedAddress() string {
	if h.Spec.NodeAddress != "" {
		return h.Spec.NodeAddress
	}
	return h.Spec.Address
}

// GetConditions implements status.Object.
func (h *SSHHost) GetConditions() []status.Condition { return h.Status.Conditions }

// SetConditions implements status.Object.
func (h *SSHHost) SetConditions(conditions []status.Condition) { h.Status.Conditions = conditions }

// StatusConditions implements status.Object. Ready depends on no other condition: the pool sets it.
func (h *SSHHost) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions().For(h, opts...)
}
