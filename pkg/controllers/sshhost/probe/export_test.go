package probe

import "sigs.k8s.io/controller-runtime/pkg/reconcile"

// Remembered is how many hosts the controller remembers something of.
func (c *Controller) Remembered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.brought)
}

// Reconciler is what Register puts on the manager.
func (c *Controller) Reconciler() reconcile.Reconciler { return c.reconciler() }
