package examples_test

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds/crdtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

var update = flag.Bool("update", false, "write tls-bootstrap.yaml anew from the scripts")

const manifest = "tls-bootstrap.yaml"

func script(t *testing.T, phase profile.Phase) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("tls-bootstrap", string(phase)+".sh"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The manifest is the scripts: they are read, checked and run as files, and signed and sent as a manifest.
func TestManifestHoldsTheScripts(t *testing.T) {
	type part struct{ Phase, Indented string }
	var parts []part
	for _, phase := range profile.Phases() {
		text := strings.TrimRight(string(script(t, phase)), "\n")
		text = regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(text, "      $1")
		parts = append(parts, part{string(phase), text})
	}
	tmpl, err := template.ParseFiles(filepath.Join("tls-bootstrap", "profile.yaml.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := tmpl.Execute(&want, parts); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(manifest, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), string(got)); diff != "" {
		t.Errorf("%s is not what the scripts make, run go test ./examples -update (-want +got):\n%s", manifest, diff)
	}
	for _, phase := range profile.Phases() {
		if got := scripts(shipped(t))[phase]; got != string(script(t, phase)) {
			t.Errorf("%s as YAML reads it is not the file:\n%s", phase, cmp.Diff(string(script(t, phase)), got))
		}
	}
}

// documents reads the objects of a file.
func documents(t *testing.T, name string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for _, document := range regexp.MustCompile(`(?m)^---\n`).Split(string(b), -1) {
		out = append(out, []byte(document))
	}
	return out
}

func shipped(t *testing.T) *v1beta1.SSHJoinProfile {
	t.Helper()
	var p v1beta1.SSHJoinProfile
	if err := yaml.UnmarshalStrict(documents(t, manifest)[0], &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

func scripts(p *v1beta1.SSHJoinProfile) map[profile.Phase]string {
	return map[profile.Phase]string{
		profile.Install: p.Spec.Scripts.Install, profile.Join: p.Spec.Scripts.Join,
		profile.Leave: p.Spec.Scripts.Leave, profile.Uninstall: p.Spec.Scripts.Uninstall,
	}
}

func declared(t *testing.T, p *v1beta1.SSHJoinProfile, phase profile.Phase) []profile.Parameter {
	t.Helper()
	var in []v1beta1.Parameter
	switch phase {
	case profile.Install:
		in = p.Spec.Parameters.Install
	case profile.Join:
		in = p.Spec.Parameters.Join
	case profile.Leave:
		in = p.Spec.Parameters.Leave
	}
	var out []profile.Parameter
	for _, q := range in {
		out = append(out, profile.Parameter{
			Name: q.Name, Type: q.Type, Pattern: q.Pattern, Enum: q.Enum, MaxLength: int(q.MaxLength),
			Optional: q.Optional, Secret: q.Secret, Pins: q.Pin,
		})
	}
	schema, err := profile.Declare(phase, out)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// An API server takes every example as it is.
func TestExamplesAreAdmitted(t *testing.T) {
	admissions := crdtest.Load(t, crds.Own())
	maps.Copy(admissions, crdtest.Load(t, crds.Karpenter()))
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	seen := map[string]bool{}
	for _, name := range files {
		for i, document := range documents(t, name) {
			object := crdtest.Object(t, document)
			kind, _ := object["kind"].(string)
			seen[kind] = true
			admit := admissions[kind]
			if admit == nil {
				continue // a kind of Kubernetes itself
			}
			if errs := admit.Admit(t.Context(), object, nil); len(errs) > 0 {
				t.Errorf("%s, object %d: %v", name, i+1, errs.ToAggregate())
			}
		}
	}
	for _, kind := range []string{"SSHHost", "SSHNodeClass", "SSHJoinProfile", "NodePool", "Deployment", "ClusterRoleBinding", "Namespace"} {
		if !seen[kind] {
			t.Errorf("no example of %s", kind)
		}
	}
}

// A receipt key in an example is of the kind that kpssh-shim makes.
func TestTheExampleHostHasTheKeyOfAHost(t *testing.T) {
	var host v1beta1.SSHHost
	for _, document := range documents(t, "sshhost.yaml") {
		if err := yaml.Unmarshal(document, &host); err != nil {
			t.Fatal(err)
		}
		if host.Kind == "SSHHost" {
			break
		}
	}
	if host.Spec.Shim == nil || !strings.HasPrefix(host.Spec.Shim.ReceiptKey, "ecdsa-p256-sha256:") {
		t.Errorf("shim %+v", host.Spec.Shim)
	}
}

func TestNodePoolsCarryTheManagedLabel(t *testing.T) {
	for _, name := range []string{"nodepool.yaml", "nodepool-coexist.yaml"} {
		object := crdtest.Object(t, documents(t, name)[0])
		var pool struct {
			Spec struct {
				Template struct {
					Metadata struct {
						Labels map[string]string `json:"labels"`
					} `json:"metadata"`
					Spec struct {
						Taints []struct{ Key, Effect string } `json:"taints"`
					} `json:"spec"`
				} `json:"template"`
			} `json:"spec"`
		}
		raw, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(raw, &pool); err != nil {
			t.Fatal(err)
		}
		if pool.Spec.Template.Metadata.Labels[apis.LabelManaged] != "true" {
			t.Errorf("%s: no label %s", name, apis.LabelManaged)
		}
		tainted := false
		for _, taint := range pool.Spec.Template.Spec.Taints {
			tainted = tainted || taint.Key == apis.TaintPool && taint.Effect == "NoSchedule"
		}
		if want := name == "nodepool-coexist.yaml"; tainted != want {
			t.Errorf("%s: taint %s is there: %v, want %v", name, apis.TaintPool, tainted, want)
		}
	}
}

// A bearer of a join token may ask for a client certificate and nothing else (AKSFlexNode PR 286, R93). What that role is
// made of, an API server says: TestAJoinTokenMayAskForACertificateAlone.
func TestTheBootstrapGroupMayAskForACertificateAlone(t *testing.T) {
	var roles []string
	for _, document := range documents(t, "bootstrap-rbac.yaml") {
		var binding struct {
			RoleRef  struct{ Kind, Name string }
			Subjects []struct{ Kind, Name string }
		}
		if err := yaml.Unmarshal(document, &binding); err != nil {
			t.Fatal(err)
		}
		for _, subject := range binding.Subjects {
			if subject.Name == apis.BootstrapGroup {
				roles = append(roles, binding.RoleRef.Kind+" "+binding.RoleRef.Name)
			}
		}
	}
	want := []string{"ClusterRole system:node-bootstrapper"}
	if diff := cmp.Diff(want, roles); diff != "" {
		t.Errorf("roles of %s (-want +got):\n%s", apis.BootstrapGroup, diff)
	}
}

// What an author signs is what is in the manifest: nothing in it depends on a class.
func TestScriptsRenderToThemselves(t *testing.T) {
	rendered, err := profile.RenderAll(scripts(shipped(t)), profile.Values{})
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range profile.Phases() {
		if !bytes.Equal(rendered[phase], script(t, phase)) {
			t.Errorf("%s renders to something else", phase)
		}
	}
}

// A script reads no variable that its phase may not get, and vars reach install and join alike.
func TestScriptsReadDeclaredVariablesOnly(t *testing.T) {
	// These say what runs as root on hosts: whoever wants them declares them with pins.
	undeclared := []string{
		"KPSSH_VAR_KUBELET_URL", "KPSSH_VAR_KUBELET_SHA256", "KPSSH_VAR_CNI_PLUGINS_URL", "KPSSH_VAR_CNI_PLUGINS_SHA256",
	}
	p := shipped(t)
	for _, phase := range profile.Phases() {
		known := map[string]bool{}
		for _, parameter := range declared(t, p, phase) {
			known[parameter.Name] = true
		}
		code := regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAll(script(t, phase), nil)
		for _, name := range regexp.MustCompile(`KPSSH_[A-Z0-9_]+`).FindAllString(string(code), -1) {
			if name == "KPSSH_KUBELET_ARGS" { // systemd's, for kubelet
				continue
			}
			if !known[name] && (phase == profile.Leave || !slices.Contains(undeclared, name)) {
				t.Errorf("%s reads %s, which is neither standard there nor declared", phase, name)
			}
		}
	}
	if diff := cmp.Diff(p.Spec.Parameters.Install, p.Spec.Parameters.Join); diff != "" {
		t.Errorf("vars reach install and join alike, the declarations differ:\n%s", diff)
	}
	for _, parameter := range p.Spec.Parameters.Install {
		if slices.Contains(undeclared, parameter.Name) {
			t.Errorf("%s is declared, and not pinned to anything", parameter.Name)
		}
	}
}
