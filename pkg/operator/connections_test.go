package operator

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// Field report R15 (kubespray#10514 and others): that an sshd throttles us shows in a metric.
func TestR15ThrottlingShowsInTheMetrics(t *testing.T) {
	collector := newConnectionCollector(func() remote.PoolStats { return remote.PoolStats{Open: 7, Idle: 3, Throttled: 5, Paused: 2} })
	const want = `
# HELP kpssh_ssh_connections SSH connections that are open or being opened.
# TYPE kpssh_ssh_connections gauge
kpssh_ssh_connections 7
# HELP kpssh_ssh_paused_total SSH handshakes that were put off to spare the patience of an sshd.
# TYPE kpssh_ssh_paused_total counter
kpssh_ssh_paused_total 2
# HELP kpssh_ssh_throttled_total SSH handshakes that an sshd refused for now (MaxStartups, PerSourcePenalties) or hung up on.
# TYPE kpssh_ssh_throttled_total counter
kpssh_ssh_throttled_total 5
`
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want), "kpssh_ssh_connections", "kpssh_ssh_paused_total", "kpssh_ssh_throttled_total"); err != nil {
		t.Error(err)
	}
}
