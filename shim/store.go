package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// dir is an open directory of the host's state. Everything in it is reached through the
// descriptor, never through a path that somebody could swap meanwhile, and what is opened is
// judged by fstat on the open descriptor.
type dir struct {
	file *os.File
	path string
	uid  int
	// fault is called before each step of a durable write; tests stop there to see what a crash
	// at that point leaves behind. It is nil in production.
	fault func(step string)
}

// openDir opens a state directory, which must be a directory (not a link to one) that only uid
// can use.
func openDir(path string, uid int) (*dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening directory %q: %w", path, err)
	}
	d := &dir{file: os.NewFile(uintptr(fd), path), path: path, uid: uid}
	if err := d.private(fd, path, unix.S_IFDIR); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *dir) close() { _ = d.file.Close() }

func (d *dir) fd() int { return int(d.file.Fd()) }

// private checks that an open descriptor is of the kind wanted and that nobody but the owner may
// use it. A second name of a file (a hard link) counts as somebody else's use.
func (d *dir) private(fd int, name string, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("checking %q: %w", name, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != kind:
		return fmt.Errorf("checking %q: not of the expected kind (mode %#o)", name, st.Mode)
	case int(st.Uid) != d.uid:
		return fmt.Errorf("checking %q: owned by uid %d, not %d", name, st.Uid, d.uid)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("checking %q: mode %#o lets others in", name, st.Mode&0o7777)
	case kind == unix.S_IFREG && st.Nlink != 1:
		return fmt.Errorf("checking %q: has %d names", name, st.Nlink)
	}
	return nil
}

// sub opens a directory within d, making it when it is missing.
func (d *dir) sub(name string) (*dir, error) {
	err := unix.Mkdirat(d.fd(), name, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.ENOSPC) {
		return nil, fmt.Errorf("making directory %q: %w", name, err)
	}
	return d.existing(name)
}

// existing opens a directory within d. A missing one is fs.ErrNotExist.
func (d *dir) existing(name string) (*dir, error) {
	fd, err := unix.Openat(d.fd(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening directory %q: %w", name, err)
	}
	s := &dir{file: os.NewFile(uintptr(fd), d.path+"/"+name), path: d.path + "/" + name, uid: d.uid, fault: d.fault}
	if err := s.private(fd, name, unix.S_IFDIR); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// open opens a private regular file. O_NONBLOCK keeps a planted FIFO from hanging the caller; it
// means nothing for regular files.
func (d *dir) open(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(d.fd(), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: d.path + "/" + name, Err: err}
	}
	if err := d.private(fd, name, unix.S_IFREG); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

var errTooLong = errors.New("more than")

// read returns a file of at most limit bytes. A missing file is fs.ErrNotExist, a longer one errTooLong.
func (d *dir) read(name string, limit int) ([]byte, error) {
	f, err := d.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > int64(limit) {
		return nil, fmt.Errorf("reading %q: %d bytes, %w %d", name, st.Size(), errTooLong, limit)
	}
	data := make([]byte, st.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("reading %q: %w", name, err)
	}
	return data, nil
}

// write replaces a file so that a crash at any point leaves the old content or the new. The caller
// holds a lock that keeps other writers of the same name out.
func (d *dir) write(name string, data []byte) error {
	temp := "." + name + ".tmp"
	if err := unix.Unlinkat(d.fd(), temp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing a stale %q: %w", temp, err)
	}
	d.step("create " + name)
	f, err := d.open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return fmt.Errorf("creating %q: %w", temp, err)
	}
	defer f.Close()
	d.step("write " + name)
	if _, err := f.Write(data); err != nil {
		_ = unix.Unlinkat(d.fd(), temp, 0)
		return fmt.Errorf("writing %q: %w", temp, err)
	}
	d.step("sync " + name)
	if err := f.Sync(); err != nil {
		_ = unix.Unlinkat(d.fd(), temp, 0)
		return fmt.Errorf("syncing %q: %w", temp, err)
	}
	d.step("rename " + name)
	if err := unix.Renameat(d.fd(), temp, d.fd(), name); err != nil {
		_ = unix.Unlinkat(d.fd(), temp, 0)
		return fmt.Errorf("renaming %q: %w", temp, err)
	}
	d.step("sync directory of " + name)
	if err := d.file.Sync(); err != nil {
		return fmt.Errorf("syncing directory of %q: %w", name, err)
	}
	d.step("done with " + name)
	return nil
}

func (d *dir) step(name string) {
	if d.fault != nil {
		d.fault(name)
	}
}

// remove deletes a file; a missing one is no error.
func (d *dir) remove(name string) error {
	if err := unix.Unlinkat(d.fd(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing %q: %w", name, err)
	}
	return nil
}

// names lists a directory, without what writes in progress leave.
func (d *dir) names() ([]string, error) {
	// A descriptor has one reading position; a fresh one starts at the beginning.
	fd, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("listing %q: %w", d.path, err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	all, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("listing %q: %w", d.path, err)
	}
	names := all[:0]
	for _, name := range all {
		if name[0] != '.' {
			names = append(names, name)
		}
	}
	return names, nil
}

// lock is a lock on a file of the state directory. It belongs to the open descriptor and is gone
// with the process, whatever ended it.
type lock struct{ file *os.File }

var errLocked = errors.New("locked")

// tryLock takes the lock or returns errLocked.
func (d *dir) tryLock(name string) (*lock, error) { return d.lock(name, unix.F_OFD_SETLK) }

// waitLock takes the lock, waiting for whoever holds it: only for locks that are held for the
// time of a file write.
func (d *dir) waitLock(name string) (*lock, error) { return d.lock(name, unix.F_OFD_SETLKW) }

func (d *dir) lock(name string, how int) (*lock, error) {
	f, err := d.open(name, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.FcntlFlock(f.Fd(), how, &unix.Flock_t{Type: unix.F_WRLCK})
		if err == nil {
			return &lock{f}, nil
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		_ = f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("locking %q: %w", name, err)
	}
}

// release lets the lock go; once is enough, twice is harmless.
func (l *lock) release() { _ = l.file.Close() }

// locked reports whether another process (or another descriptor of this one) holds the lock,
// without taking it even for a moment, which would make a real attempt fail.
func (d *dir) locked(name string) (bool, error) {
	f, err := d.open(name, unix.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if errors.Is(err, unix.EROFS) {
		f, err = d.open(name, unix.O_RDONLY)
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	probe := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &probe); err != nil {
		return false, fmt.Errorf("looking at lock %q: %w", name, err)
	}
	return probe.Type != unix.F_UNLCK, nil
}
