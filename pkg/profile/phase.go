package profile

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Phase names a script of a profile.
type Phase string

// The phases. The controller never runs Uninstall.
const (
	Install   Phase = "install"
	Join      Phase = "join"
	Leave     Phase = "leave"
	Uninstall Phase = "uninstall"
)

// Phases are all phases in the order of a host's life.
func Phases() []Phase { return []Phase{Install, Join, Leave, Uninstall} }

// MaxTimeout is the longest time-out that a host accepts.
const MaxTimeout = 24 * time.Hour

// DefaultTimeout is how long a phase may take when its profile does not say.
func DefaultTimeout(phase Phase) time.Duration {
	switch phase {
	case Join:
		return 5 * time.Minute
	case Leave:
		return 3 * time.Minute
	default:
		return 10 * time.Minute
	}
}

var timeoutPattern = regexp.MustCompile(`^([0-9]+(s|m|h))+$`)

// Timeout reads a profile's time-out for a phase; empty gives the default.
func Timeout(phase Phase, text string) (time.Duration, error) {
	if text == "" {
		return DefaultTimeout(phase), nil
	}
	if !timeoutPattern.MatchString(text) {
		return 0, fmt.Errorf("time-out of %s: %.40q is not whole hours, minutes and seconds such as 1h30m", phase, text)
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > MaxTimeout {
		return 0, fmt.Errorf("time-out of %s: %.40q is not between 1s and %s", phase, text, MaxTimeout)
	}
	return d, nil
}

// DefaultVersion is the version of a profile that names none.
const DefaultVersion = "1"

// Marker is what an installed host carries: "<profile>@<version>".
func Marker(name, version string) string {
	if version == "" {
		version = DefaultVersion
	}
	return name + "@" + version
}

// ParseMarker takes a marker apart; ok is false for anything that Marker did not write.
func ParseMarker(marker string) (name, version string, ok bool) {
	name, version, ok = strings.Cut(marker, "@")
	return name, version, ok && name != "" && version != "" && !strings.Contains(version, "@")
}
