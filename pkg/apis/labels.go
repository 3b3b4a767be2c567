// Package apis names the API group and every label, annotation, taint and finalizer that users and
// other programs see.
package apis

// Group is the API group of all kinds.
const Group = "karpenter.dklesev.github.io"

// DefaultPoolNamespace holds the SSHHosts and their Secrets unless POOL_NAMESPACE says otherwise.
const DefaultPoolNamespace = "kpssh-system"

// ProviderIDPrefix starts every Static provider id: ProviderIDPrefix + namespace + "/" + host.
const ProviderIDPrefix = "kpssh://"

// Labels, annotations, taints and finalizers.
const (
	// LabelHostClass on an SSHHost names its class, one instance type per class.
	LabelHostClass = Group + "/host-class"
	// DefaultHostClass is the class of a host without LabelHostClass.
	DefaultHostClass = "default"

	// LabelManaged is carried by NodePool templates, so that the controller can keep off the nodes
	// that it manages itself.
	LabelManaged = Group + "/managed"
	// TaintPool keeps the workloads of a shared cluster off pool nodes unless they opt in (NoSchedule).
	TaintPool = Group + "/pool"

	// AnnotationMaintenance on an SSHHost parks it; presence counts, the value is ignored.
	AnnotationMaintenance = Group + "/maintenance"

	// AnnotationReset on an SSHHost forgets its failures and tries it again at once, each time that its value is
	// another one.
	AnnotationReset = Group + "/reset"

	// AnnotationAbandon on an SSHHost says that its machine is gone for good: the SSHHost may be deleted although its host
	// is a member or is owed a leave. Presence counts, the value is ignored.
	AnnotationAbandon = Group + "/abandon"

	// LabelPageSize on a node is the page size of its kernel in bytes.
	LabelPageSize = Group + "/page-size"

	// AnnotationNodeClassHash on a NodeClaim is SSHNodeClass.Hash at its creation.
	AnnotationNodeClassHash = Group + "/nodeclass-hash"
	// AnnotationNodeClassHashVersion is the NodeClassHashVersion that the hash was made with; hashes
	// of different versions are never compared.
	AnnotationNodeClassHashVersion = Group + "/nodeclass-hash-version"

	// FinalizerTermination holds an SSHNodeClass while NodeClaims refer to it.
	FinalizerTermination = Group + "/termination"

	// BootstrapGroup is the only extra group of a bootstrap token that we mint.
	BootstrapGroup = "system:bootstrappers:kpssh"
)
