package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
)

const (
	// Together below maxOutput, which cuts at the front: what was left out is said between them.
	keepHead = 2 << 10
	keepTail = 5 << 10
	// maxOutput bounds Result.Output and Error.Output.
	maxOutput = 8 << 10
)

// output takes what a script prints, keeps its head and tail and the digest of all.
type output struct {
	digest hash.Hash
	total  int64
	head   []byte
	tail   []byte
}

func newOutput() *output { return &output{digest: sha256.New()} }

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n := len(p)
	o.total += int64(n)
	o.digest.Write(p)
	if room := min(keepHead-len(o.head), len(p)); room > 0 {
		o.head = append(o.head, p[:room]...)
		p = p[room:]
	}
	if len(p) > keepTail {
		p = p[len(p)-keepTail:]
	}
	if excess := len(o.tail) + len(p) - keepTail; excess > 0 {
		o.tail = append(o.tail[:0], o.tail[excess:]...)
	}
	o.tail = append(o.tail, p...)
	return n, nil
}

// sum is the digest of everything written, as receipts spell it.
func (o *output) sum() string { return "sha256:" + hex.EncodeToString(o.digest.Sum(nil)) }

// text is what is kept. Where something was left out, whole lines were: half a line could be half a
// secret, which no redactor finds.
func (o *output) text(clean cleaner) string {
	left := o.total - int64(len(o.head)+len(o.tail))
	if left <= 0 {
		return clean.text(string(o.head)+string(o.tail), maxOutput)
	}
	head, tail := string(o.head), string(o.tail)
	head = head[:strings.LastIndexByte(head, '\n')+1]
	if at := strings.IndexByte(tail, '\n'); at >= 0 {
		tail = tail[at+1:]
	} else {
		tail = ""
	}
	left = o.total - int64(len(head)+len(tail))
	return clean.text(fmt.Sprintf("%s\n[%d bytes left out]\n%s", head, left, tail), maxOutput)
}
