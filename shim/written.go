package shim

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kpssh/karpenter-provider-ssh/packaging"
)

// marker begins each file that install writes beside those of others (drop-ins, units, rules). The digest of all that
// follows the line tells a file that any version of the shim wrote from one that somebody changed or put there, a mask
// for one, which neither install nor uninstall touches. packaging/deb/postrm reads it too.
const marker = "# Written by kpssh-shim install, which leaves it alone once the rest of it is another than sha256:%x\n"

func marked(text []byte) []byte {
	return append(fmt.Appendf(nil, marker, sha256.Sum256(text)), text...)
}

// packagedText is the text of a file of packaging/host.
func packagedText(name string) ([]byte, error) {
	return packaging.Host.ReadFile("host/" + name)
}

// wrote tells whether install wrote the file at a path, whose text is that of a name in packaging/host. Where there is
// none the error is fs.ErrNotExist. Links are never ours.
func wrote(name, path string) (bool, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	if !st.Mode().IsRegular() {
		return false, nil
	}
	have, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	// Shims before the marker wrote the text alone.
	plain, err := packagedText(name)
	if err != nil {
		return false, err
	}
	line := bytes.IndexByte(have, '\n') + 1
	return bytes.Equal(have, plain) || line > 0 && bytes.Equal(have, marked(have[line:])), nil
}

// foreign tells whether somebody else than install put something in a file's place.
func foreign(name, path string) (bool, error) {
	mine, err := wrote(name, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return !mine && err == nil, err
}

// target is the file that is written for a path: of a link, what it leads to, so that it stays a link. Only root may be
// able to change that file, or somebody else would have root write where and over what they choose.
func target(path string) (string, error) {
	st, err := os.Lstat(path)
	if err != nil || st.Mode()&fs.ModeSymlink == 0 {
		return path, nil
	}
	to, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("following a link: %w", err)
	}
	if err := guarded(to, os.Geteuid()); err != nil {
		return "", fmt.Errorf("%q is a link to what others than root can change, and is not written to: %w", path, err)
	}
	return to, nil
}
