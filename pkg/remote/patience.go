package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"time"
)

// What OpenSSH 9.8 and later do about a source, sshd_config(5), PerSourcePenalties: each failed login adds
// authPenalty, a sum above minPenalty keeps the source out until it has worn off, and that for at most maxPenalty.
const (
	authPenalty = 5 * time.Second
	minPenalty  = 15 * time.Second
	maxPenalty  = 10 * time.Minute
	// firstBan is how long the first ban is: failed logins add up to minPenalty without one, and the next begins it. sshd
	// counts whole seconds.
	firstBan = minPenalty + authPenalty + time.Second
)

const (
	// firstRetry grows twofold to maxRetry while an sshd has too many logins under way.
	firstRetry = 100 * time.Millisecond
	maxRetry   = 2 * time.Second
	// hangUps is how often an sshd that hangs up without a word is dialled again at once: one under load does.
	hangUps = 2
)

// place is what a pool knows of one sshd's patience, whoever logs in there.
type place struct {
	dials chan struct{} // held during a handshake

	// guarded by Pool.mu
	interest int
	debt     time.Time // until when our failed logins count
	banned   time.Time // until when it takes no connection
	bans     int
}

func (p *Pool) enterPlace(key string) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.places[key]
	if at == nil {
		at = &place{dials: make(chan struct{}, p.options.MaxPerAddress)}
		p.places[key] = at
	}
	at.interest++
	return at
}

func (p *Pool) leavePlace(key string, at *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at.interest--; at.interest > 0 || p.places[key] != at {
		return
	}
	keep := at.memory().Sub(p.options.Now())
	if keep <= 0 {
		delete(p.places, key)
		return
	}
	time.AfterFunc(keep, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if at.interest == 0 && p.places[key] == at {
			delete(p.places, key)
		}
	})
}

// memory is until when there is something to remember.
func (at *place) memory() time.Time {
	if at.banned.After(at.debt) {
		return at.banned.Add(minPenalty) // another ban soon after is a longer one
	}
	return at.debt
}

// handshakes dials until the sshd has given its own answer, and not one that it is too busy for any.
func (p *Pool) handshakes(ctx context.Context, t Target, open opener, onClose func()) (*Conn, error) {
	patience, cancel := context.WithTimeout(ctx, t.handshakeTimeout())
	defer cancel()
	key := t.place()
	at := p.enterPlace(key)
	defer p.leavePlace(key, at)
	hungUp := 0
	for attempt := 0; ; attempt++ {
		if err := p.pause(patience, t, at); err != nil {
			return nil, err
		}
		conn, err := p.handshake(ctx, t, at, open, onClose)
		p.remember(at, err)
		switch {
		case errors.Is(err, errMaxStartups):
		case isHangUp(err) && hungUp < hangUps:
			hungUp++
		case errors.Is(err, errPenalty):
			continue // pause waits, or says until when
		default:
			return conn, err
		}
		if wait(patience, retryDelay(attempt)) != nil {
			return nil, err
		}
	}
}

func (p *Pool) handshake(ctx context.Context, t Target, at *place, open opener, onClose func()) (*Conn, error) {
	if err := p.acquire(ctx, t, at.dials); err != nil {
		return nil, err
	}
	defer func() { <-at.dials }()
	if err := p.acquire(ctx, t, p.dials); err != nil {
		return nil, err
	}
	defer func() { <-p.dials }()
	p.count(func(s *PoolStats) { s.Dials++ })
	return dial(ctx, t, open, onClose)
}

// isHangUp tells a connection that was accepted and closed again before the peer said anything.
func isHangUp(err error) bool {
	return errors.Is(err, errHungUp) && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET))
}

// retryDelay is random, so that those who were refused together do not come back together.
func retryDelay(attempt int) time.Duration {
	most := min(firstRetry<<min(attempt, 10), maxRetry)
	return most/2 + rand.N(most) //nolint:gosec // spreads load, hides nothing
}

// remember keeps the books of an sshd as it does itself.
func (p *Pool) remember(at *place, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.options.Now()
	switch {
	case err == nil:
		at.bans, at.banned = 0, time.Time{}
	case errors.Is(err, errPenalty):
		p.stats.Throttled++
		if !now.Before(at.banned) { // others that were under way tell the same ban
			at.banned = now.Add(min(firstBan<<min(at.bans, 10), maxPenalty))
			at.bans++
		}
	case errors.Is(err, errMaxStartups) || isHangUp(err):
		p.stats.Throttled++
	case Class(err) == ClassAuthRejected:
		if at.debt.Before(now) {
			at.debt = now
		}
		at.debt = at.debt.Add(authPenalty)
	}
}

// pause waits until another failed login would not get us banned, and while we are. Where that is after ctx ends it
// says so at once.
func (p *Pool) pause(ctx context.Context, t Target, at *place) error {
	p.mu.Lock()
	now := p.options.Now()
	until, reason := at.banned, errPenalty
	if clear := at.debt.Add(authPenalty + time.Second - minPenalty); clear.After(until) {
		until, reason = clear, errDebt
	}
	if !until.After(now) {
		p.mu.Unlock()
		return nil
	}
	p.stats.Paused++
	p.mu.Unlock()
	left := until.Sub(now)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < left {
		return &Unreachable{Address: t.hostPort(), Reason: ReasonThrottled, Err: reason, RetryAt: until}
	}
	if err := wait(ctx, left); err != nil {
		return unreachable(ctx, t, ReasonTimeout, fmt.Errorf("waiting: %w", err))
	}
	return nil
}

var errDebt = errors.New("further failed logins would have sshd keep our address out (PerSourcePenalties)")

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
