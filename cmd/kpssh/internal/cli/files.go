package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// maxInput bounds what is read of a file or of stdin.
const maxInput = 8 << 20

// Read reads a file, or stdin when path is "-".
func (e *Env) Read(path string) ([]byte, error) {
	if path == "-" {
		return readBounded(e.Stdin, "stdin")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, path)
}

func readBounded(r io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(data) > maxInput {
		return nil, fmt.Errorf("reading %s: more than %d bytes", name, maxInput)
	}
	return data, nil
}

// WriteFile replaces a file so that a reader, or the next run after a crash, sees the old content
// or the new one, never a part.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	tmp, err := writeTemp(path, data, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(filepath.Dir(path))
}

// CreateFile is WriteFile for what must never be overwritten: it fails with fs.ErrExist when the
// file is there already, also when somebody else makes it in the same moment.
func CreateFile(path string, data []byte, mode fs.FileMode) error {
	if _, err := os.Lstat(path); err == nil {
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	tmp, err := writeTemp(path, data, mode)
	if err != nil {
		return err
	}
	// A link is the one atomic step that does not replace its target.
	err = os.Link(tmp, path)
	if rm := os.Remove(tmp); err == nil {
		err = rm
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func writeTemp(path string, data []byte, mode fs.FileMode) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".kpssh-tmp-*") // O_EXCL, 0600
	if err != nil {
		var failed *fs.PathError
		if errors.As(err, &failed) { // of a name that nobody knows
			err = failed.Err
		}
		return "", fmt.Errorf("writing %q: %w", path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("writing %q: %w", path, err), os.Remove(f.Name()))
	}
	return f.Name(), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Exists says whether something is at path.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
