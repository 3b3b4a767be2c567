package shim

import (
	"crypto/ed25519"
	"encoding/json"
	"runtime"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// prepare does beside a session's beginning what the session would otherwise come to wait for: the table that
// crypto/ed25519 computes for the first signature that it checks, and what encoding/json has to know of each type.
// Nothing else comes of it, and it knows nothing of the host. With one processor there is no beside.
func prepare() {
	if runtime.GOMAXPROCS(0) < 2 {
		return
	}
	growStack(false)
	_ = ed25519.Verify(make([]byte, ed25519.PublicKeySize), nil, make([]byte, ed25519.SignatureSize))
	_, _ = json.Marshal([]any{
		signing.Hello{LastRun: &signing.RunRef{}}, signing.Order{}, record{Run: &lastRun{}}, keptRun{},
	})
}

// growStack makes the goroutine's stack large at once: Go begins with a small one, and a session would copy it four or
// five times over as it doubles. The frame alone does it, nothing touches the room.
//
//go:noinline
func growStack(touch bool) {
	if touch {
		var room [32 << 10]byte
		touchRoom(room[:])
	}
}

//go:noinline
func touchRoom([]byte) {}
