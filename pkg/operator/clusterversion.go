package operator

import (
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// versionMemory is how long the API server's version is believed: it changes with an upgrade of the cluster.
const versionMemory = 10 * time.Minute

// clusterVersion asks the API server for its version, and remembers the answer, also that there was none.
type clusterVersion struct {
	config *rest.Config
	clock  clock.PassiveClock

	mu    sync.Mutex
	asked time.Time
	known string
}

func newClusterVersion(config *rest.Config, clock clock.PassiveClock) *clusterVersion {
	return &clusterVersion{config: config, clock: clock}
}

// get returns it, "v1.35.2"; what was known before while the API server does not answer, or nothing.
func (v *clusterVersion) get() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.asked.IsZero() && v.clock.Since(v.asked) < versionMemory {
		return v.known
	}
	v.asked = v.clock.Now()
	config := rest.CopyConfig(v.config)
	config.Timeout = readTimeout
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return v.known
	}
	if info, err := client.ServerVersion(); err == nil {
		v.known = info.GitVersion
	}
	return v.known
}
