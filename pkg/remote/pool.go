package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// PoolOptions bound a Pool. Zero values are the defaults named beside them.
type PoolOptions struct {
	// MaxConnections is how many connections may be open or being dialled at once: 1024. An idle
	// one, 36 KiB here and two processes on its host, makes room for a new one.
	MaxConnections int
	// MaxDials is how many handshakes may go on at once: 64.
	MaxDials int
	// MaxPerHost is how many users may share a host's connection at once: 4, below sshd's default
	// MaxSessions of 10.
	MaxPerHost int
	// MaxPerJump is how many connections may be forwarded by a jump host at once: 256, a file descriptor each of the
	// 1024 that its sshd usually has. An idle one makes room for a new one.
	MaxPerJump int
	// MaxPerAddress is how many handshakes may go on at once with one sshd: 4, where sshd's default MaxStartups
	// begins to refuse at 10.
	MaxPerAddress int
	// IdleTimeout is how long a connection is kept unused: 5 min, more than two probes apart.
	IdleTimeout time.Duration
	// AuthBackoff is how long a host that rejected its keys twice is left alone, doubling at every
	// further rejection up to ten times as long: 1 min. sshd bans who tries faster.
	AuthBackoff time.Duration
	// Now is time.Now when nil.
	Now func() time.Time
}

var errPoolClosed = errors.New("connection pool closed")

// authAttempts is how many rejections in a row it takes to back off.
const authAttempts = 2

// maxBackoff is how many times AuthBackoff a host is left alone at most.
const maxBackoff = 10

// Pool shares one connection per target between its users and keeps it for the next. It is safe
// for concurrent use.
type Pool struct {
	options PoolOptions
	slots   *room         // held by every open connection
	dials   chan struct{} // held during a handshake

	mu     sync.Mutex
	hosts  map[string]*host
	places map[string]*place
	stats  PoolStats
	closed bool
}

// PoolStats counts what a pool has done.
type PoolStats struct {
	Open      int   // connections now
	Idle      int   // of them without a user
	Dials     int64 // handshakes begun
	Reused    int64 // users who found an open connection
	Waits     int64 // users who had to wait for a cap
	Evicted   int64 // idle connections that made room
	Backoff   int64 // users turned away because their keys had been rejected
	Throttled int64 // handshakes that an sshd refused for now (MaxStartups, PerSourcePenalties), or hung up on
	Paused    int64 // dials that were put off to spare an sshd's patience
}

// host is what a pool knows of one target. It is forgotten when there is nothing to know.
type host struct {
	users *room         // held by every user
	dial  chan struct{} // held by the one user who dials

	// guarded by Pool.mu
	interest     int // users and those waiting
	current      *shared
	via          *host // the jump host, of the current connection
	rejections   int
	blockedUntil time.Time
	keepUntil    time.Time // for the sake of rejections
}

// shared is a connection and its users. One that was replaced ends with its last user.
type shared struct {
	conn      *Conn
	refs      int
	idle      *time.Timer
	idleSince time.Time
}

// NewPool makes an empty pool.
func NewPool(options PoolOptions) *Pool {
	setDefault(&options.MaxConnections, 1024)
	setDefault(&options.MaxDials, 64)
	setDefault(&options.MaxPerHost, 4)
	setDefault(&options.MaxPerJump, 256)
	setDefault(&options.MaxPerAddress, 4)
	setDefault(&options.IdleTimeout, 5*time.Minute)
	setDefault(&options.AuthBackoff, time.Minute)
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Pool{
		options: options,
		slots:   newRoom(options.MaxConnections),
		dials:   make(chan struct{}, options.MaxDials),
		hosts:   map[string]*host{},
		places:  map[string]*place{},
	}
}

func setDefault[T int | time.Duration](value *T, def T) {
	if *value <= 0 {
		*value = def
	}
}

// Get returns an open connection to the target, new or used before, and the function that gives it
// back. It waits for the pool's caps until ctx ends.
func (p *Pool) Get(ctx context.Context, t Target) (*Conn, func(), error) {
	if err := t.validate(); err != nil {
		return nil, nil, fmt.Errorf("checking SSH target %q: %w", t.Address, err)
	}
	s, _, release, err := p.take(ctx, t, t.key(), p.options.MaxPerHost)
	if err != nil {
		return nil, nil, err
	}
	return s.conn, release, nil
}

// take makes the caller a user of the connection that key stands for.
func (p *Pool) take(ctx context.Context, t Target, key string, most int) (*shared, *host, func(), error) {
	h := p.enter(key, most)
	s, err := p.get(ctx, t, key, h)
	if err != nil {
		p.leave(key, h)
		return nil, nil, nil, err
	}
	release := sync.OnceFunc(func() {
		p.giveBack(h, s)
		h.users.leave()
		p.leave(key, h)
	})
	return s, h, release, nil
}

// get takes a place among the host's users, and keeps it only when it returns a connection.
func (p *Pool) get(ctx context.Context, t Target, key string, h *host) (_ *shared, err error) {
	// Who waits for a jump host has idle connections through it closed.
	if err := p.enterRoom(ctx, t, h.users, func(other *host) bool { return other.via == h }); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.users.leave()
		}
	}()
	if err := p.acquire(ctx, t, h.dial); err != nil {
		return nil, err
	}
	defer func() { <-h.dial }()
	if s := p.reuse(h); s != nil {
		if t.HostKey.check(t, s.conn.hostKey) == nil {
			p.count(func(stats *PoolStats) { stats.Reused++ })
			return s, nil
		}
		s.conn.Retire() // pinned to another key since: a new handshake has to tell
		p.giveBack(h, s)
	}
	if err := p.mayDial(t, h); err != nil {
		return nil, err
	}
	return p.dial(ctx, t, key, h)
}

func (p *Pool) count(change func(*PoolStats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.stats)
}

func (p *Pool) enter(key string, most int) *host {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[key]
	if h == nil {
		h = &host{users: newRoom(most), dial: make(chan struct{}, 1)}
		p.hosts[key] = h
	}
	h.interest++
	return h
}

func (p *Pool) leave(key string, h *host) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.interest--
	p.forget(key, h)
}

// forget drops a host of which there is nothing to remember.
func (p *Pool) forget(key string, h *host) {
	if h.interest == 0 && h.current == nil && !p.options.Now().Before(h.keepUntil) && p.hosts[key] == h {
		delete(p.hosts, key)
	}
}

// reuse takes the open connection when there is one, and lets go of one that is no use.
func (p *Pool) reuse(h *host) *shared {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.current == nil {
		return nil
	}
	if !h.current.conn.usable() {
		p.drop(h)
		return nil
	}
	h.current.use()
	return h.current
}

func (s *shared) use() {
	s.stopTimer()
	s.refs++
}

func (s *shared) stopTimer() {
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
}

// drop lets go of the host's connection: at once when nobody uses it, else with its last user.
func (p *Pool) drop(h *host) {
	h.current.stopTimer()
	if h.current.refs == 0 {
		_ = h.current.conn.Close()
	}
	h.current, h.via = nil, nil
}

// mayDial refuses a target whose keys were rejected lately.
func (p *Pool) mayDial(t Target, h *host) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &Unreachable{Address: t.hostPort(), Reason: ReasonDial, Err: errPoolClosed}
	}
	if p.options.Now().Before(h.blockedUntil) {
		p.stats.Backoff++
		return &AuthRejected{Address: t.hostPort(), User: t.User, Keys: keyFingerprints(t.Keys), RetryAt: h.blockedUntil}
	}
	return nil
}

// way is how to reach the target: directly, or through a connection to its jump host, which the caller uses until it
// calls release.
func (p *Pool) way(ctx context.Context, t Target) (open opener, jump *shared, via *host, release func(), err error) {
	if t.Via == nil {
		return direct, nil, nil, func() {}, nil
	}
	jump, via, release, err = p.take(ctx, *t.Via, t.Via.jumpKey(), p.options.MaxPerJump)
	if err != nil {
		return nil, nil, nil, nil, atJump(*t.Via, err)
	}
	return jump.conn.tunnel, jump, via, release, nil
}

func (p *Pool) dial(ctx context.Context, t Target, key string, h *host) (_ *shared, err error) {
	open, jump, via, release, err := p.way(ctx, t)
	if err != nil {
		return nil, err
	}
	if err := p.enterRoom(ctx, t, p.slots, func(*host) bool { return true }); err != nil {
		release()
		return nil, err
	}
	s := &shared{refs: 1}
	conn, err := p.handshakes(ctx, t, open, func() {
		p.slots.leave()
		p.gone(key, h, s)
		release()
	})
	if err != nil {
		p.slots.leave()
		if jump != nil {
			err = jump.conn.blame(t, err)
		}
		release()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle(key, h, err)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	if p.closed {
		_ = conn.Close()
		return nil, &Unreachable{Address: t.hostPort(), Reason: ReasonDial, Err: errPoolClosed}
	}
	h.current, h.via = s, via
	return s, nil
}

// giveBack returns a connection after use.
func (p *Pool) giveBack(h *host, s *shared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.refs--; s.refs > 0 {
		return
	}
	if h.current != s {
		_ = s.conn.Close()
		return
	}
	if !s.conn.usable() || p.slots.wanted() || h.via != nil && h.via.users.wanted() || p.closed {
		p.drop(h)
		return
	}
	s.idleSince = p.options.Now()
	s.idle = time.AfterFunc(p.options.IdleTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if h.current == s && s.refs == 0 {
			p.drop(h)
		}
	})
}

// gone forgets an unused connection that was lost or closed.
func (p *Pool) gone(key string, h *host, s *shared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.current == s && s.refs == 0 {
		p.drop(h)
	}
	p.forget(key, h)
}

// Stats returns the counts so far.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := p.stats
	stats.Open = len(p.slots.places)
	for _, h := range p.hosts {
		if h.current != nil && h.current.refs == 0 {
			stats.Idle++
		}
	}
	return stats
}

// Close closes all connections, used ones too, and makes every further Get fail.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, h := range p.hosts {
		if h.current != nil {
			_ = h.current.conn.Close()
		}
	}
	return nil
}
