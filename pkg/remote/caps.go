package remote

import (
	"context"
	"fmt"
	"time"
)

// acquire waits for room in a semaphore.
func (p *Pool) acquire(ctx context.Context, t Target, semaphore chan struct{}) error {
	select {
	case semaphore <- struct{}{}:
		return nil
	default:
	}
	p.count(func(s *PoolStats) { s.Waits++ })
	select {
	case semaphore <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &Unreachable{Address: t.hostPort(), Reason: ReasonTimeout, Err: fmt.Errorf("waiting for a free connection: %w", context.Cause(ctx))}
	}
}

// settle keeps count of a host's rejections in a row.
func (p *Pool) settle(key string, h *host, err error) {
	switch Class(err) {
	case ClassNone:
		h.rejections, h.blockedUntil, h.keepUntil = 0, time.Time{}, time.Time{}
	case ClassAuthRejected:
		now := p.options.Now()
		if h.rejections++; h.rejections >= authAttempts {
			factor := min(1<<min(h.rejections-authAttempts, 4), maxBackoff)
			h.blockedUntil = now.Add(time.Duration(factor) * p.options.AuthBackoff)
		}
		keep := 2 * maxBackoff * p.options.AuthBackoff
		h.keepUntil = now.Add(keep)
		time.AfterFunc(keep, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.forget(key, h) // nobody may ever ask for it again
		})
	}
}

// room is a cap that those who wait make room under, by having idle connections closed. Nobody passes those who wait,
// so that each of them finds the room that it made.
type room struct {
	places  chan struct{}
	waiting int // guarded by Pool.mu
}

func newRoom(places int) *room { return &room{places: make(chan struct{}, places)} }

func (r *room) leave() { <-r.places }

// wanted is asked with Pool.mu held.
func (r *room) wanted() bool { return r.waiting > 0 }

// enterRoom waits for a place, and closes the idle connection that has been so for longest of those that among picks.
func (p *Pool) enterRoom(ctx context.Context, t Target, r *room, among func(*host) bool) error {
	p.mu.Lock()
	if r.waiting == 0 {
		select {
		case r.places <- struct{}{}:
			p.mu.Unlock()
			return nil
		default:
		}
	}
	r.waiting++
	p.evict(among)
	p.mu.Unlock()
	defer p.count(func(*PoolStats) { r.waiting-- })
	return p.acquire(ctx, t, r.places)
}

// evict closes the connection that has been idle for longest.
func (p *Pool) evict(among func(*host) bool) {
	var oldest *host
	for _, h := range p.hosts {
		if h.current == nil || h.current.refs > 0 || !among(h) {
			continue
		}
		if oldest == nil || h.current.idleSince.Before(oldest.current.idleSince) {
			oldest = h
		}
	}
	if oldest != nil {
		p.stats.Evicted++
		p.drop(oldest)
	}
}
