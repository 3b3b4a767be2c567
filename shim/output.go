package shim

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	// keepHead and keepTail bound what is kept of a script's output, in memory and in the spool.
	keepHead = 512 << 10
	keepTail = 512 << 10
	keepAll  = keepHead + keepTail
)

// output keeps the head and the tail of what a script prints. Writing to it never waits for
// anybody; a forwarder follows at its own pace.
type output struct {
	mu    sync.Mutex
	more  chan struct{} // signalled when the head grew or the output ended
	head  []byte
	tail  []byte // a ring once it is full
	at    int    // where the ring is written next
	total int64
	ended bool
}

func newOutput() *output { return &output{more: make(chan struct{}, 1)} }

func (o *output) write(p []byte) {
	o.mu.Lock()
	o.total += int64(len(p))
	n := min(len(p), keepHead-len(o.head))
	o.head = append(o.head, p[:n]...)
	o.ring(p[n:])
	o.mu.Unlock()
	o.signal()
}

// ring keeps the last keepTail bytes.
func (o *output) ring(p []byte) {
	if len(p) > keepTail {
		p = p[len(p)-keepTail:]
	}
	if n := min(len(p), keepTail-len(o.tail)); n > 0 {
		o.tail = append(o.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(o.tail[o.at:], p)
		o.at = (o.at + n) % keepTail
		p = p[n:]
	}
}

func (o *output) end() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	o.signal()
}

func (o *output) signal() {
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// follow calls send with the head as it grows, until the output ended or send fails.
func (o *output) follow(send func([]byte) error) {
	for sent := 0; ; {
		o.mu.Lock()
		next, ended := o.head[sent:], o.ended
		o.mu.Unlock()
		if len(next) > 0 {
			if send(next) != nil {
				return
			}
			sent += len(next)
			continue
		}
		if ended {
			return
		}
		<-o.more
	}
}

// last returns the tail, once the output ended.
func (o *output) last() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append(append([]byte(nil), o.tail[o.at:]...), o.tail[:o.at]...)
}

// kept returns all that is kept and its description, once the output ended.
func (o *output) kept() ([]byte, signing.OutputRef) {
	kept := append(append([]byte(nil), o.head...), o.last()...)
	sum := sha256.Sum256(kept)
	return kept, signing.OutputRef{
		Bytes: o.total, Kept: int64(len(kept)), Digest: "sha256:" + hex.EncodeToString(sum[:]),
		Truncated: int64(len(kept)) < o.total,
	}
}
