package shim

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func TestOutputKeepsHeadAndTail(t *testing.T) {
	for name, size := range map[string]int{
		"nothing":               0,
		"one byte":              1,
		"the head exactly":      keepHead,
		"one byte of tail":      keepHead + 1,
		"all that is kept":      keepAll,
		"one byte too many":     keepAll + 1,
		"a tail and a half":     keepHead + keepTail*3/2,
		"many times what stays": 5*keepAll + 12345,
	} {
		t.Run(name, func(t *testing.T) {
			all := make([]byte, size)
			for i := range all {
				all[i] = byte(rand.Uint32())
			}
			o := newOutput()
			for rest := all; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(200<<10))
				o.write(rest[:n])
				rest = rest[n:]
			}
			o.end()
			want := all
			if size > keepAll {
				want = append(bytes.Clone(all[:keepHead]), all[size-keepTail:]...)
			}
			kept, ref := o.kept()
			if !bytes.Equal(kept, want) {
				t.Fatalf("%d bytes are kept, want %d, or others", len(kept), len(want))
			}
			if ref != (signing.OutputRef{Bytes: int64(size), Kept: int64(len(want)), Digest: signing.Digest(want), Truncated: size > keepAll}) {
				t.Errorf("%+v", ref)
			}
			var sent bytes.Buffer
			o.follow(func(p []byte) error { sent.Write(p); return nil })
			sent.Write(o.last())
			if !bytes.Equal(sent.Bytes(), want) {
				t.Error("what is sent is not what is kept")
			}
		})
	}
}
