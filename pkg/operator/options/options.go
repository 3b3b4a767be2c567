// Package options are the controller's settings: a flag each, with an environment variable as its twin. Karpenter
// core's own stand beside them on the same command line.
package options

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

// Options of the controller.
type Options struct {
	// PoolNamespace holds the SSHHosts and their Secrets.
	PoolNamespace string
	// Namespace is the controller's own: it holds the signed documents and the dispatch key.
	Namespace string
	// TrustConfigMap is the ConfigMap with root.N.json and allowlist.json.
	TrustConfigMap string
	// DispatchKeySecret is the Secret with the key that signs orders; it is read again when it changes.
	DispatchKeySecret string
	// DispatchKey names a key file or a key in a KMS and takes the Secret's place.
	DispatchKey string
	// DispatchKeyPassphraseFile holds the passphrase of the file that DispatchKey names.
	DispatchKeyPassphraseFile string
	// Tolerated are the findings of hosts' doctors that do not keep orders from them.
	Tolerated dispatch.Tolerance
	// AuditLog is the file that takes a record of each run, or one of AuditLogStdout and AuditLogOff.
	AuditLog string
	// AuditLogMaxMiB is how large that file may become before it is moved aside, AuditLogBackups how many such are kept.
	AuditLogMaxMiB  int
	AuditLogBackups int
	// AllowRawExec lets hosts in Raw mode run scripts that nobody signed.
	AllowRawExec bool

	// FailureBackoff is how long a host that failed is not offered, twice as long after each further failure in a row,
	// FailureBackoffMax at most. From QuarantineAfter failures on it is in quarantine.
	FailureBackoff    time.Duration
	FailureBackoffMax time.Duration
	QuarantineAfter   int

	ProbeInterval    time.Duration
	ProbeTimeout     time.Duration
	ProbeParallelism int
	JoinParallelism  int
	LeaveParallelism int
	// PrepareParallelism is how many hosts have install run at once before they are claimed.
	PrepareParallelism int
	// SSHMaxConnections and SSHMaxDials bound what is open, and what is being opened, to all hosts together.
	SSHMaxConnections int
	SSHMaxDials       int
	// SSHMaxPerHost bounds the sessions on one host at once, SSHMaxPerJump what one jump host forwards at once.
	SSHMaxPerHost int
	SSHMaxPerJump int

	// Core are karpenter core's options, from the same command line.
	Core *coreoptions.Options
}

// PassphraseEnv is the variable that holds the passphrase of the key that DispatchKey names, where no file does. It
// has no flag: a command line is for everybody to read.
const PassphraseEnv = "DISPATCH_KEY_PASSPHRASE"

// Values of AuditLog that are no files.
const (
	AuditLogStdout = "-"
	AuditLogOff    = "off"
)

// leaderName keeps our lease apart from that of another karpenter in the same namespace.
const leaderName = "karpenter-provider-ssh"

const (
	inClusterNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	maxParallelism     = 1000
	maxAuditLog        = 1 << 20
)

// Parse reads the environment and then the command line. With -h it answers flag.ErrHelp, after usage was printed
// to standard error.
func Parse(args []string, lookup func(string) (string, bool)) (*Options, error) {
	o := &Options{Core: &coreoptions.Options{}}
	fs := &coreoptions.FlagSet{FlagSet: flag.NewFlagSet("karpenter-provider-ssh", flag.ContinueOnError)}
	o.Core.AddFlags(fs)
	twins := o.addFlags(fs.FlagSet)
	var errs []error
	for name, variable := range twins {
		if value, ok := lookup(variable); ok && value != "" {
			if err := fs.Set(name, value); err != nil {
				errs = append(errs, fmt.Errorf("%s=%q: %w", variable, value, err))
			}
		}
	}
	if _, ok := lookup("LEADER_ELECTION_NAME"); !ok {
		errs = append(errs, fs.Set("leader-election-name", leaderName))
	}
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if rest := fs.Args(); len(rest) > 0 {
		errs = append(errs, fmt.Errorf("arguments that are no flags: %s", strings.Join(rest, " ")))
	}
	if err := o.Core.Parse(fs, args...); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, o.checkDispatchKey(fs.FlagSet))
	o.complete()
	if err := errors.Join(append(errs, o.Validate())...); err != nil {
		return nil, err
	}
	return o, nil
}

// addFlags declares the flags and returns their twins: flag → variable.
func (o *Options) addFlags(fs *flag.FlagSet) map[string]string {
	twins := map[string]string{}
	usage := func(name, variable, text string) (string, string) {
		twins[name] = variable
		return name, text + " [" + variable + "]"
	}
	text := func(p *string, name, variable, def, doc string) {
		name, doc = usage(name, variable, doc)
		fs.StringVar(p, name, def, doc)
	}
	number := func(p *int, name, variable string, def int, doc string) {
		name, doc = usage(name, variable, doc)
		fs.IntVar(p, name, def, doc)
	}
	duration := func(p *time.Duration, name, variable string, def time.Duration, doc string) {
		name, doc = usage(name, variable, doc)
		fs.DurationVar(p, name, def, doc)
	}
	text(&o.PoolNamespace, "pool-namespace", "POOL_NAMESPACE", apis.DefaultPoolNamespace, "Namespace of the SSHHosts and their Secrets.")
	text(&o.Namespace, "namespace", "SYSTEM_NAMESPACE", "", "Namespace of the controller, with the signed documents and the dispatch key. Default: the one it runs in, or outside a cluster the pool's.")
	text(&o.TrustConfigMap, "trust-configmap", "TRUST_CONFIGMAP", "kpssh-trust", "ConfigMap with root.N.json and allowlist.json.")
	text(&o.DispatchKeySecret, "dispatch-key-secret", "DISPATCH_KEY_SECRET", "kpssh-dispatch-key", "Secret with the key that signs orders.")
	text(&o.DispatchKey, "dispatch-key", "DISPATCH_KEY", "", "Key that signs orders, in place of the Secret: a file, or awskms://…, gcpkms://…, azurekms://…, hashivault://…")
	text(&o.DispatchKeyPassphraseFile, "dispatch-key-passphrase-file", "DISPATCH_KEY_PASSPHRASE_FILE", "", "File with the passphrase of that key file; without it "+PassphraseEnv+" holds it.")
	duration(&o.FailureBackoff, "failure-backoff", "FAILURE_BACKOFF", pool.DefaultBackoffBase, "How long a host that failed is not offered; twice as long after each further failure in a row.")
	duration(&o.FailureBackoffMax, "failure-backoff-max", "FAILURE_BACKOFF_MAX", pool.DefaultBackoffMax, "How long a host that failed is not offered at most.")
	number(&o.QuarantineAfter, "quarantine-after", "QUARANTINE_AFTER", pool.DefaultQuarantineAfter, "After how many failures in a row a host is in quarantine, which is no more than said of it.")
	duration(&o.ProbeInterval, "probe-interval", "PROBE_INTERVAL", 2*time.Minute, "How often a free host is probed.")
	duration(&o.ProbeTimeout, "probe-timeout", "PROBE_TIMEOUT", 75*time.Second, "How long a probe may take. A login alone may take 45 s.")
	number(&o.ProbeParallelism, "probe-parallelism", "PROBE_PARALLELISM", 64, "How many hosts are probed at once.")
	number(&o.JoinParallelism, "join-parallelism", "JOIN_PARALLELISM", 100, "How many hosts install and join at once.")
	number(&o.LeaveParallelism, "leave-parallelism", "LEAVE_PARALLELISM", 100, "How many hosts leave at once.")
	number(&o.PrepareParallelism, "prepare-parallelism", "PREPARE_PARALLELISM", 10, "How many free hosts are prepared at once (spec.prepare of SSHNodeClasses).")
	number(&o.SSHMaxConnections, "ssh-max-connections", "SSH_MAX_CONNECTIONS", 1024, "How many SSH connections are open at once.")
	number(&o.SSHMaxDials, "ssh-max-dials", "SSH_MAX_DIALS", 64, "How many SSH connections are being opened at once.")
	number(&o.SSHMaxPerHost, "ssh-max-per-host", "SSH_MAX_PER_HOST", 4, "How many sessions a host has at once; its sshd's MaxSessions is 10 by default.")
	number(&o.SSHMaxPerJump, "ssh-max-per-jump", "SSH_MAX_PER_JUMP", 256, "How many connections a jump host forwards at once.")
	text(&o.AuditLog, "audit-log", "AUDIT_LOG", AuditLogStdout, "File that takes a signed record of each run; - is standard output, off is none.")
	number(&o.AuditLogMaxMiB, "audit-log-max-mib", "AUDIT_LOG_MAX_MIB", 64, "How large the audit log's file may become, in MiB, before it is moved aside.")
	number(&o.AuditLogBackups, "audit-log-backups", "AUDIT_LOG_BACKUPS", 4, "How many files of the audit log that were moved aside are kept.")
	name, doc := usage("tolerated-findings", "TOLERATED_FINDINGS", "Findings of kpssh-shim doctor with which a host is still joined; one with any other, also with one of a newer shim, becomes Unhealthy (HostNotHardened). Names with commas between them, none or all. Default: "+dispatch.DefaultTolerance()+".")
	fs.Func(name, doc, func(text string) (err error) {
		o.Tolerated, err = dispatch.ParseTolerance(text)
		return err
	})
	name, doc = usage("allow-raw-exec", "ALLOW_RAW_EXEC", "Let hosts in execMode Raw run scripts that nobody signed.")
	fs.BoolVar(&o.AllowRawExec, name, false, doc)
	return twins
}

// checkDispatchKey returns all that is wrong with where the dispatch key is said to be.
func (o *Options) checkDispatchKey(fs *flag.FlagSet) error {
	var errs []error
	fs.Visit(func(f *flag.Flag) {
		if f.Name == "dispatch-key-secret" && o.DispatchKey != "" {
			errs = append(errs, errors.New("--dispatch-key and --dispatch-key-secret name two places for one key: give the one that holds it and take the other away [DISPATCH_KEY, DISPATCH_KEY_SECRET]"))
		}
	})
	if err := keys.CheckReference(o.DispatchKey); err != nil {
		errs = append(errs, fmt.Errorf("--dispatch-key: %w", err))
	}
	if o.DispatchKeyPassphraseFile != "" && (o.DispatchKey == "" || keys.IsReference(o.DispatchKey)) {
		errs = append(errs, errors.New("--dispatch-key-passphrase-file: is for a key file that --dispatch-key names; a Secret holds the passphrase beside the key, and a KMS needs none"))
	}
	return errors.Join(errs...)
}

func (o *Options) complete() {
	inCluster, err := os.ReadFile(inClusterNamespace)
	if o.Namespace == "" {
		o.Namespace = o.PoolNamespace
		if err == nil {
			o.Namespace = strings.TrimSpace(string(inCluster))
		}
	}
	if o.Core.LeaderElectionNamespace == "" && err != nil {
		o.Core.LeaderElectionNamespace = o.Namespace
	}
}

// Validate returns all that is wrong with the options.
func (o *Options) Validate() error {
	var p problems
	p.name(validation.IsDNS1123Label, "pool-namespace", o.PoolNamespace)
	p.name(validation.IsDNS1123Label, "namespace", o.Namespace)
	p.name(validation.IsDNS1123Subdomain, "trust-configmap", o.TrustConfigMap)
	p.name(validation.IsDNS1123Subdomain, "dispatch-key-secret", o.DispatchKeySecret)
	p.upTo(maxParallelism, "probe-parallelism", o.ProbeParallelism)
	p.upTo(maxParallelism, "join-parallelism", o.JoinParallelism)
	p.upTo(maxParallelism, "leave-parallelism", o.LeaveParallelism)
	p.upTo(maxParallelism, "prepare-parallelism", o.PrepareParallelism)
	p.upTo(maxParallelism, "ssh-max-dials", o.SSHMaxDials)
	p.upTo(maxParallelism, "ssh-max-per-host", o.SSHMaxPerHost)
	p.upTo(maxParallelism, "ssh-max-per-jump", o.SSHMaxPerJump)
	p.upTo(maxAuditLog, "audit-log-max-mib", o.AuditLogMaxMiB)
	p.upTo(maxAuditLog, "audit-log-backups", o.AuditLogBackups)
	p.unless(o.SSHMaxConnections >= o.SSHMaxDials, "--ssh-max-connections %d: must not be less than --ssh-max-dials %d", o.SSHMaxConnections, o.SSHMaxDials)
	p.unless(o.ProbeInterval >= time.Second, "--probe-interval %s: must be at least 1s", o.ProbeInterval)
	p.unless(o.FailureBackoff >= time.Second, "--failure-backoff %s: must be at least 1s", o.FailureBackoff)
	p.unless(o.FailureBackoffMax >= o.FailureBackoff, "--failure-backoff-max %s: must not be less than --failure-backoff %s", o.FailureBackoffMax, o.FailureBackoff)
	p.upTo(maxParallelism, "quarantine-after", o.QuarantineAfter)
	p.unless(o.ProbeTimeout >= time.Second && o.ProbeTimeout <= 10*time.Minute, "--probe-timeout %s: must be between 1s and 10m", o.ProbeTimeout)
	p.port("metrics-port", o.Core.MetricsPort)
	p.port("health-probe-port", o.Core.HealthProbePort)
	return errors.Join(p...)
}

// problems are what is wrong with options.
type problems []error

func (p *problems) unless(good bool, format string, args ...any) {
	if !good {
		*p = append(*p, fmt.Errorf(format, args...))
	}
}

func (p *problems) name(check func(string) []string, flag, value string) {
	for _, problem := range check(value) {
		p.unless(false, "--%s %q: %s", flag, value, problem)
	}
}

func (p *problems) upTo(most int, flag string, value int) {
	p.unless(value >= 1 && value <= most, "--%s %d: must be between 1 and %d", flag, value, most)
}

func (p *problems) port(flag string, value int) {
	p.unless(value >= 0 && value <= 65535, "--%s %d: is not a port", flag, value)
}
