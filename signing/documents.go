package signing

import "time"

// Payload types of the five documents, one per role so that no document can be taken for another
// (and none for what a general attestation tool signs).
const (
	TypeRoot      = "application/vnd.kpssh.root.v1+json"
	TypeAllowlist = "application/vnd.kpssh.allowlist.v1+json"
	TypeHello     = "application/vnd.kpssh.hello.v1+json"
	TypeOrder     = "application/vnd.kpssh.order.v1+json"
	TypeReceipt   = "application/vnd.kpssh.receipt.v1+json"
)

// Phase names a script of a join profile.
type Phase string

// The phases of a host's membership. Uninstall is never ordered by the controller.
const (
	PhaseInstall   Phase = "install"
	PhaseJoin      Phase = "join"
	PhaseLeave     Phase = "leave"
	PhaseUninstall Phase = "uninstall"
)

// RoleKeys are the keys that may sign for a role and how many distinct ones must.
type RoleKeys struct {
	Keys      []Key `json:"keys"`
	Threshold int   `json:"threshold"`
}

// Root names the keys of every role. Version N+1 is accepted only when signed by the threshold of
// version N's root keys and of its own (TUF 5.3).
type Root struct {
	Version  int64     `json:"version"`
	Issued   time.Time `json:"issued"`
	Expires  time.Time `json:"expires"`
	Root     RoleKeys  `json:"root"`
	Author   RoleKeys  `json:"author"`
	Dispatch RoleKeys  `json:"dispatch"`
}

// Allowlist is what the author allows to run on hosts: rendered scripts by digest.
type Allowlist struct {
	Version int64           `json:"version"`
	Issued  time.Time       `json:"issued"`
	Expires time.Time       `json:"expires"`
	MinShim string          `json:"minShim,omitempty"`
	Scripts []AllowedScript `json:"scripts"`
}

// AllowedScript allows one rendered script in one phase of one profile version.
type AllowedScript struct {
	Profile    string      `json:"profile"`
	Version    string      `json:"version"`
	Phase      Phase       `json:"phase"`
	Digest     string      `json:"digest"`
	Parameters []Parameter `json:"parameters"`
	// GraceSeconds lets this script run that long after the allowlist or root expired, so that a
	// host can still leave. Only ever used for leave.
	GraceSeconds int64 `json:"graceSeconds,omitempty"`
}

// Parameter is the schema of one KPSSH_* variable of a script.
type Parameter struct {
	Name      string    `json:"name"`
	Type      ParamType `json:"type"`
	Pattern   string    `json:"pattern,omitempty"`
	Enum      []string  `json:"enum,omitempty"`
	MaxLength int       `json:"maxLength,omitempty"`
	Optional  bool      `json:"optional,omitempty"`
	Secret    bool      `json:"secret,omitempty"`
	// Pins, when not empty, are the only values that an order may carry, compared byte for byte;
	// for TypeCABundle they are "sha256:<hex>" digests of the subject public key info of every
	// certificate in the bundle.
	Pins []string `json:"pins,omitempty"`
}

// ParamType selects the built-in checks of a parameter.
type ParamType string

// Parameter types. Every type refuses NUL, control characters and invalid UTF-8.
const (
	ParamString   ParamType = "string"
	ParamEndpoint ParamType = "endpoint" // https URL, host and optional port
	ParamCABundle ParamType = "caBundle" // base64 of PEM certificates
	ParamIP       ParamType = "ip"
	ParamHost     ParamType = "host" // IP or DNS name
	ParamNodeName ParamType = "nodeName"
	ParamURI      ParamType = "uri"
	ParamLabels   ParamType = "labels" // k=v,…
	ParamTaints   ParamType = "taints" // key[=value]:effect,…
	ParamToken    ParamType = "token"  // Kubernetes bootstrap token
)

// Hello is what a host says first in every session. Challenge lives only in the process that
// made it, so that an order can be used only in the session that it was made for.
type Hello struct {
	Protocol    int         `json:"protocol"`
	ShimVersion string      `json:"shimVersion"`
	ShimDigest  string      `json:"shimDigest"`
	HostID      string      `json:"hostID"`
	BootID      string      `json:"bootID"`
	Challenge   []byte      `json:"challenge"`
	Root        DocumentRef `json:"root"`
	Allowlist   DocumentRef `json:"allowlist"`
	Claim       Claim       `json:"claim"`
	LastRun     *RunRef     `json:"lastRun,omitempty"`
	// Scripts are the digests of script bodies that the host keeps, so that a warm order needs none.
	Scripts     []string  `json:"scripts"`
	Clock       time.Time `json:"clock"`
	ClockSynced bool      `json:"clockSynced"`
	// Findings are the doctor's findings, names of a closed list, sorted.
	Findings []string `json:"findings"`
}

// DocumentRef is a document's version and the digest of its payload; zero when the host has none.
type DocumentRef struct {
	Version int64  `json:"version"`
	Digest  string `json:"digest"`
}

// Claim is the membership that a host holds: the id that orders name it by (empty when free) and the
// highest fence it has seen (kept when it becomes free).
type Claim struct {
	UID   string `json:"uid"`
	Fence int64  `json:"fence"`
}

// RunState is how far a run has come.
type RunState string

// Run states. A run whose boot is gone, or whose process is gone without a finish, is interrupted.
const (
	RunStarted     RunState = "started"
	RunFinished    RunState = "finished"
	RunInterrupted RunState = "interrupted"
)

// RunRef names the last run of a host.
type RunRef struct {
	Order    string   `json:"order"`
	Claim    string   `json:"claim"`
	Profile  string   `json:"profile"`
	Version  string   `json:"version"`
	Phase    Phase    `json:"phase"`
	Script   string   `json:"script"`
	BootID   string   `json:"bootID"`
	State    RunState `json:"state"`
	Outcome  Outcome  `json:"outcome,omitempty"`
	Deadline int64    `json:"deadlineSeconds"`
}

// Order orders one run of one allowed script on one host.
type Order struct {
	HostID    string `json:"hostID"`
	Challenge []byte `json:"challenge"`
	Allowlist string `json:"allowlist"`
	Profile   string `json:"profile"`
	Version   string `json:"version"`
	Phase     Phase  `json:"phase"`
	Script    string `json:"script"`
	Claim     string `json:"claim"`
	Fence     int64  `json:"fence"`
	// Parameters is the digest of the canonical parameters frame, which keeps an order within
	// what a KMS signs in one piece (4096 bytes) whatever a class's variables hold.
	Parameters string `json:"parameters"`
	// Secrets maps a secret's name to Commitment(challenge, name, value).
	Secrets        map[string]string `json:"secrets"`
	TimeoutSeconds int64             `json:"timeoutSeconds"`
}

// Outcome is how a run ended.
type Outcome string

// Outcomes. Refused means that nothing ran; Reason says why.
const (
	OutcomeOK          Outcome = "ok"
	OutcomeFailed      Outcome = "failed"
	OutcomeTimeout     Outcome = "timeout"
	OutcomeInterrupted Outcome = "interrupted"
	OutcomeRefused     Outcome = "refused"
)

// Receipt is a host's signed answer to one order, bound to the order's payload and challenge.
type Receipt struct {
	HostID     string  `json:"hostID"`
	BootID     string  `json:"bootID"`
	Order      string  `json:"order"`
	Challenge  []byte  `json:"challenge"`
	Claim      string  `json:"claim"`
	Fence      int64   `json:"fence"`
	Profile    string  `json:"profile"`
	Version    string  `json:"version"`
	Phase      Phase   `json:"phase"`
	Script     string  `json:"script"`
	Parameters string  `json:"parameters"`
	Outcome    Outcome `json:"outcome"`
	// Reason is set when Outcome is refused.
	Reason Reason `json:"reason,omitempty"`
	// Running is the digest of the order that runs, when Reason is busy.
	Running  string    `json:"running,omitempty"`
	ExitCode int       `json:"exitCode"`
	Signal   string    `json:"signal,omitempty"`
	Output   OutputRef `json:"output"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	// DurationMillis is taken from a monotonic clock; Started and Finished are not.
	DurationMillis int64 `json:"durationMillis"`
}

// OutputRef describes what a script printed: bytes in all, and the digest of what was kept of it
// (head and tail when Truncated).
type OutputRef struct {
	Bytes     int64  `json:"bytes"`
	Kept      int64  `json:"kept"`
	Digest    string `json:"digest"`
	Truncated bool   `json:"truncated"`
}

// Reason is why something was refused: a closed list that logs, conditions and tests use.
type Reason string

// Reasons for a refusal.
const (
	ReasonMalformed        Reason = "malformed"
	ReasonTooLarge         Reason = "too-large"
	ReasonUntrusted        Reason = "untrusted"
	ReasonWrongType        Reason = "wrong-type"
	ReasonWrongHost        Reason = "wrong-host"
	ReasonStaleChallenge   Reason = "stale-challenge"
	ReasonRollback         Reason = "rollback"
	ReasonExpired          Reason = "expired"
	ReasonNotAllowed       Reason = "not-allowed"
	ReasonParam            Reason = "param"
	ReasonPin              Reason = "pin"
	ReasonStaleFence       Reason = "stale-fence"
	ReasonBusy             Reason = "busy"
	ReasonStateUnwritable  Reason = "state-unwritable"
	ReasonShimTooOld       Reason = "shim-too-old"
	ReasonSecretMismatch   Reason = "secret"
	ReasonUnknownRun       Reason = "unknown-run"
	ReasonNotEnrolled      Reason = "not-enrolled"
	ReasonNotRoot          Reason = "not-root"
	ReasonUnexpectedFrame  Reason = "unexpected-frame"
	ReasonUnsupportedProto Reason = "unsupported-protocol"
)
