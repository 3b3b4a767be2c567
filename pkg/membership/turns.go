package membership

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// Turns lets one goroutine of this process at a time act on a host. Between processes the
// compare-and-swap on the host's status and the host's own lock decide; this only keeps a process from
// getting in its own way, above all on hosts without the shim, which have no lock of their own.
type Turns struct {
	mu   sync.Mutex
	busy map[string]struct{}
}

// NewTurns returns Turns that nobody has taken.
func NewTurns() *Turns { return &Turns{busy: map[string]struct{}{}} }

// Try takes the host's turn if it is free. done gives it back and must be called once.
func (t *Turns) Try(host string) (done func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.busy[host]; taken {
		return nil, false
	}
	t.busy[host] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.busy, host)
	}, true
}

// Live reads a host from the API server; the pool does.
type Live interface {
	Live(ctx context.Context, name string) (*v1beta1.SSHHost, error)
}

// Alone takes the host's turn and does something with the host as the API server has it now: the cache
// may not have seen this process's own last write. While the turn is taken it asks to come again after
// busy; a host that is gone is nobody's business.
func (t *Turns) Alone(ctx context.Context, hosts Live, name string, busy time.Duration,
	do func(*v1beta1.SSHHost) (reconcile.Result, error),
) (reconcile.Result, error) {
	done, free := t.Try(name)
	if !free {
		return reconcile.Result{RequeueAfter: busy}, nil
	}
	defer done()
	host, err := hosts.Live(ctx, name)
	if errors.Is(err, pool.ErrHostNotFound) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return do(host)
}
