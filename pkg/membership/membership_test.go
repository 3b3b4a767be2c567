package membership_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

const hostID = "kpssh://kpssh-system/host-a"

func TestNodesOfAHost(t *testing.T) {
	tests := map[string]struct {
		address, adopted string
		node             *corev1.Node
		want             bool
	}{
		"by its static provider id":                {"10.0.0.1", "", controllertest.Node("n", hostID, "10.9.9.9"), true},
		"by the id that was adopted":               {"10.0.0.1", "eks-hybrid:///mi-1", controllertest.Node("n", "eks-hybrid:///mi-1", "10.9.9.9"), true},
		"by its address":                           {"10.0.0.1", "", controllertest.Node("n", "", "10.0.0.1"), true},
		"by its address in another spelling":       {"fd00::1", "", controllertest.Node("n", "", "fd00:0:0:0:0:0:0:1"), true},
		"not another host's":                       {"10.0.0.1", "", controllertest.Node("n", "kpssh://kpssh-system/host-b", "10.0.0.2"), false},
		"not by an empty id (k0smotron#1309, R43)": {"host-a.example", "", controllertest.Node("n", "", "10.0.0.2"), false},
		"not by a DNS name":                        {"host-a.example", "", controllertest.Node("host-a.example", "", "10.0.0.1"), false},
		"not by a prefix of its id":                {"10.0.0.1", "", controllertest.Node("n", hostID+"2", "10.0.0.2"), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			host := controllertest.Host("host-a", tt.address, func(h *v1beta1.SSHHost) { h.Status.ProviderID = tt.adopted })
			env := controllertest.New(t, tt.node)
			nodes, err := membership.NodesOf(context.Background(), env.Client, host)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(nodes) == 1; got != tt.want {
				t.Errorf("found = %t, want %t", got, tt.want)
			}
			if got := membership.Backs(host, tt.node); got != tt.want {
				t.Errorf("Backs = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestOnlyNodesOfThisMembershipCount(t *testing.T) {
	nodeClaim := controllertest.NodeClaim("pool-1", hostID)
	nodeClaim.CreationTimestamp = metav1.NewTime(controllertest.Start)
	at := func(d time.Duration) corev1.Node {
		return *controllertest.Node("n", hostID, "10.0.0.1", func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(controllertest.Start.Add(d)) })
	}
	deleting := at(time.Minute)
	deleting.DeletionTimestamp = &metav1.Time{Time: controllertest.Start}
	got := membership.RegisteredFor(nodeClaim, []corev1.Node{at(-time.Second), deleting, at(0), at(time.Minute)})
	if len(got) != 2 {
		t.Errorf("%d nodes, want the two that are not older and not being deleted", len(got))
	}
}

func TestDeleteNodesSparesWhatItHasNotRead(t *testing.T) {
	env := controllertest.New(t, controllertest.Node("pool-1", hostID, "10.0.0.1"))
	read := *env.Node("pool-1")
	successor := controllertest.Node("pool-1", hostID, "10.0.0.1", func(n *corev1.Node) { n.UID = "another" })
	if err := env.Client.Delete(context.Background(), env.Node("pool-1")); err != nil {
		t.Fatal(err)
	}
	env.Create(successor)
	if err := membership.DeleteNodes(context.Background(), env.Client, []corev1.Node{read}); err != nil {
		t.Fatal(err)
	}
	if env.Node("pool-1") == nil {
		t.Error("a node of the same name was deleted that nobody had looked at")
	}
}

func TestTurns(t *testing.T) {
	turns := membership.NewTurns()
	done, ok := turns.Try("host-a")
	if !ok {
		t.Fatal("a free host has no turn")
	}
	if _, ok := turns.Try("host-a"); ok {
		t.Error("two have the turn")
	}
	if _, ok := turns.Try("host-b"); !ok {
		t.Error("a host waits for another")
	}
	done()
	if _, ok := turns.Try("host-a"); !ok {
		t.Error("the turn was not given back")
	}
}

func TestFailuresHaveAStableReasonAndAKind(t *testing.T) {
	tests := map[string]struct {
		err  dispatch.Error
		kind membership.Kind
		want string
	}{
		"unreachable":     {dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}, membership.Transient, "Unreachable"},
		"busy":            {dispatch.Error{Class: dispatch.Busy, Reason: "busy"}, membership.Busy, "Busy"},
		"stale fence":     {dispatch.Error{Class: dispatch.StaleFence, Reason: "stale-fence"}, membership.StaleFence, "StaleFence"},
		"stale claim":     {dispatch.Error{Class: dispatch.StaleClaim, Reason: "claimed"}, membership.StaleClaim, "StaleClaim"},
		"script":          {dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit}, membership.HostFault, "ScriptFailed"},
		"time-out":        {dispatch.Error{Class: dispatch.Timeout, Reason: dispatch.ReasonDeadline}, membership.HostFault, "Timeout"},
		"host key":        {dispatch.Error{Class: dispatch.HostKeyMismatch, Reason: "HostKeyChanged"}, membership.HostFault, "HostKeyChanged"},
		"login":           {dispatch.Error{Class: dispatch.AuthRejected, Reason: "AuthRejected"}, membership.HostFault, "AuthRejected"},
		"forged":          {dispatch.Error{Class: dispatch.Untrusted, Reason: dispatch.ReasonNoHello}, membership.HostFault, "ShimUntrusted"},
		"sudo":            {dispatch.Error{Class: dispatch.Refused, Reason: dispatch.ReasonSudoPassword}, membership.HostFault, "SudoPasswordRequired"},
		"disk":            {dispatch.Error{Class: dispatch.Refused, Reason: "state-unwritable"}, membership.HostFault, "StateUnwritable"},
		"unsigned":        {dispatch.Error{Class: dispatch.Config, Reason: "not-allowed"}, membership.Configuration, "ScriptNotSigned"},
		"unsigned there":  {dispatch.Error{Class: dispatch.Refused, Reason: "not-allowed"}, membership.Configuration, "ScriptNotSigned"},
		"unlisted key":    {dispatch.Error{Class: dispatch.Refused, Reason: "untrusted"}, membership.Configuration, "DispatchKeyUnknown"},
		"unlisted root":   {dispatch.Error{Class: dispatch.Untrusted, Reason: dispatch.ReasonForeignRoot}, membership.Configuration, "DispatchKeyUnknown"},
		"overtaken":       {dispatch.Error{Class: dispatch.Refused, Reason: "unknown-run"}, membership.Transient, "UnknownRun"},
		"expired":         {dispatch.Error{Class: dispatch.Refused, Reason: "expired"}, membership.Configuration, "TrustExpired"},
		"no documents":    {dispatch.Error{Class: dispatch.Config, Reason: dispatch.ReasonTrustMissing}, membership.Configuration, "TrustInvalid"},
		"no key":          {dispatch.Error{Class: dispatch.Config, Reason: v1beta1.ReasonSSHKeyMissing}, membership.Configuration, "SSHKeyMissing"},
		"no key service":  {dispatch.Error{Class: dispatch.Config, Reason: "key-service"}, membership.Configuration, "KeyService"},
		"no identity":     {dispatch.Error{Class: dispatch.Config, Reason: dispatch.ReasonIdentityMissing}, membership.Configuration, "HostNotEnrolled"},
		"raw":             {dispatch.Error{Class: dispatch.Config, Reason: dispatch.ReasonRawNotAllowed}, membership.Configuration, "RawExecDisabled"},
		"nothing it says": {dispatch.Error{Class: dispatch.Refused}, membership.HostFault, "Refused"},
	}
	// What a condition may carry as its reason.
	valid := regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			machines := controllertest.NewMachines()
			machines.Machine("host-a").Probing = &tt.err
			env := controllertest.New(t)
			_, err := env.Phases(machines).Probe(context.Background(), controllertest.Host("host-a", "10.0.0.1"))
			failure := membership.FailureOf(err)
			if failure.Kind != tt.kind || failure.Reason != tt.want || !valid.MatchString(failure.Reason) {
				t.Errorf("kind %d, reason %q", failure.Kind, failure.Reason)
			}
		})
	}
}

func TestAnErrorOfTheAPIServerBlamesNobody(t *testing.T) {
	if f := membership.FailureOf(errors.New("etcd is slow")); f.Kind != membership.Transient {
		t.Errorf("kind = %d", f.Kind)
	}
}

func TestATextOfAHostIsCutAndCleaned(t *testing.T) {
	machines := controllertest.NewMachines()
	machines.Machine("host-a").Probing = &dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 9, Output: strings.Repeat("x", 100000) + "\x1b]0;title\a\nend"}
	env := controllertest.New(t)
	_, err := env.Phases(machines).Probe(context.Background(), controllertest.Host("host-a", "10.0.0.1"))
	text := err.Error()
	if len(text) > 700 || strings.ContainsAny(text, "\x1b\a\n") || !strings.HasPrefix(text, "ScriptFailed: host host-a: exit status 9: ") || !strings.HasSuffix(text, "end") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

func TestScriptsForAHostThatNobodyClaims(t *testing.T) {
	class := func(name, profile, key, value string, vars map[string]string) *v1beta1.SSHNodeClass {
		return controllertest.Class(func(c *v1beta1.SSHNodeClass) {
			c.Name, c.Spec.JoinProfileRef.Name, c.Spec.Vars = name, profile, vars
			c.Spec.HostSelector = metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
		})
	}
	profile := func(name string) *v1beta1.SSHJoinProfile {
		return controllertest.Profile(func(p *v1beta1.SSHJoinProfile) { p.Name = name })
	}
	objects := func() []client.Object {
		return []client.Object{
			class("a", "one", "rack", "1", map[string]string{"from": "a"}), class("b", "two", "rack", "1", map[string]string{"from": "b"}),
			class("c", "one", "rack", "2", map[string]string{"from": "c"}), profile("one"), profile("two"), profile("three"),
		}
	}
	tests := map[string]struct {
		installed, rack string
		want            string
		wantVars        map[string]string
		wantReason      string
	}{
		"the profile of its marker, with the vars of a class that selects it": {installed: "two@7", rack: "1", want: "two", wantVars: map[string]string{"from": "b"}},
		"the first class that selects it, when it has no marker":              {rack: "1", want: "one", wantVars: map[string]string{"from": "a"}},
		"the profile of its marker, when no class has it":                     {installed: "three@1", rack: "1", want: "three"},
		"the profile of its marker, when no class selects it":                 {installed: "one@1", rack: "9", want: "one"},
		"none, when nothing leads to one":                                     {rack: "9", wantReason: v1beta1.ReasonProfileNotFound},
		"none, when the profile of its marker is gone":                        {installed: "gone@1", rack: "1", wantReason: v1beta1.ReasonProfileNotFound},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			env := controllertest.New(t, objects()...)
			host := controllertest.Host("host-a", "10.0.0.1", func(h *v1beta1.SSHHost) {
				h.Labels = map[string]string{"rack": tt.rack}
				h.Status.InstalledProfile = tt.installed
			})
			prof, vars, err := membership.NewScripts(env.Client).ForHost(context.Background(), host)
			if tt.wantReason != "" {
				if f := membership.FailureOf(err); f.Kind != membership.Configuration || f.Reason != tt.wantReason {
					t.Errorf("error = %v", err)
				}
				return
			}
			if err != nil || prof.Name != tt.want {
				t.Fatalf("profile %v, error %v", prof, err)
			}
			if diff := cmp.Diff(tt.wantVars, vars); diff != "" {
				t.Errorf("vars (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyNodeClaimsOfOurClassesAreOurs(t *testing.T) {
	ours := controllertest.NodeClaim("pool-1", hostID)
	if !membership.Ours(ours) || !membership.OfClass(ours, controllertest.ClassName) || membership.OfClass(ours, "other") {
		t.Error("ours is not ours")
	}
	for name, ref := range map[string]*karpenterv1.NodeClassReference{
		"none": nil, "another group": {Group: "karpenter.k8s.aws", Kind: "SSHNodeClass"}, "another kind": {Group: "karpenter.dklesev.github.io", Kind: "EC2NodeClass"},
	} {
		nodeClaim := controllertest.NodeClaim("x", "")
		nodeClaim.Spec.NodeClassRef = ref
		if membership.Ours(nodeClaim) {
			t.Errorf("%s: taken for ours", name)
		}
	}
}
