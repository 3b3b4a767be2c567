package join

import (
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Remembered is how many things of hosts the controller remembers.
func (c *Controller) Remembered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.joined) + len(c.unreachable) + len(c.vanished)
}

// Reconciler is what Register puts on the manager.
func (c *Controller) Reconciler() reconcile.Reconciler { return c.reconciler() }

// NewNodes is what Register has look at Nodes that come.
func (c *Controller) NewNodes() handler.EventHandler { return c.newNodes() }
