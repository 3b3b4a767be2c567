package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/adminlogin"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/enroll"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

const hostEnrollUsage = `
Usage: @kpssh host enroll [flags] USER@HOST[:PORT]

Brings a host into the pool over a login that you have already: uploads
kpssh-shim for its architecture, sets up user kpssh with the shim as its only
program, has the host make its identity, checks the statement that it signs,
and logs in once as the controller will. Prints the SSHHost manifest, and writes
it and the Secret with the SSH key and the host's key into DIR/manifests. Safe
to run again: a host keeps its identity.

Flags:
  --dir DIR              trust folder (default $KPSSH_DIR, else "trust")
  --name NAME            name of the SSHHost (default: the host's own name)
  -i, --identity FILE    private key for the login; repeat for more (default:
                         ssh-agent, then ~/.ssh/id_*)
  --known-hosts FILE     in place of ~/.ssh/known_hosts
  --host-key KEY         the host's key: SHA256: fingerprint or public key line
  --accept-new-host-key  take the key of a host that known_hosts does not name
  --ssh-command CMD      log in with your own ssh and its configuration: jump
                         hosts, hardware keys; for example "ssh -J bastion"
  --shim PATH            kpssh-shim binary, or the folder of
                         kpssh-shim-linux-ARCH (default: beside this program);
                         not used on a host that has the package
  --address ADDR         address for the controller (default HOST)
  --node-address IP      address that the kubelet advertises
  --class NAME           host class, one instance type per class
  --label KEY=VALUE      label of the SSHHost; repeat for more
  --cpu N, --memory SIZE capacity, in place of what the host has
  --with-secret          print the Secret as well, to pipe into kubectl apply
  --no-check             do not log in as the controller will
  --reset-trust          make a host that trusts another root trust this one
  --timeout DURATION     give up after that long (default 5m)

Example:
    $ @kpssh host enroll root@10.0.0.11
    $ @kpssh host enroll --class small --ssh-command "ssh -J bastion" pi@rpi-3
    $ kubectl apply -f trust/manifests/
`

type enrollOptions struct {
	dir, name, shim, sshCommand     string
	address, nodeAddress, class     string
	cpu, memory                     string
	identities, labels              files
	login                           adminlogin.Options
	withSecret, noCheck, resetTrust bool
	timeout                         time.Duration
}

func hostEnrollCommand() *cli.Command {
	o := &enrollOptions{}
	return &cli.Command{
		Name: "enroll", Short: "bring a host into the pool", Usage: hostEnrollUsage, Flags: o.flags,
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("one login is needed: USER@HOST[:PORT]")
			}
			login, err := adminlogin.Parse(args[0])
			if err != nil {
				return cli.Usagef("%v", err)
			}
			if err := o.check(login); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, o.timeout)
			defer cancel()
			return o.run(ctx, env, login)
		},
	}
}

func (o *enrollOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.dir, "dir", "", "")
	fs.StringVar(&o.name, "name", "", "")
	fs.Var(&o.identities, "i", "")
	fs.Var(&o.identities, "identity", "")
	fs.StringVar(&o.login.KnownHosts, "known-hosts", "", "")
	fs.StringVar(&o.login.HostKey, "host-key", "", "")
	fs.BoolVar(&o.login.AcceptNew, "accept-new-host-key", false, "")
	fs.StringVar(&o.sshCommand, "ssh-command", "", "")
	fs.StringVar(&o.shim, "shim", "", "")
	fs.StringVar(&o.address, "address", "", "")
	fs.StringVar(&o.nodeAddress, "node-address", "", "")
	fs.StringVar(&o.class, "class", "", "")
	fs.Var(&o.labels, "label", "")
	fs.StringVar(&o.cpu, "cpu", "", "")
	fs.StringVar(&o.memory, "memory", "", "")
	fs.BoolVar(&o.withSecret, "with-secret", false, "")
	fs.BoolVar(&o.noCheck, "no-check", false, "")
	fs.BoolVar(&o.resetTrust, "reset-trust", false, "")
	fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "")
}

var labelPattern = regexp.MustCompile(`^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?=([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)

// check finds what the API server would refuse before the host is touched.
func (o *enrollOptions) check(login adminlogin.Login) error {
	o.login.Identities = o.identities
	if o.address == "" {
		o.address = login.Host
	}
	o.address, _ = canonical(o.address)
	var isIP bool
	if o.nodeAddress, isIP = canonical(o.nodeAddress); o.nodeAddress != "" && !isIP {
		return cli.Usagef("--node-address %q is not an IP address", o.nodeAddress)
	}
	for _, q := range []string{o.cpu, o.memory} {
		if parsed, err := resource.ParseQuantity(q); q != "" && (err != nil || parsed.Sign() <= 0) {
			return cli.Usagef("%q is not an amount of CPUs or memory", q)
		}
	}
	if o.class != "" {
		o.labels = append(o.labels, apis.LabelHostClass+"="+o.class)
	}
	for _, l := range o.labels {
		if !labelPattern.MatchString(l) {
			return cli.Usagef("%q cannot be a label, KEY=VALUE", l)
		}
	}
	return nil
}

// canonical spells an address as the API asks for it, and says whether it is an IP address.
func canonical(address string) (string, bool) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return strings.ToLower(address), false
	}
	return ip.String(), true
}

func (o *enrollOptions) run(ctx context.Context, env *cli.Env, login adminlogin.Login) error {
	d, err := trustdir.Open(env, o.dir)
	if err != nil {
		return err
	}
	set, err := documents.Read(d)
	if err != nil {
		return err
	}
	if err := set.CheckRoot(env.Now()); err != nil {
		return err
	}
	private, signer, err := clientKey(d)
	if err != nil {
		return err
	}
	transport, err := o.dial(ctx, env, login)
	if err != nil {
		return err
	}
	defer func() { _ = transport.Close() }()
	facts, err := enroll.Ask(ctx, transport)
	if err != nil {
		return err
	}
	if o.name, err = enroll.Name(o.name, facts.Hostname); err != nil {
		return err
	}
	id, err := o.install(ctx, env, login, transport, facts, set, signer)
	if err != nil {
		return err
	}
	if err := o.checkLogin(ctx, env, login, signer, id); err != nil {
		return err
	}
	return o.write(env, d, login, facts, id, private)
}

// clientKey is the key that the controller will log in with.
func clientKey(d *trustdir.Dir) ([]byte, ssh.Signer, error) {
	private, err := os.ReadFile(d.SSHKey())
	if err != nil {
		return nil, nil, cli.Hint(fmt.Errorf("reading the controller's SSH key: %w", err), "enrolment needs online/ssh of the folder that init made")
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %q: %w", d.SSHKey(), err)
	}
	return private, signer, nil
}

func (o *enrollOptions) dial(ctx context.Context, env *cli.Env, login adminlogin.Login) (adminlogin.Transport, error) {
	if o.sshCommand != "" {
		return adminlogin.Program(env, o.sshCommand, login)
	}
	return adminlogin.Dial(ctx, env, login, o.login)
}

func (o *enrollOptions) install(ctx context.Context, env *cli.Env, login adminlogin.Login, transport adminlogin.Transport, facts enroll.Facts, set *documents.Set, signer ssh.Signer) (*enroll.Identity, error) {
	root, err := adminlogin.BecomeRoot(ctx, env, transport, login)
	if err != nil {
		return nil, err
	}
	roots, err := set.RootDigests()
	if err != nil {
		return nil, err
	}
	if !o.resetTrust {
		if err := enroll.CheckTrust(ctx, root, roots); err != nil {
			return nil, err
		}
	}
	uploaded, err := o.program(ctx, env, root, facts.Arch)
	if err != nil {
		return nil, err
	}
	current := set.Chain[len(set.Chain)-1]
	authorized := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	if err := enroll.Install(ctx, root, uploaded, authorized, current); err != nil {
		return nil, err
	}
	statement, err := enroll.Identify(ctx, root, o.resetTrust)
	if err != nil {
		return nil, err
	}
	id, err := enroll.Believe(statement, roots, transport.HostKey())
	if err != nil {
		return nil, err
	}
	env.Progress("%s: enrolled as host %s, kpssh-shim %s", o.name, id.HostID, id.Shim)
	if len(id.Findings) > 0 {
		env.Warnf("%s: the doctor found %s", o.name, strings.Join(id.Findings, ", "))
		env.Warnf("%s", enroll.Doctor(ctx, root))
	}
	return id, nil
}

// program uploads the shim, unless a package has brought one: that one is its own to renew.
func (o *enrollOptions) program(ctx context.Context, env *cli.Env, root *adminlogin.Root, arch string) (uploaded string, err error) {
	packaged, err := enroll.Packaged(ctx, root)
	if err != nil {
		return "", err
	}
	if packaged == "" {
		binary, path, err := enroll.Binary(o.shim, env.Executable, arch)
		if err != nil {
			return "", err
		}
		env.Progress("%s: installing %s (linux/%s)", o.name, path, arch)
		return enroll.Upload(ctx, root, binary)
	}
	env.Progress("%s: using kpssh-shim %s of the package on the host", o.name, packaged)
	if enroll.Older(packaged, env.Version) {
		env.Warnf("%s: kpssh-shim %s is older than this kpssh %s: upgrade the package", o.name, packaged, env.Version)
	}
	return "", nil
}

func (o *enrollOptions) checkLogin(ctx context.Context, env *cli.Env, login adminlogin.Login, signer ssh.Signer, id *enroll.Identity) error {
	if o.noCheck {
		return nil
	}
	pin, err := remote.Pin(id.HostKey)
	if err != nil {
		return err
	}
	err = enroll.Check(ctx, remote.Target{Address: o.address, Port: login.Port, User: "kpssh", Keys: []ssh.Signer{signer}, HostKey: pin}, id)
	var unreachable *remote.Unreachable
	switch {
	case err == nil:
		env.Progress("%s: logged in as kpssh, and the host's hello verifies", o.name)
		return nil
	case o.sshCommand != "" && errors.As(err, &unreachable):
		env.Warnf("%s: not checked from here: %v", o.name, err)
		return nil
	}
	return cli.Hint(fmt.Errorf("the host is set up, but the controller could not talk to it: %w", err),
		"look at '%s doctor' on the host; --no-check skips this where the host cannot be reached from here", wire.ShimPath)
}

func (o *enrollOptions) write(env *cli.Env, d *trustdir.Dir, login adminlogin.Login, facts enroll.Facts, id *enroll.Identity, private []byte) error {
	secretName := o.name + "-ssh"
	secret, err := manifest.SSH(d.PoolNamespace, secretName, private, id.HostKey)
	if err != nil {
		return err
	}
	spec := v1beta1.SSHHostSpec{
		Address:         o.address,
		NodeAddress:     o.nodeAddress,
		SSHKeySecretRef: v1beta1.SecretRef{Name: secretName},
		Capacity:        o.capacity(facts),
		ExecMode:        v1beta1.ExecModeVerified,
		Shim:            &v1beta1.ShimIdentity{HostID: id.HostID, ReceiptKey: id.ReceiptKey.String()},
	}
	if login.Port != 22 {
		spec.Port = int32(login.Port)
	}
	labels := map[string]string{}
	for _, l := range o.labels {
		key, value, _ := strings.Cut(l, "=")
		labels[key] = value
	}
	host, err := manifest.Host(d.PoolNamespace, o.name, labels, spec)
	if err != nil {
		return err
	}
	secretPath := d.Manifest("30-" + o.name + ".secret.yaml")
	if err := cli.WriteFile(secretPath, secret, 0o600); err != nil {
		return err
	}
	if err := cli.WriteFile(d.Manifest("40-"+o.name+".yaml"), host, 0o644); err != nil {
		return err
	}
	if o.withSecret {
		host = append(append(secret, "---\n"...), host...)
	} else {
		env.Hintf("kubectl apply -f %s -f %s", secretPath, d.Manifest("40-"+o.name+".yaml"))
	}
	_, err = env.Stdout.Write(host)
	return err
}

// capacity is what the host has, in the units that people read.
func (o *enrollOptions) capacity(facts enroll.Facts) corev1.ResourceList {
	cpu, memory := resource.NewQuantity(int64(facts.CPUs), resource.DecimalSI), resource.NewQuantity(facts.MemoryBytes>>20<<20, resource.BinarySI)
	if o.cpu != "" {
		*cpu = resource.MustParse(o.cpu)
	}
	if o.memory != "" {
		*memory = resource.MustParse(o.memory)
	}
	return corev1.ResourceList{corev1.ResourceCPU: *cpu, corev1.ResourceMemory: *memory}
}
