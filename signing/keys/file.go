package keys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteNew writes a file that must not exist yet, durably. When it fails nothing is left behind,
// and nothing that was there has changed: a key once written is never lost to a second command.
func WriteNew(path string, content []byte, mode fs.FileMode) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("creating %q: %w", path, cause(err))
	}
	defer func() {
		if closeErr := f.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("writing %q: %w", path, cause(closeErr))
		}
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	// The umask may only have taken bits away; a mode is a promise.
	if err := f.Chmod(mode); err != nil {
		return fmt.Errorf("writing %q: %w", path, cause(err))
	}
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("writing %q: %w", path, cause(err))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("writing %q: %w", path, cause(err))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing %q: %w", dir, cause(err))
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing %q: %w", dir, cause(err))
	}
	return nil
}

// readBounded reads a whole file of at most maxFile bytes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, cause(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, cause(err))
	}
	if len(b) > maxFile {
		return nil, refuse(ReasonUnsupportedKey, "%q is larger than a key file, %d bytes", path, maxFile)
	}
	return b, nil
}

// cause takes the path out of an error that names it a second time.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
