package remotetest

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// watchedConn closes gone when a read fails: there is no peer any more.
type watchedConn struct {
	net.Conn
	once sync.Once
	gone chan struct{}
}

// Read implements net.Conn.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.once.Do(func() { close(c.gone) })
	}
	return n, err
}

func reject(channels <-chan ssh.NewChannel) {
	for channel := range channels {
		_ = channel.Reject(ssh.Prohibited, "no sessions here")
	}
}

var errNotAuthorized = errors.New("key not authorized")

func (s *Server) serverConfig(conn *watchedConn, fault Fault, config Config) *ssh.ServerConfig {
	server := &ssh.ServerConfig{
		Config:                  config.Algorithms,
		PublicKeyAuthAlgorithms: config.SignatureAlgorithms,
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if fault == FaultStallInAuth {
				<-s.stalled(conn)
			}
			if config.LoginDelay > 0 {
				s.pause(conn, config.LoginDelay)
			}
			if certificate, ok := key.(*ssh.Certificate); ok && config.UserCA != nil {
				checker := &ssh.CertChecker{IsUserAuthority: func(ca ssh.PublicKey) bool {
					return string(ca.Marshal()) == string(config.UserCA.Marshal())
				}}
				return checker.Authenticate(meta, certificate)
			}
			authorized := config.AuthorizedKeys == nil || slices.ContainsFunc(config.AuthorizedKeys, func(k ssh.PublicKey) bool {
				return string(k.Marshal()) == string(key.Marshal())
			})
			if fault == FaultRejectKeys || !authorized {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.rejected++
				return nil, errNotAuthorized
			}
			return nil, nil
		},
	}
	if config.Banner != "" {
		server.BannerCallback = func(ssh.ConnMetadata) string { return config.Banner }
	}
	for _, key := range config.HostKeys {
		server.AddHostKey(key)
	}
	return server
}

// pause waits, unless the peer or the server goes.
func (s *Server) pause(conn *watchedConn, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-conn.gone:
	case <-s.stop:
	}
}

// stalled is closed when the peer or the server has gone.
func (s *Server) stalled(conn *watchedConn) <-chan struct{} {
	both := make(chan struct{})
	go func() {
		defer close(both)
		select {
		case <-conn.gone:
		case <-s.stop:
		}
	}()
	return both
}

func (s *Server) session(conn *ssh.ServerConn, offered ssh.NewChannel, config Config, gone <-chan struct{}) {
	if offered.ChannelType() != "session" {
		_ = offered.Reject(ssh.UnknownChannelType, "only sessions")
		return
	}
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	for request := range requests {
		if request.Type != "exec" {
			_ = request.Reply(false, nil)
			continue
		}
		var exec struct{ Command string }
		if ssh.Unmarshal(request.Payload, &exec) != nil {
			_ = request.Reply(false, nil)
			continue
		}
		s.mu.Lock()
		s.commands = append(s.commands, exec.Command)
		if s.config.Handler != nil {
			config.Handler = s.config.Handler
		}
		s.mu.Unlock()
		_ = request.Reply(true, nil)
		go ssh.DiscardRequests(requests)
		code := 0
		if config.Handler != nil {
			code = config.Handler(&Session{
				Command: exec.Command, User: conn.User(),
				Stdin: channel, Stdout: channel, Stderr: channel.Stderr(), Done: gone,
			})
		}
		if code >= 0 {
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(code)}))
		}
		_ = channel.Close()
		return
	}
}
