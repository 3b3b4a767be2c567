package enroll

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/adminlogin"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// uploadScript writes stdin into a new file in a folder that only root can write, where binaries may
// run, and prints its name. A connection that is cut in between leaves no binary behind that looks whole.
const uploadScript = `set -eu
umask 022
mkdir -p /usr/libexec/kpssh
f=$(mktemp /usr/libexec/kpssh/.upload.XXXXXX)
trap 'rm -f "$f"' EXIT
cat >"$f"
[ "$(wc -c <"$f")" -eq %d ] || { echo 'the upload was cut short' >&2; exit 1; }
chmod 0755 "$f"
trap - EXIT
echo "$f"`

var uploadedPattern = regexp.MustCompile(`^/usr/libexec/kpssh/\.upload\.[A-Za-z0-9]{6}$`)

// trustPath is where an enrolled host keeps the root that it believes.
const trustPath = "/var/lib/kpssh/root.json"

// CheckTrust looks, before anything is changed, whether a host is enrolled already under a root that is
// none of ours: installing would take the login from a controller that is in charge of it.
func CheckTrust(ctx context.Context, root *adminlogin.Root, roots []string) error {
	held, err := root.Run(ctx, "if [ -e "+trustPath+" ]; then cat "+trustPath+"; fi", nil)
	if err != nil {
		return fmt.Errorf("looking for an earlier enrolment: %w", err)
	}
	if i := bytes.IndexByte(held, '{'); i < 0 {
		return nil
	} else if i > 0 {
		held = held[i:]
	}
	found, err := signing.OpenFirstRoot(held)
	if err != nil {
		return fmt.Errorf("looking for an earlier enrolment: %w", err)
	}
	digest, err := signing.PayloadDigest(held)
	if err != nil {
		return fmt.Errorf("looking for an earlier enrolment: %w", err)
	}
	if !slices.Contains(roots, digest) {
		return otherRoot(found.Version)
	}
	return nil
}

// Upload puts the shim on a host, under a name that lasts until [Install].
func Upload(ctx context.Context, root *adminlogin.Root, binary []byte) (path string, err error) {
	out, err := root.Run(ctx, fmt.Sprintf(uploadScript, len(binary)), binary)
	if err != nil {
		return "", fmt.Errorf("uploading kpssh-shim: %w", err)
	}
	path = lastLine(out)
	if !uploadedPattern.MatchString(path) {
		return "", fmt.Errorf("uploading kpssh-shim: the host answers %.200q", path)
	}
	return path, nil
}

// Install has a shim that was uploaded, or the packaged one when uploaded is empty, set the host up: it
// becomes the only thing that the SSH key can reach, and the host gets its root of trust.
func Install(ctx context.Context, root *adminlogin.Root, uploaded, authorizedKey string, rootDocument []byte) error {
	command := fmt.Sprintf("install --authorized-key %s --root -", adminlogin.Quote(authorizedKey))
	if uploaded == "" {
		command = wire.ShimPath + " " + command
	} else {
		command = fmt.Sprintf("trap 'rm -f %[1]s' EXIT; %[1]s %[2]s", uploaded, command)
	}
	if _, err := root.Run(ctx, command, rootDocument); err != nil {
		return fmt.Errorf("installing kpssh-shim: %w", err)
	}
	return nil
}

// Identify has the host make its identity, or say again which it has.
func Identify(ctx context.Context, root *adminlogin.Root, resetTrust bool) (*wire.Statement, error) {
	command := wire.ShimPath + " enroll --json"
	if resetTrust {
		command += " --reset-trust"
	}
	out, err := root.Run(ctx, command, nil)
	if err != nil {
		return nil, fmt.Errorf("enrolling: %w", err)
	}
	// What a chatty profile prints before it is not part of the answer.
	if i := bytes.IndexByte(out, '{'); i > 0 {
		out = out[i:]
	}
	var st wire.Statement
	decoder := json.NewDecoder(bytes.NewReader(out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&st); err != nil {
		return nil, fmt.Errorf("enrolling: reading the host's statement: %w", err)
	}
	return &st, nil
}

// Doctor is what the host's doctor says about its findings, for people.
func Doctor(ctx context.Context, root *adminlogin.Root) string {
	out, _ := root.Run(ctx, wire.ShimPath+" doctor", nil) // it exits with 1 when it has findings
	return string(out)
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
