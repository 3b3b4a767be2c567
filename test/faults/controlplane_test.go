//go:build faults

package faults

import "testing"

// TestTheAPIServerRestarts kills it during join and leave and starts it again.
func TestTheAPIServerRestarts(t *testing.T) {
	each(t, "apiserver", []moment{joining, inUse, leaving}, func(t *testing.T, tr *trial, m moment) {
		tr.reach(m)
		on.KillAPIServer()
		must(t, on.RestartAPIServer(within(t)))
		tr.finish(m)
	})
}

// TestEtcdRestarts kills it during join and leave and starts it again on its data.
func TestEtcdRestarts(t *testing.T) {
	each(t, "etcd", []moment{joining, inUse, leaving}, func(t *testing.T, tr *trial, m moment) {
		tr.reach(m)
		on.KillEtcd()
		must(t, on.RestartEtcd(within(t)))
		tr.finish(m)
	})
}
