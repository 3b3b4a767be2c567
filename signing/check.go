package signing

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of the parts of documents.
const (
	// ChallengeSize is the length of a session's challenge in bytes.
	ChallengeSize = 32

	maxName       = 64
	maxScripts    = 1024
	maxParameters = 128
	maxSecrets    = 32
	maxListed     = 64
	maxTimeout    = 24 * 60 * 60
	maxGrace      = 366 * 24 * 60 * 60
	maxReason     = 64
)

func (r *Root) check() error {
	if err := checkIssue(r.Version, r.Issued, r.Expires); err != nil {
		return err
	}
	for _, role := range []struct {
		name string
		keys RoleKeys
	}{{"root", r.Root}, {"author", r.Author}, {"dispatch", r.Dispatch}} {
		if err := role.keys.check(role.name); err != nil {
			return err
		}
	}
	return nil
}

func (r RoleKeys) check(name string) error {
	if len(r.Keys) == 0 || len(r.Keys) > MaxKeys {
		return refuse(ReasonMalformed, "role %s has %d keys, not 1 to %d", name, len(r.Keys), MaxKeys)
	}
	if r.Threshold < 1 || r.Threshold > len(r.Keys) || r.Threshold > MaxSignatures {
		return refuse(ReasonMalformed, "role %s has threshold %d of %d keys", name, r.Threshold, len(r.Keys))
	}
	for i, k := range r.Keys {
		if err := k.check(); err != nil {
			return refuse(ReasonMalformed, "role %s, key %d: %v", name, i+1, err)
		}
		if contains(r.Keys[:i], k) {
			return refuse(ReasonMalformed, "role %s lists key %s twice", name, k.ID())
		}
	}
	return nil
}

func checkIssue(version int64, issued, expires time.Time) error {
	if version < 1 {
		return refuse(ReasonMalformed, "version is %d, versions start at 1", version)
	}
	if issued.IsZero() || !issued.Before(expires) {
		return refuse(ReasonMalformed, "document must be issued, and expire after that")
	}
	return nil
}

func (a *Allowlist) check() error {
	if err := checkIssue(a.Version, a.Issued, a.Expires); err != nil {
		return err
	}
	if !emptyOr(a.MinShim, isVersion) {
		return refuse(ReasonMalformed, "minShim %.80q is not a version", a.MinShim)
	}
	if len(a.Scripts) > maxScripts {
		return refuse(ReasonTooLarge, "allowlist has %d scripts, at most %d", len(a.Scripts), maxScripts)
	}
	type entry struct {
		profile, version string
		phase            Phase
		digest           string
	}
	seen := make(map[entry]bool, len(a.Scripts))
	patterns := make(map[string]bool)
	for i := range a.Scripts {
		s := &a.Scripts[i]
		if err := s.check(patterns); err != nil {
			return err
		}
		e := entry{s.Profile, s.Version, s.Phase, s.Digest}
		if seen[e] {
			return refuse(ReasonMalformed, "%s is listed twice", s.name())
		}
		seen[e] = true
	}
	return nil
}

func (s *AllowedScript) name() string {
	return strings.Join([]string{s.Profile, s.Version, string(s.Phase), s.Digest}, " ")
}

// check looks at one entry; patterns holds the patterns that have been found good.
func (s *AllowedScript) check(patterns map[string]bool) error {
	if err := checkScriptRef(s.Profile, s.Version, s.Phase, s.Digest); err != nil {
		return err
	}
	if s.GraceSeconds < 0 || s.GraceSeconds > maxGrace || s.GraceSeconds > 0 && s.Phase != PhaseLeave {
		return refuse(ReasonMalformed, "%s: grace of %d s, only leave has one and at most %d s", s.name(), s.GraceSeconds, maxGrace)
	}
	if len(s.Parameters) > maxParameters {
		return refuse(ReasonTooLarge, "%s has %d parameters, at most %d", s.name(), len(s.Parameters), maxParameters)
	}
	names := make(map[string]bool, len(s.Parameters))
	for i := range s.Parameters {
		p := &s.Parameters[i]
		if err := p.check(patterns); err != nil {
			return refuse(ReasonMalformed, "%s, parameter %.80q: %v", s.name(), p.Name, err)
		}
		if names[p.Name] {
			return refuse(ReasonMalformed, "%s lists parameter %s twice", s.name(), p.Name)
		}
		names[p.Name] = true
	}
	return nil
}

func checkScriptRef(profile, version string, phase Phase, digest string) error {
	switch {
	case !isName(profile):
		return refuse(ReasonMalformed, "profile %.80q is not a name", profile)
	case !isVersion(version):
		return refuse(ReasonMalformed, "version %.80q of profile %s is not a version", version, profile)
	case !isPhase(phase):
		return refuse(ReasonMalformed, "phase %.80q of profile %s is not known", phase, profile)
	case !isDigest(digest):
		return refuse(ReasonMalformed, "script digest %.80q of profile %s is not a digest", digest, profile)
	}
	return nil
}

func (o *Order) check() error {
	if err := checkScriptRef(o.Profile, o.Version, o.Phase, o.Script); err != nil {
		return err
	}
	if len(o.Secrets) > maxSecrets {
		return refuse(ReasonTooLarge, "order has %d secrets, at most %d", len(o.Secrets), maxSecrets)
	}
	for name, commitment := range o.Secrets {
		if !isParameterName(name) || !isDigest(commitment) {
			return refuse(ReasonMalformed, "secret %.80q is not a name with a commitment", name)
		}
	}
	return allHold(
		rule{isID(o.HostID), "hostID"},
		rule{len(o.Challenge) == ChallengeSize, "challenge"},
		rule{isDigest(o.Allowlist), "allowlist"},
		rule{emptyOr(o.Claim, isID), "claim"},
		rule{o.Fence >= 0, "fence"},
		rule{isDigest(o.Parameters), "parameters"},
		rule{o.TimeoutSeconds >= 1 && o.TimeoutSeconds <= maxTimeout, "timeoutSeconds"},
	)
}

func (h *Hello) check() error {
	if len(h.Scripts) > maxListed || len(h.Findings) > maxListed {
		return refuse(ReasonTooLarge, "hello lists %d scripts and %d findings, at most %d", len(h.Scripts), len(h.Findings), maxListed)
	}
	return cmp.Or(
		allHold(
			rule{h.Protocol >= 1, "protocol"},
			rule{isVersion(h.ShimVersion), "shimVersion"},
			rule{emptyOr(h.ShimDigest, isDigest), "shimDigest"},
			rule{isID(h.HostID), "hostID"},
			rule{emptyOr(h.BootID, isID), "bootID"},
			rule{len(h.Challenge) == ChallengeSize, "challenge"},
			rule{h.Root.valid(), "root"},
			rule{h.Allowlist.valid(), "allowlist"},
			rule{emptyOr(h.Claim.UID, isID) && h.Claim.Fence >= 0, "claim"},
			rule{!slices.ContainsFunc(h.Scripts, func(s string) bool { return !isDigest(s) }), "scripts"},
			rule{!slices.ContainsFunc(h.Findings, func(s string) bool { return !isName(s) }), "findings"},
		),
		h.LastRun.check(),
	)
}

func (d DocumentRef) valid() bool {
	return d == DocumentRef{} || d.Version >= 1 && isDigest(d.Digest)
}

func (r *RunRef) check() error {
	if r == nil {
		return nil
	}
	return cmp.Or(
		checkScriptRef(r.Profile, r.Version, r.Phase, r.Script),
		allHold(
			rule{isDigest(r.Order), "lastRun.order"},
			rule{emptyOr(r.Claim, isID), "lastRun.claim"},
			rule{emptyOr(r.BootID, isID), "lastRun.bootID"},
			rule{r.State == RunStarted || r.State == RunFinished || r.State == RunInterrupted, "lastRun.state"},
			rule{r.Outcome == "" || isOutcome(r.Outcome), "lastRun.outcome"},
			rule{r.Deadline >= 0 && r.Deadline <= maxTimeout, "lastRun.deadlineSeconds"},
		),
	)
}

// check lets a refusal leave out what the host never learned.
func (r *Receipt) check() error {
	refused := r.Outcome == OutcomeRefused
	if !refused || r.Profile != "" {
		if err := checkScriptRef(r.Profile, r.Version, r.Phase, r.Script); err != nil {
			return err
		}
	}
	return allHold(
		rule{isOutcome(r.Outcome), "outcome"},
		rule{refused == (r.Reason != "") && emptyOr(string(r.Reason), isName), "reason"},
		rule{isID(r.HostID), "hostID"},
		rule{emptyOr(r.BootID, isID), "bootID"},
		rule{isDigest(r.Order) || refused && r.Order == "", "order"},
		rule{len(r.Challenge) == ChallengeSize || refused && len(r.Challenge) == 0, "challenge"},
		rule{emptyOr(r.Claim, isID) && r.Fence >= 0, "claim"},
		rule{isDigest(r.Parameters) || refused && r.Parameters == "", "parameters"},
		rule{emptyOr(r.Running, isDigest), "running"},
		rule{emptyOr(r.Signal, isID), "signal"},
		rule{r.Output.valid(), "output"},
		rule{r.DurationMillis >= 0, "durationMillis"},
	)
}

func (o OutputRef) valid() bool {
	return o.Kept >= 0 && o.Kept <= o.Bytes && emptyOr(o.Digest, isDigest) && (o.Truncated == (o.Kept < o.Bytes))
}

// rule is one thing that must hold of a field.
type rule struct {
	holds bool
	field string
}

func allHold(rules ...rule) error {
	for _, r := range rules {
		if !r.holds {
			return refuse(ReasonMalformed, "field %s is missing or malformed", r.field)
		}
	}
	return nil
}

func isPhase(p Phase) bool {
	return p == PhaseInstall || p == PhaseJoin || p == PhaseLeave || p == PhaseUninstall
}

func isOutcome(o Outcome) bool {
	switch o {
	case OutcomeOK, OutcomeFailed, OutcomeTimeout, OutcomeInterrupted, OutcomeRefused:
		return true
	}
	return false
}

func emptyOr(s string, valid func(string) bool) bool { return s == "" || valid(s) }

// isName holds for names of profiles, reasons and findings: lower case words joined by "-" or ".".
func isName(s string) bool {
	return spelled(s, maxName, "abcdefghijklmnopqrstuvwxyz0123456789-.") && edges(s)
}

// isVersion holds for versions such as 1.2.0, v3-rc.1+build.
func isVersion(s string) bool {
	return spelled(s, maxName, alphanumeric+"-._+") && isAlphanumeric(s[0])
}

// isID holds for uids, host and boot ids and names of signals.
func isID(s string) bool { return spelled(s, 2*maxName, alphanumeric+"-._") }

// isParameterName holds for ^KPSSH_[A-Z0-9_]+$.
func isParameterName(s string) bool {
	rest, found := strings.CutPrefix(s, "KPSSH_")
	return found && spelled(rest, 2*maxName, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
}

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func isAlphanumeric(c byte) bool { return strings.IndexByte(alphanumeric, c) >= 0 }

func edges(s string) bool { return isAlphanumeric(s[0]) && isAlphanumeric(s[len(s)-1]) }

// spelled tells whether s is 1 to limit characters of an alphabet.
func spelled(s string, limit int, alphabet string) bool {
	return s != "" && len(s) <= limit && strings.Trim(s, alphabet) == ""
}

// isText holds for valid UTF-8 without NUL, control characters, and characters that are invisible
// or reorder what a reader sees.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.In(r, unicode.C, unicode.Zl, unicode.Zp)
	})
}
