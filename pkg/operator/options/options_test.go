package options_test

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/operator/options"
)

func environment(set map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := set[name]
		return value, ok
	}
}

func TestDefaults(t *testing.T) {
	o, err := options.Parse(nil, environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	if o.PoolNamespace != "kpssh-system" || o.ProbeInterval != 2*time.Minute || o.ProbeTimeout != 75*time.Second || o.AllowRawExec ||
		o.AuditLog != "-" || o.TrustConfigMap != "kpssh-trust" || o.DispatchKeySecret != "kpssh-dispatch-key" {
		t.Errorf("got %+v", o)
	}
	if o.Core.LeaderElectionName != "karpenter-provider-ssh" || o.Core.DisableLeaderElection {
		t.Errorf("lease %q, disabled %v", o.Core.LeaderElectionName, o.Core.DisableLeaderElection)
	}
	if _, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/namespace"); err != nil &&
		(o.Namespace != "kpssh-system" || o.Core.LeaderElectionNamespace != "kpssh-system") {
		t.Errorf("outside a cluster: namespace %q, lease in %q", o.Namespace, o.Core.LeaderElectionNamespace)
	}
}

func TestAFlagIsStrongerThanItsVariable(t *testing.T) {
	o, err := options.Parse(
		[]string{"--probe-interval", "5s", "--allow-raw-exec=false", "--metrics-port", "0", "--disable-leader-election=true"},
		environment(map[string]string{
			"PROBE_INTERVAL": "9s", "ALLOW_RAW_EXEC": "true", "POOL_NAMESPACE": "hosts", "SYSTEM_NAMESPACE": "control", "JOIN_PARALLELISM": "7", "SSH_MAX_DIALS": "",
		}))
	if err != nil {
		t.Fatal(err)
	}
	if o.ProbeInterval != 5*time.Second || o.AllowRawExec || o.PoolNamespace != "hosts" || o.Namespace != "control" || o.JoinParallelism != 7 || o.SSHMaxDials != 64 {
		t.Errorf("got %+v", o)
	}
	if o.Core.MetricsPort != 0 || !o.Core.DisableLeaderElection {
		t.Errorf("core: port %d, leader election off %v", o.Core.MetricsPort, o.Core.DisableLeaderElection)
	}
}

func TestAllThatIsWrongIsSaidAtOnce(t *testing.T) {
	_, err := options.Parse(
		[]string{"--probe-timeout", "1h", "--join-parallelism", "0", "--health-probe-port", "70000", "--ssh-max-connections", "1", "extra"},
		environment(map[string]string{"POOL_NAMESPACE": "No Name", "PROBE_INTERVAL": "soon", "TRUST_CONFIGMAP": "-x-"}))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"--probe-timeout 1h", "--join-parallelism 0", "--health-probe-port 70000", "--ssh-max-connections 1", "extra",
		`--pool-namespace "No Name"`, `PROBE_INTERVAL="soon"`, `--trust-configmap "-x-"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing about %s in %v", want, err)
		}
	}
}

func TestEachBoundIsChecked(t *testing.T) {
	for args, valid := range map[string]bool{
		"--probe-interval 1s": true, "--probe-interval 999ms": false, "--probe-timeout 1s": true, "--probe-timeout 10m1s": false,
		"--failure-backoff 1s": true, "--failure-backoff 0s": false, "--failure-backoff-max 29s": false, "--quarantine-after 0": false,
		"--leave-parallelism 1": true, "--leave-parallelism 1001": false, "--probe-parallelism -1": false, "--namespace a.b": false,
		"--tolerated-findings none": true, "--tolerated-findings tty,home": true, "--tolerated-findings TTY": false,
		"--audit-log-max-mib 0": false, "--audit-log-backups 0": false, "--audit-log off --audit-log-backups 1": true,
		"--dispatch-key-secret a.b": true, "--dispatch-key-secret A": false, "--metrics-port -1": false, "--log-level loud": false,
	} {
		_, err := options.Parse(strings.Fields(args), environment(nil))
		if valid != (err == nil) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestTheDispatchKeyIsInOnePlace(t *testing.T) {
	for name, c := range map[string]struct {
		args string
		env  map[string]string
		says string
	}{
		"nowhere is the Secret":            {"", nil, ""},
		"in another Secret":                {"--dispatch-key-secret s", nil, ""},
		"in a KMS":                         {"--dispatch-key awskms:///alias/kpssh", nil, ""},
		"in a KMS, by variable":            {"", map[string]string{"DISPATCH_KEY": "hashivault://kpssh"}, ""},
		"in an encrypted file":             {"--dispatch-key /key --dispatch-key-passphrase-file /word", nil, ""},
		"in a KMS and a Secret":            {"--dispatch-key awskms:///alias/kpssh --dispatch-key-secret s", nil, "give the one that holds it"},
		"in a file and a Secret, mixed":    {"--dispatch-key /key", map[string]string{"DISPATCH_KEY_SECRET": "s"}, "give the one that holds it"},
		"in a scheme that nobody knows":    {"--dispatch-key evil://x", nil, "unknown-key-scheme"},
		"in a reference of another form":   {"--dispatch-key gcpkms://x", nil, "gcpkms://projects/"},
		"in a Secret, with a passphrase":   {"--dispatch-key-passphrase-file /word", nil, "a Secret holds the passphrase beside the key"},
		"in a KMS, with a passphrase file": {"--dispatch-key hashivault://k --dispatch-key-passphrase-file /word", nil, "a KMS needs none"},
	} {
		_, err := options.Parse(strings.Fields(c.args), environment(c.env))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHelpIsNoFailureOfItsOwn(t *testing.T) {
	if _, err := options.Parse([]string{"-h"}, environment(nil)); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
}
