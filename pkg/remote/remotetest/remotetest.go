// Package remotetest is an SSH server in the test's own process, on a loopback port, that can be
// told to misbehave. It speaks the real protocol, so that tests of pkg/remote and of what is built
// on it need no mock of an SSH client.
package remotetest

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// Fault is a way for a server to misbehave. It applies to what begins after it was set.
type Fault int

// Faults.
const (
	FaultNone             Fault = iota
	FaultHangUp                 // closes connections at once
	FaultSilent                 // accepts and says nothing
	FaultEndless                // sends bytes for ever that are no SSH
	FaultEndlessLines           // the same in lines, each of which may stand before a version
	FaultStallInKex             // sends its version, then nothing
	FaultStallInAuth            // stalls after key exchange, when the client offers a key
	FaultRejectKeys             // accepts no key
	FaultRejectSessions         // refuses to open sessions
	FaultDeaf                   // logs the client in, then answers nothing any more, keepalives neither
	FaultHalfClosed             // logs the client in, then ends its own direction of the connection only
	FaultPenalty                // keeps the client's address out, as OpenSSH with PerSourcePenalties does
	FaultRefuseForwarding       // forwards nothing, as for a key with "restrict"
	FaultStallForwarding        // leaves requests to forward unanswered
)

// Session is a command that a client runs.
type Session struct {
	Command string
	User    string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	// Done is closed when the connection is gone.
	Done <-chan struct{}
}

// Config is how a server behaves when it behaves.
type Config struct {
	// HostKeys are generated when empty: one of ed25519.
	HostKeys []ssh.Signer
	// AuthorizedKeys are the keys that may log in; any key when nil.
	AuthorizedKeys []ssh.PublicKey
	// Handler runs a command and gives its exit status; a negative one ends the command without
	// any. Nil exits with 0.
	Handler func(*Session) int
	// Algorithms restrict what the server offers; everything modern when zero.
	Algorithms ssh.Config
	// SignatureAlgorithms restrict what client keys may sign with; x/crypto's default when empty.
	SignatureAlgorithms []string
	// Banner is sent before the login.
	Banner string
	// Preamble is sent before the SSH version.
	Preamble string
	// UserCA lets users with its certificates in, beside AuthorizedKeys.
	UserCA ssh.PublicKey
	// LoginDelay is how long a login takes, as where sshd asks a DNS server that does not answer.
	LoginDelay time.Duration
	// MaxStartups is how many connections may be open that are not logged in; more are refused as OpenSSH does. No
	// limit when zero.
	MaxStartups int
	// Forward makes the server a jump host: it says where a connection to "host:port" goes to.
	Forward func(hostPort string) (string, error)
}

// Server is a running server.
type Server struct {
	listener net.Listener
	stop     chan struct{}
	running  sync.WaitGroup

	mu          sync.Mutex
	config      Config
	fault       Fault
	open        map[net.Conn]struct{}
	connections int
	startups    int // not logged in yet
	refused     int // by MaxStartups
	forwarded   int
	rejected    int
	commands    []string
}

// New starts a server that ends with the test.
func New(tb testing.TB, config Config) *Server {
	tb.Helper()
	server, err := Start(config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(server.Close)
	return server
}

// Start starts a server on a free port of 127.0.0.1.
func Start(config Config) (*Server, error) {
	if len(config.HostKeys) == 0 {
		key, err := GenerateKey()
		if err != nil {
			return nil, err
		}
		config.HostKeys = []ssh.Signer{key}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting test server: %w", err)
	}
	s := &Server{listener: listener, stop: make(chan struct{}), config: config, open: map[net.Conn]struct{}{}}
	s.running.Go(s.accept)
	return s, nil
}

// GenerateKey makes an ed25519 key, for a host or for a user.
func GenerateKey() (ssh.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating key: %w", err)
	}
	return ssh.NewSignerFromSigner(private)
}

// Key makes an ed25519 key, for a host or for a user.
func Key(tb testing.TB) ssh.Signer {
	tb.Helper()
	key, err := GenerateKey()
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Target is how to log in to the server with keys, its first host key pinned.
func (s *Server) Target(keys ...ssh.Signer) remote.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := s.listener.Addr().(*net.TCPAddr)
	pin, err := remote.Pin(ssh.FingerprintSHA256(s.config.HostKeys[0].PublicKey()))
	if err != nil {
		panic(err) // the fingerprint of a key is a pin
	}
	return remote.Target{Address: address.IP.String(), Port: address.Port, User: "kpssh", Keys: keys, HostKey: pin}
}

// Fingerprint is that of the first host key.
func (s *Server) Fingerprint() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ssh.FingerprintSHA256(s.config.HostKeys[0].PublicKey())
}

// SetFault makes the server misbehave from now on, or behave again.
func (s *Server) SetFault(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// SetHostKeys replaces the host keys, as a reinstalled host does.
func (s *Server) SetHostKeys(keys ...ssh.Signer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.HostKeys = keys
}

// SetAuthorizedKeys replaces the keys that may log in.
func (s *Server) SetAuthorizedKeys(keys ...ssh.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.AuthorizedKeys = keys
}

// SetHandler replaces the handler for commands that begin from now on.
func (s *Server) SetHandler(handler func(*Session) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.Handler = handler
}

// SetForward replaces where connections go to that are forwarded from now on.
func (s *Server) SetForward(forward func(hostPort string) (string, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.Forward = forward
}

// SetLoginDelay replaces how long logins take that begin from now on.
func (s *Server) SetLoginDelay(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.LoginDelay = delay
}

// HostPort is where the server listens.
func (s *Server) HostPort() string { return s.listener.Addr().String() }

// Refused is how many connections MaxStartups has refused so far.
func (s *Server) Refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// Forwarded is how many connections the server has forwarded so far.
func (s *Server) Forwarded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forwarded
}

// Cut closes all open connections, as a network does.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.open {
		_ = conn.Close()
	}
}

// Connections is how many connections the server has accepted so far.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

// Open is how many connections are open.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Rejected is how many offered keys the server has rejected so far.
func (s *Server) Rejected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejected
}

// Commands are the commands that were started so far.
func (s *Server) Commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

// Close ends the server and waits for its handlers.
func (s *Server) Close() {
	select {
	case <-s.stop:
		return
	default:
	}
	close(s.stop)
	_ = s.listener.Close()
	s.Cut()
	s.running.Wait()
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.connections++
		s.open[conn] = struct{}{}
		fault, config := s.fault, s.config
		s.mu.Unlock()
		select {
		case <-s.stop: // Close has cut the others already
			_ = conn.Close()
		default:
		}
		s.running.Go(func() {
			s.serve(conn, fault, config)
			_ = conn.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.open, conn)
		})
	}
}

func (s *Server) serve(conn net.Conn, fault Fault, config Config) {
	if s.instead(conn, fault, config) {
		return
	}
	loggedIn, ok := s.begin(conn, config)
	defer loggedIn()
	if !ok {
		return
	}
	if _, err := io.WriteString(conn, config.Preamble); err != nil {
		return
	}
	gone := make(chan struct{})
	watched := &watchedConn{Conn: conn, gone: gone}
	serverConn, channels, requests, err := ssh.NewServerConn(watched, s.serverConfig(watched, fault, config))
	if err != nil {
		return
	}
	loggedIn()
	switch fault {
	case FaultHalfClosed:
		_ = conn.(*net.TCPConn).CloseWrite() // and goes on reading
	case FaultDeaf:
		<-gone // neither requests nor channels are served
	}
	go ssh.DiscardRequests(requests)
	if fault == FaultRejectSessions || fault == FaultDeaf {
		reject(channels)
		return
	}
	var sessions sync.WaitGroup
	for channel := range channels {
		sessions.Go(func() {
			if channel.ChannelType() == "direct-tcpip" {
				s.forward(channel, fault, gone)
				return
			}
			s.session(serverConn, channel, config, gone)
		})
	}
	sessions.Wait()
}

// instead does what a server with a fault does in place of SSH.
func (s *Server) instead(conn net.Conn, fault Fault, config Config) bool {
	switch fault {
	case FaultHangUp:
	case FaultSilent:
		_, _ = io.Copy(io.Discard, conn)
	case FaultEndless, FaultEndlessLines:
		text := map[Fault]string{FaultEndless: "no ssh here ", FaultEndlessLines: "no ssh here\r\n"}[fault]
		for {
			if _, err := io.WriteString(conn, text); err != nil {
				break
			}
		}
	case FaultStallInKex:
		if _, err := conn.Write([]byte(config.Preamble + "SSH-2.0-stalls\r\n")); err == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
	case FaultPenalty:
		refuse(conn, "Not allowed at this time\r\n")
	default:
		return false
	}
	return true
}

// begin counts a connection that is not logged in, until loggedIn is called.
func (s *Server) begin(conn net.Conn, config Config) (loggedIn func(), ok bool) {
	s.mu.Lock()
	full := config.MaxStartups > 0 && s.startups >= config.MaxStartups
	if full {
		s.refused++
	} else {
		s.startups++
	}
	s.mu.Unlock()
	if full {
		refuse(conn, "Exceeded MaxStartups\r\n")
		return func() {}, false
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.startups--
	}), true
}

// refuse says why and hangs up, in the order in which the peer can read it.
func refuse(conn net.Conn, text string) {
	_, _ = io.WriteString(conn, text)
	_ = conn.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
}

// forward connects a channel to where the server's Forward says.
func (s *Server) forward(offered ssh.NewChannel, fault Fault, gone <-chan struct{}) {
	var request struct {
		Host       string
		Port       uint32
		Originator string
		OriginPort uint32
	}
	s.mu.Lock()
	route := s.config.Forward
	s.forwarded++
	s.mu.Unlock()
	if fault == FaultStallForwarding {
		<-gone
		return
	}
	if ssh.Unmarshal(offered.ExtraData(), &request) != nil || route == nil || fault == FaultRefuseForwarding {
		_ = offered.Reject(ssh.Prohibited, "open failed")
		return
	}
	to, err := route(net.JoinHostPort(request.Host, strconv.Itoa(int(request.Port))))
	var conn net.Conn
	if err == nil {
		conn, err = net.Dial("tcp", to)
	}
	if err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, "Connection refused")
		return
	}
	defer conn.Close()
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	go func() {
		_, _ = io.Copy(channel, conn)
		_ = channel.Close()
		_ = conn.Close()
	}()
	_, _ = io.Copy(conn, channel)
	_ = conn.Close()
	_ = channel.Close()
}
