package shim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

// record is what a host must never forget or tear: who holds it, and how far its last run came,
// with the receipt. Both change in one write, so that no crash can leave a leave that has a
// receipt but did not free the host.
type record struct {
	Claim signing.Claim `json:"claim"`
	// Baseline is what the host had before the claim, until it is found clean; nil when nothing is known.
	Baseline []string `json:"baseline"`
	Run      *lastRun `json:"run,omitempty"`
}

// lastRun is the last run that was started on the host.
type lastRun struct {
	State           signing.RunState `json:"state"`
	DeadlineSeconds int64            `json:"deadlineSeconds"`
	// Seq counts the runs of this host, from 1. It is 0 for a run of a shim that did not count.
	Seq uint64 `json:"seq,omitempty"`
	// Order is the envelope of the order, for the trail.
	Order json.RawMessage `json:"order,omitempty"`
	// Receipt is complete once State is finished; before, it holds what is known at the start.
	Receipt signing.Receipt `json:"receipt"`
	// Envelope is the signed receipt, once State is finished.
	Envelope json.RawMessage `json:"envelope,omitempty"`
}

const (
	slotSize  = 16 << 10
	slotCount = 2
	slotMagic = "KPSSHST1"
	slotHead  = len(slotMagic) + 8 + 4
)

var errStateLost = errors.New("no slot of the state file is whole")

// slots is a file of two slots that are written in turn. All of its blocks are written when it is
// made, so that a full disk cannot keep the end of a run from being recorded; a write that is cut
// short ruins the older slot only.
type slots struct {
	dir  *dir
	file *os.File
	seq  uint64
}

const stateFile = "state"

// openSlots opens the state file for writing, making it when it is missing.
func openSlots(d *dir) (*slots, record, error) {
	f, err := d.open(stateFile, unix.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.write(stateFile, firstSlots()); err == nil {
			f, err = d.open(stateFile, unix.O_RDWR)
		}
	}
	if err != nil {
		return nil, record{}, err
	}
	s := &slots{dir: d, file: f}
	rec, seq, err := readSlots(f)
	if err != nil {
		_ = f.Close()
		return nil, record{}, err
	}
	s.seq = seq
	return s, rec, nil
}

// peekSlots reads the state without being able to change it, so that a host with a full or
// read-only disk still says who holds it and what ran.
func peekSlots(d *dir) (record, error) {
	f, err := d.open(stateFile, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	rec, _, err := readSlots(f)
	return rec, err
}

func (s *slots) close() { _ = s.file.Close() }

// write makes rec the state, durably. When it fails the previous state stands: what a disk that failed to sync still
// shows would tell of a run that was refused.
func (s *slots) write(rec record) error {
	data, err := encodeSlot(slotMagic, s.seq+1, rec)
	if err != nil {
		return err
	}
	at := int64((s.seq+1)%slotCount) * slotSize
	before := make([]byte, len(data))
	if _, err := s.file.ReadAt(before, at); err != nil {
		return fmt.Errorf("reading state: %w", err)
	}
	s.dir.step("slot write")
	if _, err = s.file.WriteAt(data, at); err != nil {
		err = fmt.Errorf("writing state: %w", err)
	} else {
		s.dir.step("slot sync")
		if err = unix.Fdatasync(int(s.file.Fd())); err != nil {
			err = fmt.Errorf("syncing state: %w", err)
		}
	}
	if err != nil {
		_, _ = s.file.WriteAt(before, at)
		return err
	}
	s.dir.step("slot done")
	s.seq++
	return nil
}

// firstSlots is a state file of a host that nobody ever held.
func firstSlots() []byte {
	data := make([]byte, slotCount*slotSize)
	first, _ := encodeSlot(slotMagic, 0, record{})
	copy(data, first)
	return data
}

// encodeSlot lays a slot out as magic, sequence number, length, JSON, SHA-256 of all before.
// Nothing in the JSON is escaped that need not be: an order's envelope, which others write, takes no more room than it
// came in, so that a run whose start fits into a slot fits into it with its receipt too.
func encodeSlot(magic string, seq uint64, content any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(content); err != nil {
		return nil, fmt.Errorf("encoding state: %w", err)
	}
	body := b.Bytes()
	if len(body) > slotSize-slotHead-sha256.Size {
		return nil, fmt.Errorf("encoding state: %d bytes do not fit", len(body))
	}
	data := append(make([]byte, 0, slotHead+len(body)+sha256.Size), magic...)
	data = binary.BigEndian.AppendUint64(data, seq)
	data = binary.BigEndian.AppendUint32(data, uint32(len(body)))
	data = append(data, body...)
	sum := sha256.Sum256(data)
	return append(data, sum[:]...), nil
}

func readSlots(f *os.File) (record, uint64, error) {
	var (
		best  record
		seq   uint64
		found bool
	)
	for i := range slotCount {
		var rec record
		n, ok, err := readSlot(f, int64(i)*slotSize, slotMagic, &rec)
		if err != nil {
			return record{}, 0, fmt.Errorf("reading state: %w", err)
		}
		if ok && (!found || n > seq) {
			best, seq, found = rec, n, true
		}
	}
	if !found {
		return record{}, 0, errStateLost
	}
	return best, seq, nil
}

// readSlot reads the slot at an offset into content, which is a pointer, if it is whole. Of a slot it reads what is used.
func readSlot(f io.ReaderAt, at int64, magic string, content any) (seq uint64, ok bool, err error) {
	head := make([]byte, slotHead)
	if _, err := f.ReadAt(head, at); err != nil {
		return 0, false, err
	}
	length := binary.BigEndian.Uint32(head[len(magic)+8:])
	if !bytes.HasPrefix(head, []byte(magic)) || length > uint32(slotSize-slotHead-sha256.Size) {
		return 0, false, nil
	}
	n := int(length) // only now: where an int has 32 bits, a larger one is negative
	slot := make([]byte, slotHead+n+sha256.Size)
	if _, err := f.ReadAt(slot, at); err != nil {
		return 0, false, err
	}
	body := slot[:slotHead+n]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], slot[len(body):]) || !bytes.Equal(head, slot[:slotHead]) {
		return 0, false, nil
	}
	if json.Unmarshal(body[slotHead:], content) != nil {
		return 0, false, nil
	}
	return binary.BigEndian.Uint64(head[len(magic):]), true, nil
}
