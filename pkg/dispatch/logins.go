package dispatch

import (
	"sync"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// Login is how the last login on a host went.
type Login struct {
	// Key is the fingerprint of the key that the host accepted.
	Key string
	// Took is how long the host needed from the first packet to accepting it.
	Took time.Duration
}

// Logins remembers the last login on each host, by the SSHHost's name, for as long as the process lives. It is safe
// for concurrent use; a nil one remembers nothing.
type Logins struct {
	mu   sync.Mutex
	last map[string]Login
}

// NewLogins returns an empty memory.
func NewLogins() *Logins { return &Logins{last: map[string]Login{}} }

func (l *Logins) note(host Host, conn *remote.Conn) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[host.Name] = Login{Key: conn.UserKeyFingerprint(), Took: conn.LoginTime()}
}

// Of is the last login on a host, if there was one.
func (l *Logins) Of(host string) (Login, bool) {
	if l == nil {
		return Login{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	login, ok := l.last[host]
	return login, ok
}

// Keep forgets the hosts that exist does not name.
func (l *Logins) Keep(exists func(host string) bool) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for host := range l.last {
		if !exists(host) {
			delete(l.last, host)
		}
	}
}
