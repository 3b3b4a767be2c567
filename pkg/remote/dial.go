package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// opener makes the connection that a handshake is done over.
type opener func(ctx context.Context, t Target) (net.Conn, error)

func direct(ctx context.Context, t Target) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.hostPort())
	if err != nil {
		return nil, unreachable(ctx, t, ReasonDial, err)
	}
	return conn, nil
}

// Dial connects and logs in, by way of the target's jump hosts. ctx bounds it together with the handshake time-out of
// each hop; the connection itself does not depend on ctx.
func Dial(ctx context.Context, t Target) (*Conn, error) {
	if err := t.validate(); err != nil {
		return nil, fmt.Errorf("checking SSH target %q: %w", t.Address, err)
	}
	if t.Via == nil {
		return dial(ctx, t, direct, nil)
	}
	jump, err := Dial(ctx, *t.Via)
	if err != nil {
		return nil, atJump(*t.Via, err)
	}
	conn, err := dial(ctx, t, jump.tunnel, func() { _ = jump.Close() })
	if err != nil {
		err = jump.blame(t, err)
		_ = jump.Close()
		return nil, err
	}
	return conn, nil
}

// dial does handshakes with one hop until the host has shown the right key or all that it has.
func dial(ctx context.Context, t Target, open opener, onClose func()) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.handshakeTimeout())
	defer cancel()

	// A fingerprint does not tell the type of its key, so that the host may show another of its
	// keys first; then ask for the others, one type after the other. No user key was offered yet.
	types := t.HostKey.types()
	for curious := true; ; {
		h := &handshake{target: t, types: types}
		conn, err := h.run(ctx, open, onClose)
		var mismatch *HostKeyMismatch
		switch {
		case err == nil, h.conn == nil:
			return conn, err
		case errors.As(err, &mismatch) && t.HostKey.firstUse == nil && curious:
			types = slices.DeleteFunc(slices.Clone(types), func(k string) bool { return k == h.shownType })
		case curious && !h.conn.offers(types):
			// It has no key of the right types: ask for another, to say which one it has now.
			types = slices.DeleteFunc(hostKeyTypes(), func(k string) bool { return slices.Contains(types, k) })
			curious = false
		default:
			return nil, err
		}
		if !h.conn.offers(types) {
			return nil, err
		}
	}
}

// handshake is one attempt at a connection.
type handshake struct {
	target Target
	types  []string

	conn        *kexConn
	shownType   string
	hostKey     ssh.PublicKey
	refused     error // of the host key policy
	authStarted bool
	methods     []string
	usedKey     atomic.Pointer[string]
	took        time.Duration
}

func (h *handshake) run(ctx context.Context, open opener, onClose func()) (*Conn, error) {
	began := time.Now()
	config, err := h.config()
	if err != nil {
		return nil, fmt.Errorf("checking SSH target %q: %w", h.target.Address, err)
	}
	address := h.target.hostPort()
	netConn, err := open(ctx, h.target)
	if err != nil {
		return nil, err
	}
	h.conn = &kexConn{Conn: netConn}
	if deadline, ok := ctx.Deadline(); ok {
		_ = netConn.SetDeadline(deadline) // a closed connection says so on the next read
	}
	stop := context.AfterFunc(ctx, func() { _ = netConn.Close() })
	conn, channels, requests, err := ssh.NewClientConn(h.conn, address, config)
	if !stop() && err == nil {
		// The context ended after the last packet: the connection is being closed under us.
		_ = conn.Close()
		go ssh.DiscardRequests(requests)
		go rejectChannels(channels)
		return nil, h.unreachable(ctx, ReasonTimeout, context.Cause(ctx))
	}
	if err != nil {
		return nil, h.classify(ctx, err)
	}
	_ = netConn.SetDeadline(time.Time{})
	h.took = time.Since(began)
	return newConn(h, conn, channels, requests, onClose), nil
}

func (h *handshake) config() (*ssh.ClientConfig, error) {
	signers := make([]ssh.Signer, 0, MaxKeys)
	for _, key := range h.target.Keys {
		modern, err := modernSigner(key, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		if err != nil {
			return nil, err
		}
		signers = append(signers, recordUse(modern, &h.usedKey))
	}
	// OpenSSH announces all that it was built with, whatever PubkeyAcceptedAlgorithms says, so that the first choice may
	// be one that it refuses. As far as its patience goes, RSA keys are tried with the other hash too.
	for _, key := range h.target.Keys {
		if !isRSA(key) || len(signers) == MaxKeys {
			continue
		}
		modern, err := modernSigner(key, ssh.KeyAlgoRSASHA256)
		if err != nil {
			return nil, err
		}
		signers = append(signers, recordUse(modern, &h.usedKey))
	}
	return &ssh.ClientConfig{
		Config:            cryptoConfig(),
		User:              h.target.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signers...)},
		HostKeyAlgorithms: hostKeyAlgorithms(h.types),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			// Called again at every rekey, where x/crypto has made sure that the key is the same.
			h.shownType, h.hostKey = key.Type(), key
			h.refused = h.target.HostKey.check(h.target, key)
			return h.refused
		},
		AuthCallback: func(auth *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
			h.authStarted, h.methods = true, auth.AllowedMethods
			return nil, nil
		},
		ClientVersion: "SSH-2.0-kpssh",
	}, nil
}

// classify names the class of a failed handshake by what had happened, since x/crypto's errors
// only differ in their text.
func (h *handshake) classify(ctx context.Context, err error) error {
	var negotiation *ssh.AlgorithmNegotiationError
	switch {
	case h.refused != nil:
		return h.refused
	case h.conn.throttled() != nil && !h.authStarted:
		return h.unreachable(ctx, ReasonThrottled, h.conn.throttled())
	case errors.Is(h.conn.transportError(), errNotStrict):
		return h.unreachable(ctx, ReasonWeakCrypto, errNotStrict)
	case errors.As(err, &negotiation):
		return h.unreachable(ctx, ReasonWeakCrypto, err)
	case ctx.Err() != nil:
		return h.unreachable(ctx, ReasonTimeout, context.Cause(ctx))
	case h.authStarted && !isTransport(err):
		return &AuthRejected{
			Address: h.target.hostPort(), User: h.target.User,
			Methods: knownMethods(h.methods), Keys: keyFingerprints(h.target.Keys),
		}
	case isTimeout(h.conn.transportError()):
		return h.unreachable(ctx, ReasonTimeout, context.DeadlineExceeded)
	}
	if h.conn.transportError() != nil && !h.conn.greeted() {
		err = fmt.Errorf("%w: %w", errHungUp, err)
	}
	return h.unreachable(ctx, ReasonHandshake, err)
}

// errHungUp marks a peer that went away before it said that it speaks SSH, as an sshd under load does.
var errHungUp = errors.New("no SSH version was sent")

func (h *handshake) unreachable(ctx context.Context, reason string, err error) error {
	return unreachable(ctx, h.target, reason, err)
}

func unreachable(ctx context.Context, t Target, reason string, err error) error {
	if ctx.Err() != nil {
		reason, err = ReasonTimeout, context.Cause(ctx)
	}
	return &Unreachable{Address: t.hostPort(), Reason: reason, Err: err}
}

// isTransport tells a connection that ended from a host that said no.
func isTransport(err error) bool {
	var netErr net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &netErr)
}

func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}

// knownMethods drops what is no method of RFC 4252, since the list is the peer's text.
func knownMethods(methods []string) []string {
	known := []string{"publickey", "password", "keyboard-interactive", "hostbased", "gssapi-with-mic"}
	return slices.DeleteFunc(slices.Clone(methods), func(m string) bool { return !slices.Contains(known, m) })
}

func keyFingerprints(keys []ssh.Signer) []string {
	fingerprints := make([]string, len(keys))
	for i, key := range keys {
		fingerprints[i] = ssh.FingerprintSHA256(key.PublicKey()) // of a certificate as a whole, so that a new one counts
	}
	return fingerprints
}

// recordUse notes the key that signs: a key signs only after the host said that it would accept it.
func recordUse(signer ssh.Signer, used *atomic.Pointer[string]) ssh.Signer {
	fingerprint := ssh.FingerprintSHA256(bareKey(signer.PublicKey()))
	recorder := recordingSigner{Signer: signer, note: func() { used.Store(&fingerprint) }}
	if multi, ok := signer.(ssh.MultiAlgorithmSigner); ok {
		return recordingMultiSigner{recordingSigner: recorder, multi: multi}
	}
	return recorder
}

type recordingSigner struct {
	ssh.Signer
	note func()
}

// Sign implements ssh.Signer.
func (s recordingSigner) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	s.note()
	return s.Signer.Sign(rand, data)
}

type recordingMultiSigner struct {
	recordingSigner
	multi ssh.MultiAlgorithmSigner
}

// SignWithAlgorithm implements ssh.AlgorithmSigner.
func (s recordingMultiSigner) SignWithAlgorithm(rand io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	s.note()
	return s.multi.SignWithAlgorithm(rand, data, algorithm)
}

// Algorithms implements ssh.MultiAlgorithmSigner.
func (s recordingMultiSigner) Algorithms() []string { return s.multi.Algorithms() }
