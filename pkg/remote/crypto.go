package remote

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// hostKeyTypes are the key types that a host may show, in order of preference.
func hostKeyTypes() []string {
	return []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA}
}

// certificateTypes are those of hostKeyTypes as certificates.
func certificateTypes() []string {
	return []string{ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01, ssh.CertAlgoRSAv01}
}

// hostKeyAlgorithms are the signature algorithms for the given key types; RSA only with SHA-2.
func hostKeyAlgorithms(types []string) []string {
	var algorithms []string
	for _, t := range types {
		switch t {
		case ssh.KeyAlgoRSA:
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		case ssh.CertAlgoRSAv01:
			algorithms = append(algorithms, ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01)
		default:
			algorithms = append(algorithms, t)
		}
	}
	return algorithms
}

// bareKey is the key that a certificate is for, or the key itself.
func bareKey(key ssh.PublicKey) ssh.PublicKey {
	if certificate, ok := key.(*ssh.Certificate); ok {
		return certificate.Key
	}
	return key
}

func cryptoConfig() ssh.Config {
	return ssh.Config{
		KeyExchanges: []string{
			ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519,
			ssh.KeyExchangeECDHP256, ssh.KeyExchangeECDHP384, ssh.KeyExchangeECDHP521,
		},
		Ciphers: []string{
			ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305,
			ssh.CipherAES128CTR, ssh.CipherAES192CTR, ssh.CipherAES256CTR,
		},
		MACs: []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM},
	}
}

// modernSigner keeps an RSA key from signing with SHA-1, which OpenSSH refuses since 8.8 and which
// x/crypto falls back to when a server names no algorithms. An RSA key signs with these algorithms.
func modernSigner(signer ssh.Signer, algorithms ...string) (ssh.Signer, error) {
	if !isRSA(signer) {
		return signer, nil
	}
	algorithmSigner, ok := signer.(ssh.AlgorithmSigner)
	if !ok {
		return nil, errors.New("this RSA key can only sign with SHA-1")
	}
	return ssh.NewSignerWithAlgorithms(algorithmSigner, algorithms)
}

func isRSA(signer ssh.Signer) bool { return bareKey(signer.PublicKey()).Type() == ssh.KeyAlgoRSA }

// strictKexServer is what a server lists that takes part in strict key exchange.
const strictKexServer = "kex-strict-s-v00@openssh.com"

// maxKexInit bounds how much of the peer's first bytes is kept for reading its offer.
const maxKexInit = 64 << 10

// kexConn reads along while the peer makes its key exchange offer, which is in the clear: x/crypto
// tells neither whether strict key exchange is on nor which host keys there are to ask for.
type kexConn struct {
	net.Conn

	mu        sync.Mutex
	seen      []byte
	done      bool
	kex       []string
	hostKeys  []string
	greeting  bool  // the peer has said that it speaks SSH
	refusal   error // what an sshd says instead when it takes no connections
	transport error // first error of the connection itself
}

// What sshd says in place of its version: past MaxStartups, and to a source with too many failures (PerSourcePenalties).
var (
	errMaxStartups = errors.New("sshd has too many logins under way (MaxStartups)")
	errPenalty     = errors.New("sshd keeps our address out for a while (PerSourcePenalties)")
)

func refusalOf(line []byte) error {
	switch string(bytes.TrimRight(line, "\r")) {
	case "Exceeded MaxStartups":
		return errMaxStartups
	case "Not allowed at this time":
		return errPenalty
	}
	return nil
}

// errNoSSH: a line may come before the version, but not any number of them.
var errNoSSH = errors.New("what answers there does not speak SSH")

var errNotStrict = errors.New("host does not offer strict key exchange; update its sshd")

// Read implements net.Conn. It fails at the peer's offer when that lacks strict key exchange.
func (c *kexConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done && n > 0 {
		c.seen = append(c.seen, p[:n]...)
		c.parse()
		if c.done && !slices.Contains(c.kex, strictKexServer) {
			if n, err = 0, errNotStrict; !c.greeting {
				err = errNoSSH
			}
		}
	}
	c.note(err)
	return n, err
}

// Write implements net.Conn. That the peer hung up before it sent its version shows in a read, after what it had to say.
func (c *kexConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.greeting {
			return len(p), nil
		}
		c.note(err)
	}
	return n, err
}

func (c *kexConn) note(err error) {
	if err != nil && c.transport == nil {
		c.transport = err
	}
}

func (c *kexConn) parse() {
	rest := c.seen
	for {
		line, after, ok := bytes.Cut(rest, []byte("\n"))
		if !ok {
			c.giveUp(len(c.seen) > maxKexInit)
			return
		}
		rest = after
		if bytes.HasPrefix(line, []byte("SSH-")) {
			c.greeting = true
			break
		}
		if c.refusal == nil {
			c.refusal = refusalOf(line)
		}
	}
	// RFC 4253 section 6: u32 length, u8 padding, payload; section 7.1: 20, 16 bytes of cookie, lists.
	if len(rest) < 4 {
		return
	}
	length := binary.BigEndian.Uint32(rest)
	if length > maxKexInit {
		c.giveUp(true)
		return
	}
	if uint32(len(rest)-4) < length {
		return
	}
	payload := rest[4 : 4+length]
	c.giveUp(true)
	const msgKexInit, header = 20, 1 + 1 + 16
	if len(payload) < header || payload[1] != msgKexInit {
		return
	}
	var lists [2][]string
	payload = payload[header:]
	for i := range lists {
		if len(payload) < 4 {
			return
		}
		size := binary.BigEndian.Uint32(payload)
		if uint32(len(payload)-4) < size {
			return
		}
		lists[i] = strings.Split(string(payload[4:4+size]), ",")
		payload = payload[4+size:]
	}
	c.kex, c.hostKeys = lists[0], lists[1]
}

// giveUp ends the reading along; an offer that was not understood is one without strict exchange.
func (c *kexConn) giveUp(now bool) {
	if now {
		c.done, c.seen = true, nil
	}
}

// offers tells whether the peer has a host key of one of these types.
func (c *kexConn) offers(types []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(hostKeyAlgorithms(types), func(a string) bool { return slices.Contains(c.hostKeys, a) })
}

// greeted tells whether the peer has sent its version.
func (c *kexConn) greeted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.greeting
}

// throttled is why the peer takes no connection for now; nil when it did.
func (c *kexConn) throttled() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.greeting {
		return nil
	}
	return c.refusal
}

func (c *kexConn) transportError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.transport
}
