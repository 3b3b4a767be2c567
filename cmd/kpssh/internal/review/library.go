package review

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Library finds the texts of scripts by their digests: in folders with a file DIGEST.sh for each, and among texts that
// were added. Nobody has to trust either, since a text is hashed before it is shown.
type Library struct {
	dirs  []string
	texts map[string][]byte
	// Damaged are the files that do not hold what their name says.
	Damaged []string
}

// NewLibrary opens folders of scripts; those that are not there are passed over.
func NewLibrary(dirs ...string) *Library { return &Library{dirs: dirs, texts: map[string][]byte{}} }

// Add adds a text.
func (l *Library) Add(text []byte) { l.texts[signing.Digest(text)] = text }

var digestForm = regexp.MustCompile(`^sha256:([0-9a-f]{64})$`)

// Text returns the script with a digest, and whether it is at hand.
func (l *Library) Text(digest string) ([]byte, bool) {
	if text, ok := l.texts[digest]; ok {
		return text, true
	}
	form := digestForm.FindStringSubmatch(digest)
	if form == nil {
		return nil, false
	}
	for _, dir := range l.dirs {
		path := filepath.Join(dir, form[1]+".sh")
		text, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && signing.Digest(text) == digest {
			l.texts[digest] = text
			return text, true
		}
		l.Damaged = append(l.Damaged, path)
	}
	return nil, false
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%q is no file", path))
	}
	return io.ReadAll(io.LimitReader(f, profile.MaxScript+1))
}

// Keep puts scripts into a folder, so that later reviews find them.
func Keep(dir string, texts [][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, text := range texts {
		digest := signing.Digest(text)
		if _, ok := NewLibrary(dir).Text(digest); ok {
			continue
		}
		path := filepath.Join(dir, strings.TrimPrefix(digest, "sha256:")+".sh")
		if err := cli.WriteFile(path, text, 0o644); err != nil {
			return fmt.Errorf("keeping a script for reviews: %w", err)
		}
	}
	return nil
}
