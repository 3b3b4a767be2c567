package authoring

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func certificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newProfile(name string) *v1beta1.SSHJoinProfile {
	p := &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Scripts = v1beta1.Scripts{Install: "echo install", Join: "echo join", Leave: "echo leave", Uninstall: "echo uninstall"}
	return p
}

func newClass(name string, vars map[string]string) *v1beta1.SSHNodeClass {
	c := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Vars = vars
	return c
}

func pinsOf(t *testing.T, endpoint string, ca []byte) Pins {
	t.Helper()
	found, err := cluster.CAPins(ca)
	if err != nil {
		t.Fatal(err)
	}
	return Pins{Endpoints: []string{endpoint}, CAPins: found}
}

func find(t *testing.T, entries []signing.AllowedScript, phase signing.Phase) *signing.AllowedScript {
	t.Helper()
	i := slices.IndexFunc(entries, func(e signing.AllowedScript) bool { return e.Phase == phase })
	if i < 0 {
		t.Fatalf("no %s entry in %v", phase, entries)
	}
	return &entries[i]
}

// What the controller will send must fit what the author signs, in every phase, without a declaration.
func TestEntriesAllowWhatTheControllerSends(t *testing.T) {
	ca := certificate(t)
	class := newClass("workers", map[string]string{"zone": "eu", "motd": `a "b" $c; d`, "empty": ""})
	class.Spec.JoinSecretRef = &v1beta1.SecretRef{Name: "join"}
	source := Source{Profile: newProfile("demo"), Classes: []*v1beta1.SSHNodeClass{class}, SecretKeys: map[string][]string{"workers": {"activation-code", "id"}}}
	entries, err := source.Entries(pinsOf(t, "https://10.0.0.1:6443", ca), 3600)
	if err != nil {
		t.Fatal(err)
	}
	signAndOpen(t, entries)
	input := profile.Input{
		ClusterEndpoint: "https://10.0.0.1:6443", ClusterCA: ca, BootstrapToken: "abcdef.0123456789abcdef", NodeName: "pool-x7k2p",
		ProviderID: "kpssh://kpssh-system/host-a", HostAddress: "rpi-1.example.org", NodeAddress: "fd00::1",
		Labels: map[string]string{"karpenter.sh/nodepool": "pool", "example.org/gpu": ""}, Taints: []profile.Taint{{Key: "a", Value: "b", Effect: "NoSchedule"}},
		Vars: class.Spec.Vars, Secrets: map[string][]byte{"activation-code": []byte("s3cr!t $x\n"), "id": []byte("mi-1")},
	}
	for _, phase := range profile.Phases() {
		input.Phase = phase
		params, secrets, err := profile.Environment(input)
		if err != nil {
			t.Fatal(err)
		}
		entry := find(t, entries, signing.Phase(phase))
		if err := entry.Check(params, slices.Sorted(maps.Keys(secrets))); err != nil {
			t.Errorf("%s: %v", phase, err)
		}
		if err := entry.CheckSecrets(secrets); err != nil {
			t.Errorf("%s: %v", phase, err)
		}
	}
	adopt := input
	adopt.Phase, adopt.ProviderID, adopt.Labels, adopt.Taints, adopt.NodeAddress = profile.Join, "", nil, nil, ""
	params, secrets, err := profile.Environment(adopt)
	if err != nil {
		t.Fatal(err)
	}
	if err := find(t, entries, signing.PhaseJoin).Check(params, slices.Sorted(maps.Keys(secrets))); err != nil {
		t.Errorf("adopting: %v", err)
	}
	if grace := find(t, entries, signing.PhaseLeave).GraceSeconds; grace != 3600 {
		t.Errorf("leave has a grace of %d s", grace)
	}

	params[profile.EnvClusterEndpoint] = "https://evil.example.org:6443"
	if err := find(t, entries, signing.PhaseJoin).Check(params, slices.Sorted(maps.Keys(secrets))); signing.ReasonOf(err) != signing.ReasonPin {
		t.Errorf("another endpoint: %v", err)
	}
	params[profile.EnvClusterEndpoint] = "https://10.0.0.1:6443"
	params["KPSSH_VAR_ZONE"] = "us"
	if err := find(t, entries, signing.PhaseJoin).Check(params, slices.Sorted(maps.Keys(secrets))); signing.ReasonOf(err) != signing.ReasonPin {
		t.Errorf("another var: %v", err)
	}
}

// signAndOpen proves that entries make an allowlist that hosts accept.
func signAndOpen(t *testing.T, entries []signing.AllowedScript) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signing.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	list := &signing.Allowlist{Version: 1, Issued: time.Now(), Expires: time.Now().Add(time.Hour), Scripts: entries}
	envelope, err := signing.Sign(context.Background(), list, signer)
	if err != nil {
		t.Fatal(err)
	}
	role := signing.RoleKeys{Keys: []signing.Key{signer.Public()}, Threshold: 1}
	if _, err := signing.OpenAllowlist(envelope, &signing.Root{Author: role}); err != nil {
		t.Fatal(err)
	}
}

func TestVarsOfSeveralClassesShareAScript(t *testing.T) {
	pins := Pins{None: true}
	source := Source{Profile: newProfile("demo"), Classes: []*v1beta1.SSHNodeClass{
		newClass("a", map[string]string{"zone": "eu", "rack": "1"}), newClass("b", map[string]string{"zone": "us"}), newClass("c", map[string]string{"zone": "eu"}),
	}}
	entries, err := source.Entries(pins, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []signing.Parameter
	for _, p := range find(t, entries, signing.PhaseJoin).Parameters {
		if strings.HasPrefix(p.Name, profile.PrefixVar) {
			got = append(got, p)
		}
	}
	want := []signing.Parameter{
		{Name: "KPSSH_VAR_RACK", Type: signing.ParamString, Pattern: ".*", MaxLength: 1, Enum: []string{"1"}, Optional: true},
		{Name: "KPSSH_VAR_ZONE", Type: signing.ParamString, Pattern: ".*", MaxLength: 2, Pins: []string{"eu", "us"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	// Where values are rendered in, each script is allowed with the values of its own class only.
	source.Profile.Spec.Scripts.Join = "echo {{.Vars.zone}}"
	entries, err = source.Entries(pins, 0)
	if err != nil {
		t.Fatal(err)
	}
	var zones [][]string
	for _, e := range entries {
		for _, p := range e.Parameters {
			if e.Phase == signing.PhaseJoin && p.Name == "KPSSH_VAR_ZONE" {
				zones = append(zones, p.Pins)
			}
		}
	}
	if diff := cmp.Diff([][]string{{"eu"}, {"us"}}, zones); diff != "" {
		t.Error(diff)
	}
}

func TestDeclarationsWin(t *testing.T) {
	source := Source{Profile: newProfile("demo"), Classes: []*v1beta1.SSHNodeClass{newClass("a", map[string]string{"zone": "eu"})}}
	source.Profile.Spec.Parameters = &v1beta1.Parameters{
		Join: []v1beta1.Parameter{
			{Name: "KPSSH_VAR_ZONE", Pattern: "[a-z]+"},
			{Name: "KPSSH_CLUSTER_ENDPOINT", Type: "endpoint", Pin: []string{"https://a.example.org"}},
			{Name: "KPSSH_CLUSTER_CA_B64", Type: "caBundle", Pin: []string{"sha256:" + strings.Repeat("0", 64)}},
		},
	}
	if _, err := source.Entries(Pins{}, 0); !errors.Is(err, ErrNoPins) {
		t.Errorf("install is not pinned: %v", err)
	}
	source.Profile.Spec.Parameters.Install = source.Profile.Spec.Parameters.Join
	entries, err := source.Entries(Pins{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	signAndOpen(t, entries)
	for _, p := range find(t, entries, signing.PhaseJoin).Parameters {
		switch p.Name {
		case "KPSSH_VAR_ZONE":
			if p.Pattern != "[a-z]+" || len(p.Pins) > 0 {
				t.Errorf("declared var became %+v", p)
			}
		case profile.EnvClusterEndpoint:
			if !slices.Equal(p.Pins, []string{"https://a.example.org"}) {
				t.Errorf("declared pin became %+v", p)
			}
		}
	}
}

func TestEntriesRefuse(t *testing.T) {
	ca := certificate(t)
	cases := map[string]struct {
		change func(*Source)
		pins   Pins
		want   string
	}{
		"nothing pins the cluster":              {func(*Source) {}, Pins{}, "nothing pins the cluster"},
		"a class pins the endpoint only":        {func(s *Source) { s.Classes[0].Spec.Cluster = &v1beta1.ClusterSpec{Endpoint: "https://a"} }, Pins{}, "nothing pins the cluster"},
		"a CA bundle that is none":              {func(s *Source) { s.Classes[0].Spec.Cluster = &v1beta1.ClusterSpec{CABundle: []byte("x")} }, pinsOf(t, "https://a", ca), `class "a"`},
		"a template without its value":          {func(s *Source) { s.Profile.Spec.Scripts.Join = "{{.Vars.nothing}}" }, Pins{None: true}, "rendering the join script"},
		"a script that is missing":              {func(s *Source) { s.Profile.Spec.Scripts.Leave = "" }, Pins{None: true}, "has no leave script"},
		"a join Secret whose keys nobody knows": {func(s *Source) { s.Classes[0].Spec.JoinSecretRef = &v1beta1.SecretRef{Name: "x"} }, Pins{None: true}, "nothing says which keys it holds"},
		"vars that make the same name":          {func(s *Source) { s.Classes[0].Spec.Vars = map[string]string{"a": "1", "A": "2"} }, Pins{None: true}, "both make KPSSH_VAR_A"},
		"more values of a var than can be listed": {func(s *Source) {
			for i := range 65 {
				s.Classes = append(s.Classes, newClass(fmt.Sprint("c", i), map[string]string{"rack": fmt.Sprint(i)}))
			}
		}, Pins{None: true}, "KPSSH_VAR_RACK has 65 different values"},
		"a declaration for a phase that does not get it": {func(s *Source) {
			s.Profile.Spec.Parameters = &v1beta1.Parameters{Leave: []v1beta1.Parameter{{Name: "KPSSH_VAR_X"}}}
		}, Pins{None: true}, "gets the two addresses only"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			source := Source{Profile: newProfile("demo"), Classes: []*v1beta1.SSHNodeClass{newClass("a", nil)}}
			c.change(&source)
			if _, err := source.Entries(c.pins, 0); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A class that names its own cluster must not open that cluster to the hosts of the others when the profile is signed again.
func TestPinsAreCarriedWithoutThoseOfOtherClasses(t *testing.T) {
	ca, other := certificate(t), certificate(t)
	own := newClass("own", map[string]string{"zone": "us"})
	own.Spec.Cluster = &v1beta1.ClusterSpec{Endpoint: "https://own.example.org", CABundle: other}
	source := Source{Profile: newProfile("demo"), Classes: []*v1beta1.SSHNodeClass{newClass("open", map[string]string{"zone": "eu"}), own}}
	source.Profile.Spec.Scripts.Install, source.Profile.Spec.Scripts.Join = "echo {{.Vars.zone}}", "echo {{.Vars.zone}}"
	first, err := source.Entries(pinsOf(t, "https://10.0.0.1:6443", ca), 0)
	if err != nil {
		t.Fatal(err)
	}
	carried, err := source.Carried(&signing.Allowlist{Scripts: first})
	if err != nil {
		t.Fatal(err)
	}
	again, err := source.Entries(carried, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("signed again without a flag (-first +again):\n%s", diff)
	}
	own.Spec.Cluster.Endpoint, own.Spec.Cluster.CABundle = "https://10.0.0.1:6443", ca
	if carried, err = source.Carried(&signing.Allowlist{Scripts: pinnedTo(t, first, "https://10.0.0.1:6443")}); err != nil || len(carried.Endpoints) == 0 || len(carried.CAPins) == 0 {
		t.Errorf("the one pin that there was is lost: %+v, %v", carried, err)
	}
}

// pinnedTo are the entries that are pinned to an endpoint.
func pinnedTo(t *testing.T, entries []signing.AllowedScript, endpoint string) []signing.AllowedScript {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(entries), func(e signing.AllowedScript) bool {
		return !slices.ContainsFunc(e.Parameters, func(p signing.Parameter) bool { return slices.Contains(p.Pins, endpoint) })
	})
}

func TestMergeKeepsWhatTheSignatureIsNotAbout(t *testing.T) {
	script := func(name, version, digest string) signing.AllowedScript {
		return signing.AllowedScript{Profile: name, Version: version, Phase: signing.PhaseInstall, Digest: digest}
	}
	old := &signing.Allowlist{Scripts: []signing.AllowedScript{script("a", "1", "x"), script("a", "2", "y"), script("b", "1", "z")}}
	cases := map[string]struct {
		entries []signing.AllowedScript
		mode    Mode
		want    []string
	}{
		"an edited script replaces its predecessor": {[]signing.AllowedScript{script("a", "2", "n")}, Mode{}, []string{"kept a 1 x", "new a 2 n", "dropped a 2 y", "kept b 1 z"}},
		"added, it stands beside it":                {[]signing.AllowedScript{script("a", "2", "n")}, Mode{Add: true}, []string{"kept a 1 x", "new a 2 n", "kept a 2 y", "kept b 1 z"}},
		"a new version stands beside the old ones":  {[]signing.AllowedScript{script("a", "3", "n")}, Mode{}, []string{"kept a 1 x", "kept a 2 y", "new a 3 n", "kept b 1 z"}},
		"or replaces them":                          {[]signing.AllowedScript{script("a", "3", "n")}, Mode{DropOlder: true}, []string{"dropped a 1 x", "dropped a 2 y", "new a 3 n", "kept b 1 z"}},
		"the same again":                            {[]signing.AllowedScript{script("b", "1", "z")}, Mode{}, []string{"kept a 1 x", "kept a 2 y", "same b 1 z"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, change := range Merge(old, c.entries, c.mode) {
				got = append(got, strings.Join([]string{change.Fate, change.Script.Profile, change.Script.Version, change.Script.Digest}, " "))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
