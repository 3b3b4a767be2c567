package keystest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"sync"
)

// Kinds of keys, as Vault's transit engine names them.
const (
	Ed25519 = "ed25519"
	P256    = "ecdsa-p256"
	P384    = "ecdsa-p384"
	RSA2048 = "rsa-2048"
)

// Fault is how a service misbehaves.
type Fault string

// Faults.
const (
	// None: it works.
	None Fault = ""
	// Hang: it takes calls and does not answer them.
	Hang Fault = "hang"
	// Denied: the caller may not use the key.
	Denied Fault = "denied"
	// Down: it answers that it does not work.
	Down Fault = "down"
	// Gossip: it does not work, and says so in words that hold the caller's credentials.
	Gossip Fault = "gossip"
	// Garbage: it answers what is not of its protocol.
	Garbage Fault = "garbage"
	// Hollow: it answers with nothing where the protocol has something.
	Hollow Fault = "hollow"
	// OtherKey: it signs with another key than the one whose public half it tells.
	OtherKey Fault = "other-key"
)

// Service is a key service with one key.
type Service struct {
	// Ref is the reference of its key.
	Ref string
	// Key is the key that it has.
	Key crypto.Signer

	other   crypto.Signer
	release chan struct{}

	mu        sync.Mutex
	fault     Fault
	gather    int
	waiting   int
	met       chan struct{}
	largest   int
	signCalls int
}

func newService(t T, kind string) *Service {
	t.Helper()
	return &Service{Key: makeKey(t, kind), other: makeKey(t, kind), release: make(chan struct{})}
}

// endWith ends the server with the test. Calls that it holds are let go first, as it waits for them.
func (s *Service) endWith(t T, stop func()) {
	t.Cleanup(func() {
		close(s.release)
		stop()
	})
}

func makeKey(t T, kind string) crypto.Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	switch kind {
	case Ed25519:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case P256:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case P384:
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case RSA2048:
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		err = fmt.Errorf("no key of the kind %q", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Break lets the service misbehave from now on.
func (s *Service) Break(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// Gather lets the service answer no call to sign until n wait for it at once.
func (s *Service) Gather(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gather, s.waiting, s.met = n, 0, make(chan struct{})
}

// Signed is how many calls to sign came, and of how many bytes the largest message was that it was given.
func (s *Service) Signed() (calls, largest int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signCalls, s.largest
}

// enter notes a call, and waits as long as the service's state demands.
func (s *Service) enter(done <-chan struct{}, signing bool) Fault {
	s.mu.Lock()
	fault := s.fault
	var met chan struct{}
	if signing {
		s.signCalls++
		if s.gather > 0 {
			met = s.met
			if s.waiting++; s.waiting == s.gather {
				close(met)
			}
		}
	}
	s.mu.Unlock()
	if met != nil {
		wait(done, met, s.release)
	}
	if fault == Hang {
		wait(done, s.release)
	}
	return fault
}

func wait(done <-chan struct{}, more ...<-chan struct{}) {
	if len(more) == 1 {
		more = append(more, nil)
	}
	select {
	case <-done:
	case <-more[0]:
	case <-more[1]:
	}
}

// sign signs a digest, or with hash 0 the message itself.
func (s *Service) sign(message []byte, hash crypto.Hash, fault Fault) ([]byte, error) {
	s.mu.Lock()
	s.largest = max(s.largest, len(message))
	s.mu.Unlock()
	key := s.Key
	if fault == OtherKey {
		key = s.other
	}
	return key.Sign(rand.Reader, message, hash)
}

// publicDER is the PKIX form of the key's public half.
func (s *Service) publicDER() []byte {
	der, err := x509.MarshalPKIXPublicKey(s.Key.Public())
	if err != nil {
		panic(err) // of the kinds of keys above there is none that it does not take
	}
	return der
}

func (s *Service) publicPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: s.publicDER()}))
}
