//go:build e2e

package transport

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// documentedLine is the line for a jump host's authorized_keys that the documentation gives, with the key in place.
func documentedLine(t *testing.T, key keyFile) string {
	t.Helper()
	for line := range strings.Lines(read(t, "../../docs/host-setup.md")) {
		if options, ok := strings.CutSuffix(strings.TrimSpace(line), " ssh-ed25519 AAAA…"); ok && strings.HasPrefix(options, "restrict,") {
			return options + " " + key.public(t)
		}
	}
	t.Fatal("docs/host-setup.md gives no line for a jump host")
	return ""
}

// Field report R9 (k3sup#304, rke#103, terraform-provider-rke#117, dstack#2010, dstack#2472, tkestack#2000, pulumi#856): an
// SSHHost behind two jump hosts, each with its own user, key, port and pin; and gopher PR#90: the line that our
// documentation gives for them is enough.
func TestR9TwoJumpHostsEachWithItsOwnUserKeyPortAndPin(t *testing.T) {
	keys := []keyFile{newKey(t, "-t", "ed25519"), newKey(t, "-t", "ed25519"), newKey(t, "-t", "ed25519")}
	first := start(t, spec{namespace: gate, address: gateAddress, port: 2201, authorized: map[string][]string{"ops": {documentedLine(t, keys[0])}}})
	second := start(t, spec{namespace: relay, address: relayAddress, port: 2202, authorized: map[string][]string{"relay": {documentedLine(t, keys[1])}}})
	last := start(t, spec{namespace: hosts, address: hostAddress, port: 2203, authorized: map[string][]string{"kpssh": {keys[2].public(t)}}})

	secret := func(name string, key keyFile, d *daemon) *corev1.Secret {
		s := key.secret(t, map[string]string{hostaccess.KeyKnownHost: d.hostKeys[0].public(t)})
		s.Name = name
		return s
	}
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "host-a"},
		Spec: v1beta1.SSHHostSpec{
			Address: hostAddress, Port: 2203, User: "kpssh", ExecMode: v1beta1.ExecModeRaw, SSHKeySecretRef: v1beta1.SecretRef{Name: "host-ssh"},
			Jumps: []v1beta1.JumpHost{
				{Address: gateAddress, Port: 2201, User: "ops", SSHKeySecretRef: v1beta1.SecretRef{Name: "gate-ssh"}},
				{Address: relayAddress, Port: 2202, User: "relay", SSHKeySecretRef: v1beta1.SecretRef{Name: "relay-ssh"}},
			},
		},
	}
	reader := fake.NewClientBuilder().WithObjects(secret("gate-ssh", keys[0], first), secret("relay-ssh", keys[1], second), secret("host-ssh", keys[2], last)).Build()
	reach, err := hostaccess.New(reader, namespace, true).Host(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if user, from := logIn(t, reach.Target); user != "kpssh" || from != "10.77.2.1" {
		t.Errorf("logged in as %q from %q", user, from)
	}
	for i, d := range []*daemon{first, second, last} {
		if user := []string{"ops", "relay", "kpssh"}[i]; !d.log.accepted(user, keys[i].fingerprint(t)) {
			t.Errorf("hop %d was not logged in to as %q with its own key", i+1, user)
		}
	}
	// What the way there is for: without it there is none.
	direct := reach.Target
	direct.Via, direct.HandshakeTimeout = nil, 2*time.Second
	if _, err := remote.Dial(t.Context(), direct); remote.Class(err) != remote.ClassUnreachable {
		t.Errorf("without jump hosts: got %v", err)
	}
}

// Field report R9: for each hop and each way of failing, the hop that failed is named, and what is wrong there.
func TestR9TheHopThatFailedIsNamed(t *testing.T) {
	key := newKey(t, "-t", "ed25519")
	authorized := map[string][]string{
		"ops":        {"restrict,port-forwarding " + key.public(t)},
		"restricted": {"restrict " + key.public(t)},
		"relay":      {`restrict,port-forwarding,permitopen="192.0.2.1:22" ` + key.public(t)},
		"kpssh":      {key.public(t)},
	}
	hops := []*daemon{
		start(t, spec{namespace: gate, address: gateAddress, port: 2211, authorized: authorized}),
		start(t, spec{namespace: relay, address: relayAddress, port: 2212, authorized: authorized}),
		start(t, spec{namespace: hosts, address: hostAddress, port: 2213, authorized: authorized}),
	}
	// The same with another host key, and one that forwards nothing for anybody.
	reinstalled := []*daemon{
		start(t, spec{namespace: gate, address: gateAddress, port: 2221, authorized: authorized}),
		start(t, spec{namespace: relay, address: relayAddress, port: 2222, authorized: authorized}),
		start(t, spec{namespace: hosts, address: hostAddress, port: 2223, authorized: authorized}),
	}
	closed := []*daemon{
		start(t, spec{namespace: gate, address: gateAddress, port: 2231, authorized: authorized, options: []string{"AllowTcpForwarding no"}}),
		start(t, spec{namespace: relay, address: relayAddress, port: 2232, authorized: authorized, options: []string{"AllowTcpForwarding remote"}}),
	}
	for name, test := range map[string]struct {
		spoil  func(hop *remote.Target, i int)
		hops   int // that it can be played at: a host forwards nothing
		class  remote.ErrorClass
		reason string
		says   string
	}{
		"nothing listens": {
			spoil: func(hop *remote.Target, _ int) { hop.Port = 2299 }, hops: 3,
			class: remote.ClassUnreachable, reason: remote.ReasonDial, says: "onnection refused"},
		"no machine is there": {
			spoil: func(hop *remote.Target, _ int) {
				hop.Address, hop.HandshakeTimeout = strings.TrimSuffix(hop.Address, "2")+"99", 10*time.Second
			}, hops: 3,
			class: remote.ClassUnreachable, reason: remote.ReasonDial, says: "o route to host"},
		"its host key is another one": {
			spoil: func(hop *remote.Target, i int) { hop.Port = reinstalled[i].port }, hops: 3,
			class: remote.ClassHostKeyMismatch, reason: remote.ReasonHostKeyMismatch, says: "got SHA256:"},
		"it takes no key of the user": {
			spoil: func(hop *remote.Target, _ int) { hop.User = "stranger" }, hops: 3,
			class: remote.ClassAuthRejected, reason: remote.ReasonAuthRejected, says: "none of 1 key(s) accepted (host accepts publickey)"},
		"gopher PR#90: its key is restricted": {
			spoil: func(hop *remote.Target, _ int) { hop.User = "restricted" }, hops: 2,
			class: remote.ClassUnreachable, reason: remote.ReasonForwarding, says: "jump refuses forwarding to "},
		"its key may open another place only": {
			spoil: func(hop *remote.Target, _ int) { hop.User = "relay" }, hops: 2,
			class: remote.ClassUnreachable, reason: remote.ReasonForwarding, says: "jump refuses forwarding to "},
		"its sshd forwards nothing": {
			spoil: func(hop *remote.Target, i int) {
				hop.Port, hop.HostKey = closed[i].port, pin(t, closed[i].hostKeys[0].public(t))
			}, hops: 2,
			class: remote.ClassUnreachable, reason: remote.ReasonForwarding, says: "AllowTcpForwarding"},
	} {
		for i := range test.hops {
			t.Run([]string{"jump host 1", "jump host 2", "the host"}[i]+": "+name, func(t *testing.T) {
				t.Parallel()
				chain := []remote.Target{hops[0].target(t, "ops", key), hops[1].target(t, "ops", key), hops[2].target(t, "kpssh", key)}
				test.spoil(&chain[i], i)
				chain[1].Via, chain[2].Via = &chain[0], &chain[1]
				pool := newPool(t, remote.PoolOptions{})
				_, _, pooled := pool.Get(t.Context(), chain[2])
				_, dialled := remote.Dial(t.Context(), chain[2])
				for way, err := range map[string]error{"with a pool": pooled, "without a pool": dialled} {
					var jump *remote.JumpError
					hop := 3
					if errors.As(err, &jump) {
						hop = jump.Hop
					}
					if hop != i+1 || remote.Class(err) != test.class || remote.Reason(err) != test.reason || err == nil || !strings.Contains(err.Error(), test.says) {
						t.Errorf("%s: got %v: hop %d, class %s, reason %q", way, err, hop, remote.Class(err), remote.Reason(err))
					}
					if test.class == remote.ClassHostKeyMismatch && !strings.Contains(err.Error(), reinstalled[i].hostKeys[0].fingerprint(t)) {
						t.Errorf("%s: the new fingerprint is not in %v", way, err)
					}
				}
			})
		}
	}
}

// Field report R4 (k0sctl#717): two hosts behind one jump host have pins of their own, and are told apart when
// they change places.
func TestR4TwoHostsBehindOneJumpHostThatChangePlacesAreToldApart(t *testing.T) {
	key := newKey(t, "-t", "ed25519")
	authorized := map[string][]string{"ops": {key.public(t)}, "kpssh": {key.public(t)}}
	jump := start(t, spec{namespace: gate, address: gateAddress, port: 2241, authorized: authorized})
	a := start(t, spec{namespace: relay, address: "10.77.1.3", port: 2242, authorized: authorized})
	b := start(t, spec{namespace: relay, address: "10.77.1.4", port: 2242, authorized: authorized})
	via := jump.target(t, "ops", key)
	targets := map[*daemon]remote.Target{a: a.behind(t, via, "kpssh", key), b: b.behind(t, via, "kpssh", key)}
	for _, target := range targets {
		if user, _ := logIn(t, target); user != "kpssh" {
			t.Errorf("logged in as %q", user)
		}
	}
	a.down()
	b.down()
	for d, address := range map[*daemon]string{a: b.address, b: a.address} {
		config := strings.Replace(read(t, d.outside("config")), "ListenAddress "+d.address, "ListenAddress "+address, 1)
		d.write(t, "config", 0o644, config)
	}
	a.up(t)
	b.up(t)
	for d, target := range targets {
		other := map[*daemon]*daemon{a: b, b: a}[d]
		_, err := remote.Dial(t.Context(), target)
		if remote.Class(err) != remote.ClassHostKeyMismatch || !strings.Contains(err.Error(), other.hostKeys[0].fingerprint(t)) {
			t.Errorf("%s: got %v", target.Address, err)
		}
	}
}
