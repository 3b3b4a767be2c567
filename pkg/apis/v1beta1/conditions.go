package v1beta1

import "github.com/awslabs/operatorpkg/status"

// ConditionReady is on every kind.
const ConditionReady = status.ConditionReady

// Conditions of SSHHost beside Ready.
const (
	// ConditionLeaveRequested is True from the moment that the NodeClaim asked to be rid of the host
	// until leave has ended.
	ConditionLeaveRequested = "LeaveRequested"
	// ConditionLeaveBlocked is True with the reason while a leave that was requested waits for something.
	ConditionLeaveBlocked = "LeaveBlocked"
	// ConditionTrustCurrent is False when the host does not have the cluster's newest root document and
	// allowlist although it was reached, with the reason.
	ConditionTrustCurrent = "TrustCurrent"
	// ConditionCapacityMatches is False when the probe found less than spec.capacity.
	ConditionCapacityMatches = "CapacityMatches"
	// ConditionClean is False with what was found when a verification pass found something of a membership on a
	// host that should have none.
	ConditionClean = "Clean"
	// ConditionStale is True, and there only then, while probes cannot look at the host, with why: what its status knows
	// of it was found before this condition's time.
	ConditionStale = "Stale"
	// ConditionQuarantined is True while a host that failed again and again is not offered.
	ConditionQuarantined = "Quarantined"
	// ConditionPreflight is False while a check of the probe's facts fails.
	ConditionPreflight = "Preflight"
	// ConditionPreparing is True while install runs ahead of any claim, with the "<profile>@<version>" as its message;
	// afterwards it is False with how that ended.
	ConditionPreparing = "Preparing"
)

// Reasons of SSHHost's Ready condition.
const (
	ReasonProbed           = "Probed"
	ReasonNotProbed        = "NotProbed"
	ReasonClaimed          = "Claimed"
	ReasonJoined           = "Joined"
	ReasonReleased         = "Released"
	ReasonStaleClaim       = "StaleClaim"
	ReasonClaimRestored    = "ClaimRestored"
	ReasonLeaving          = "Leaving"
	ReasonMaintenance      = "Maintenance"
	ReasonUnreachable      = "Unreachable"
	ReasonAuthRejected     = "AuthRejected"
	ReasonHostKeyChanged   = "HostKeyChanged"
	ReasonHostNotEnrolled  = "HostNotEnrolled"
	ReasonShimUntrusted    = "ShimUntrusted"
	ReasonHostNotHardened  = "HostNotHardened"
	ReasonShimTooOld       = "ShimTooOld"
	ReasonRawExecDisabled  = "RawExecDisabled"
	ReasonSSHKeyMissing    = "SSHKeyMissing"
	ReasonSSHKeyInvalid    = "SSHKeyInvalid"
	ReasonForeignKubelet   = "ForeignKubelet"
	ReasonInstallFailed    = "InstallFailed"
	ReasonJoinFailed       = "JoinFailed"
	ReasonLeaveFailed      = "LeaveFailed"
	ReasonZombieLeft       = "ZombieLeft"
	ReasonZombieFailed     = "ZombieLeaveFailed"
	ReasonCapacityDrift    = "CapacityDrift"
	ReasonCapacityAsStated = "CapacityAsStated"
	// ReasonLeavePending: the claim was given up while the host could not be reached; leave runs when it can.
	ReasonLeavePending = "LeavePending"
	// ReasonNotClean: something of a membership was found on the host after leave.
	ReasonNotClean = "NotClean"
	// ReasonQuarantined: the host failed again and again.
	ReasonQuarantined = "Quarantined"
	// ReasonPreflightFailed: a check of the probe's facts fails.
	ReasonPreflightFailed = "PreflightFailed"
	// ReasonForeignMember: the host is a member of another cluster, or a control plane.
	ReasonForeignMember = "ForeignMember"
	// ReasonIdentityChanged: the machine is another one than before, or a clone of another host.
	ReasonIdentityChanged = "IdentityChanged"
	// ReasonPrepared: install ran ahead of any claim, and left nothing behind but what it installed.
	ReasonPrepared = "Prepared"
	// ReasonMaintenanceWindow: a maintenance window is open. ReasonMaintenanceWindowInvalid, also of SSHNodeClass: one
	// cannot be read, so that it is taken to be open.
	ReasonMaintenanceWindow        = "MaintenanceWindow"
	ReasonMaintenanceWindowInvalid = "MaintenanceWindowInvalid"
	// ReasonKeyEncrypted and ReasonWrongPassphrase: the login key needs a passphrase, or another one.
	ReasonKeyEncrypted    = "KeyEncrypted"
	ReasonWrongPassphrase = "WrongPassphrase"
	// ReasonSSHCertificateInvalid and ReasonSSHCertificateExpired: the user certificate is none, for another key, or not
	// valid now.
	ReasonSSHCertificateInvalid = "SSHCertificateInvalid"
	ReasonSSHCertificateExpired = "SSHCertificateExpired"
)

// Conditions of SSHNodeClass beside Ready. They are there only while there is something to say.
const (
	// ConditionLoginKeyCurrent is False with the hosts that took the retiring login key only, Unknown with those that
	// were not logged in to since the controller started, and True when the retiring key can go.
	ConditionLoginKeyCurrent = "LoginKeyCurrent"
	// ConditionSlowLogin is True with the hosts whose sshd takes long to let anybody in.
	ConditionSlowLogin = "SlowLogin"
)

// Reasons of the conditions beside Ready.
const (
	ReasonRetiringKeyInUse = "RetiringKeyInUse"
	ReasonHostsNotSeen     = "HostsNotSeen"
	ReasonKeyRotated       = "KeyRotated"
	ReasonSlowLogin        = "SlowLogin"
)

// Reasons of SSHNodeClass's Ready condition, in the order in which they are looked for; all but the
// last three are faults of configuration and never of a host.
const (
	ReasonProfileNotFound    = "ProfileNotFound"
	ReasonProfileInvalid     = "ProfileInvalid"
	ReasonSelectorError      = "SelectorError"
	ReasonJoinSecretNotFound = "JoinSecretNotFound"
	ReasonJoinSecretInvalid  = "JoinSecretInvalid"
	ReasonVarsInvalid        = "VarsInvalid"
	ReasonTrustNotFound      = "TrustNotFound"
	ReasonTrustInvalid       = "TrustInvalid"
	ReasonTrustExpired       = "TrustExpired"
	ReasonDispatchKeyMissing = "DispatchKeyMissing"
	ReasonDispatchKeyUnknown = "DispatchKeyUnknown"
	ReasonScriptNotSigned    = "ScriptNotSigned"
	ReasonClusterInfoMissing = "ClusterInfoMissing"
	ReasonSSHKeyNotFound     = "SSHKeyNotFound"
	ReasonNoHosts            = "NoHosts"
	ReasonReady              = "Ready"
)

// Reasons of SSHJoinProfile's Ready condition beside ReasonProfileInvalid.
const (
	ReasonValid = "Valid"
)

// Drift reasons as NodeClaims show them.
const (
	DriftProfile   = "ProfileDrift"
	DriftNodeClass = "NodeClassDrift"
)

// Events. Those on NodeClaims first.
const (
	EventJoinFailed   = "JoinFailed"
	EventAdoptFailed  = "AdoptFailed"
	EventCreateFailed = "CreateFailed"
	EventNodeVanished = "NodeVanished"

	EventCapacityDrift     = "CapacityDrift"
	EventZombieKubelet     = "ZombieKubelet"
	EventZombieLeft        = "ZombieLeft"
	EventZombieLeaveFailed = "ZombieLeaveFailed"
	EventForeignKubelet    = "ForeignKubelet"
	EventHostKeyChanged    = "HostKeyChanged"
	EventRunEnded          = "RunEnded"
	EventForeignMember     = "ForeignMember"
	EventClaimRestored     = "ClaimRestored"
	EventIdentityChanged   = "IdentityChanged"
	// EventNotClean says that something of a membership is on a host that should have none.
	EventNotClean      = "NotClean"
	EventPrepareFailed = "PrepareFailed"
	// EventCertificateRefused on a host says that its bootstrap token asked for a certificate that is not its node's.
	EventCertificateRefused = "CertificateRefused"
)

// ReplaceCondition puts next in the place of the condition of its type, and keeps the time of transition while the status
// stays; false when there is none of that type. It does not go through StatusConditions, which makes Ready True again
// whenever another condition is set.
func ReplaceCondition(conditions []status.Condition, next status.Condition) bool {
	for i := range conditions {
		old := &conditions[i]
		if old.Type != next.Type {
			continue
		}
		if old.Status == next.Status {
			next.LastTransitionTime = old.LastTransitionTime
		}
		*old = next
		return true
	}
	return false
}
