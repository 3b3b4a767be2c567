package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

const (
	// keptScripts and keptScriptBytes bound the scripts that a host keeps, so that naming them in
	// a hello, which hashes each, stays cheap.
	keptScripts     = 16
	keptScriptBytes = 1 << 20
)

// openSpool opens the file that holds what the last run printed. Its blocks are reserved before a
// run, so that a full disk refuses the run instead of losing its output.
func openSpool(d *dir) (*os.File, error) {
	f, err := d.open(spoolFile, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() != keepAll {
		err = reserve(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("reserving spool: %w", err)
	}
	return f, nil
}

func reserve(f *os.File) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, keepAll)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		_, err = f.WriteAt(make([]byte, keepAll), 0)
	}
	if err != nil {
		return err
	}
	return f.Truncate(keepAll)
}

// sendSpool sends what the spool holds of a run. It is not synced and belongs to the last run
// only, so it counts when its digest is the receipt's; otherwise the receipt goes out alone.
func (s *session) sendSpool(receipt signing.Receipt) {
	if receipt.Output.Kept == 0 || receipt.Output.Kept > keepAll {
		return
	}
	f, err := s.host.dir.open(spoolFile, unix.O_RDONLY)
	if err != nil {
		return
	}
	defer f.Close()
	kept := make([]byte, receipt.Output.Kept)
	if _, err := f.ReadAt(kept, 0); err != nil || signing.Digest(kept) != receipt.Output.Digest {
		return
	}
	_ = wire.WriteOutput(s.out, kept)
}

// scripts lists the digests of the scripts that the host keeps whole.
func (h *Host) scripts() []string {
	d, err := h.dir.sub(scriptDir)
	if err != nil {
		return nil
	}
	defer d.close()
	names, err := d.names()
	if err != nil {
		return nil
	}
	slices.Sort(names)
	var whole []string
	for _, name := range names[:min(len(names), keptScripts)] {
		if data, err := d.read(name, wire.Script.Cap()); err == nil && signing.Digest(data) == "sha256:"+name {
			whole = append(whole, "sha256:"+name)
		}
	}
	return whole
}

// keptScript returns a script that the host keeps, or nil.
func (h *Host) keptScript(digest string) []byte {
	d, err := h.dir.sub(scriptDir)
	if err != nil {
		return nil
	}
	defer d.close()
	data, err := d.read(strings.TrimPrefix(digest, "sha256:"), wire.Script.Cap())
	if err != nil || signing.Digest(data) != digest {
		return nil
	}
	return data
}

// keepScript keeps a script that is about to run, dropping the oldest ones for it. That it cannot
// be kept is no reason not to run it: the next order brings it again. The caller has the run lock.
func (h *Host) keepScript(digest string, script []byte) {
	d, err := h.dir.sub(scriptDir)
	if err != nil {
		return
	}
	defer d.close()
	name := strings.TrimPrefix(digest, "sha256:")
	if data, err := d.read(name, wire.Script.Cap()); err == nil && signing.Digest(data) == digest {
		return
	}
	if err := makeRoom(d, len(script)); err == nil {
		_ = d.write(name, script)
	}
}

type keptFile struct {
	name string
	size int64
	age  int64
}

// makeRoom removes scripts, oldest first, until one more of that size fits the bounds.
func makeRoom(d *dir, size int) error {
	names, err := d.names()
	if err != nil {
		return err
	}
	var (
		files []keptFile
		total = int64(size)
	)
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		files = append(files, keptFile{name, st.Size, st.Mtim.Nano()})
		total += st.Size
	}
	sort.Slice(files, func(i, j int) bool { return files[i].age < files[j].age })
	for len(files) > 0 && (len(files) >= keptScripts || total > keptScriptBytes) {
		if err := d.remove(files[0].name); err != nil {
			return err
		}
		total -= files[0].size
		files = files[1:]
	}
	return nil
}
