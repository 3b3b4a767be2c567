package profile_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// refusal holds an error against a part of its text; "" wants none.
func refusal(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Errorf("accepted, want %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("refused with %q, want %q", err, want)
	}
}

// k3s#2509, #2938, R90, in part: a profile for slow machines gives its phases the time that they need. A run does not
// extend its own deadline, and nothing pulls images ahead: docs/limits.md.
func TestTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		phase profile.Phase
		text  string
		want  time.Duration
		fails string
	}{
		"install by default":        {phase: profile.Install, want: 10 * time.Minute},
		"join by default":           {phase: profile.Join, want: 5 * time.Minute},
		"leave by default":          {phase: profile.Leave, want: 3 * time.Minute},
		"several units":             {phase: profile.Join, text: "1h30m15s", want: 90*time.Minute + 15*time.Second},
		"one unit twice":            {phase: profile.Join, text: "1m1m", want: 2 * time.Minute},
		"a day":                     {phase: profile.Join, text: "24h", want: 24 * time.Hour},
		"more than a day":           {phase: profile.Join, text: "25h", fails: "not between 1s and 24h"},
		"nothing":                   {phase: profile.Join, text: "0s", fails: "not between 1s and 24h"},
		"more than an int64 of ns":  {phase: profile.Join, text: "99999999999999999999h", fails: "not between 1s and 24h"},
		"milliseconds":              {phase: profile.Join, text: "5ms", fails: "not whole hours"},
		"a number":                  {phase: profile.Join, text: "300", fails: "not whole hours"},
		"less than nothing":         {phase: profile.Join, text: "-5m", fails: "not whole hours"},
		"a time-out and a new line": {phase: profile.Join, text: "5m\n", fails: "not whole hours"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := profile.Timeout(tt.phase, tt.text)
			refusal(t, err, tt.fails)
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestMarkerIsReadAsItWasWritten(t *testing.T) {
	if got := profile.Marker("tls", ""); got != "tls@1" {
		t.Errorf("marker %q without a version, want tls@1", got)
	}
	name, version, ok := profile.ParseMarker(profile.Marker("tls", "2.1"))
	if name != "tls" || version != "2.1" || !ok {
		t.Errorf("read %q %q %v", name, version, ok)
	}
	for _, bad := range []string{"", "tls", "@", "tls@", "@1", "a@b@c"} {
		if _, _, ok := profile.ParseMarker(bad); ok {
			t.Errorf("%q was taken for a marker", bad)
		}
	}
}

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		want   string
	}{
		"no shebang":             {script: "set -e\ntrue\n"},
		"bash":                   {script: "#!/bin/bash\ntrue\n"},
		"bash by env":            {script: "#!/usr/bin/env bash\ntrue\n"},
		"sh":                     {script: "#! /bin/sh\ntrue"},
		"text beyond ASCII":      {script: "echo grüß\n"},
		"256 KiB":                {script: strings.Repeat("#", 256<<10)},
		"nothing":                {script: "", want: "script is empty"},
		"white space":            {script: " \n", want: "script is empty"},
		"more than 256 KiB":      {script: strings.Repeat("#", 256<<10+1), want: "at most 262144"},
		"256 Ki characters":      {script: strings.Repeat("ü", 256<<10), want: "at most 262144"},
		"a NUL":                  {script: "true\ntr\x00ue\n", want: "NUL byte in line 2"},
		"CR LF":                  {script: "true\r\nfalse\r\n", want: "carriage return in line 1"},
		"a byte order mark":      {script: "\xef\xbb\xbftrue\n", want: "byte order mark"},
		"bytes that are no text": {script: "echo \xff\n", want: "not UTF-8"},
		"python":                 {script: "#!/usr/bin/python3\n", want: "hosts run bash"},
		"python by env":          {script: "#!/usr/bin/env python3\n", want: "hosts run bash"},
		"an empty shebang":       {script: "#!\ntrue\n", want: "hosts run bash"},
		"options in the shebang": {script: "#!/bin/bash -eu\ntrue\n", want: "options in the first line"},
	} {
		t.Run(name, func(t *testing.T) { refusal(t, profile.Check([]byte(tt.script)), tt.want) })
	}
}

func TestRender(t *testing.T) {
	vars := map[string]string{"dns": "10.96.0.10", "empty": "", "motd": "it's; $(id)"}
	for name, tt := range map[string]struct {
		script, want, fails string
	}{
		"a script without a template is itself":    {script: "echo ${x} }} $(y) {\n", want: "echo ${x} }} $(y) {\n"},
		"a var":                                    {script: "dns={{.Vars.dns}}\n", want: "dns=10.96.0.10\n"},
		"a var as one shell word":                  {script: "echo {{quote .Vars.motd}}\n", want: `echo 'it'\''s; $(id)'` + "\n"},
		"a var in a pipeline":                      {script: "echo {{.Vars.dns | quote}}\n", want: "echo '10.96.0.10'\n"},
		"a choice":                                 {script: "{{if and (eq .Vars.dns \"10.96.0.10\") (not .Vars.empty)}}a{{else}}b{{end}}\n", want: "a\n"},
		"two braces for another program":           {script: "docker inspect -f '{{\"{{\"}}.State}}'\n", want: "docker inspect -f '{{.State}}'\n"},
		"a comment":                                {script: "a{{/* why */}}b\n", want: "ab\n"},
		"a var that the class does not have":       {script: "x={{.Vars.nope}}\n", fails: `map has no entry for key "nope"`},
		"a value that does not exist":              {script: "x={{.Node.Name}}\n", fails: "can't evaluate field Node"},
		"a template that does not parse":           {script: "x={{.Vars.dns\n", fails: "reading the template"},
		"a script that renders to nothing":         {script: "{{if .Vars.empty}}true{{end}}", fails: "script is empty"},
		"a loop":                                   {script: "{{range .Vars}}{{end}}true", fails: "not available"},
		"a variable that could grow":               {script: `{{$a := .Vars.dns}}{{$a}}`, fails: "variables are not available"},
		"printf, which could make any length":      {script: `{{printf "%099999d" 1}}`, fails: "not available"},
		"a call of another template":               {script: `{{template "script"}}`, fails: "not available"},
		"a template of its own":                    {script: `{{define "x"}}y{{end}}true`, fails: "define and block are not available"},
		"nothing but a template of its own":        {script: `{{define "x"}}y{{end}}`, fails: "not available"},
		"a loop inside a choice inside a choice":   {script: "{{if .Vars}}{{with .Vars}}{{range .}}{{end}}{{end}}{{end}}true", fails: "not available"},
		"an index, which would not fail on a miss": {script: `{{index .Vars "nope"}}true`, fails: "not available"},
		"a carriage return":                        {script: "true\r\n", fails: "carriage return"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				got, err := profile.Render([]byte(tt.script), profile.Values{Vars: vars})
				refusal(t, err, tt.fails)
				if string(got) != tt.want {
					t.Fatalf("rendered %q, want %q", got, tt.want)
				}
			}
		})
	}
}

func TestRenderDoesNotOutgrowAScript(t *testing.T) {
	script := strings.Repeat("{{.Vars.long}}", 200)
	_, err := profile.Render([]byte(script), profile.Values{Vars: map[string]string{"long": strings.Repeat("x", 2048)}})
	refusal(t, err, "more than 262144 bytes")
}

func TestQuotesOfQuotesDoNotStallTheController(t *testing.T) {
	word := `"'"`
	for range 40 { // 3^40 quotes, if nothing stops them
		word = "(quote " + word + ")"
	}
	_, err := profile.Render([]byte("x={{"+word+"}}\n"), profile.Values{})
	refusal(t, err, "quoted value has more than")
}

func TestATemplateCanBeCheckedBeforeThereIsANodeClass(t *testing.T) {
	refusal(t, profile.CheckTemplate([]byte("x={{.Vars.any}}\n")), "")
	refusal(t, profile.CheckTemplate([]byte("x={{.Vars.any\n")), "reading the template")
	refusal(t, profile.CheckTemplate([]byte("{{range .Vars}}{{end}}true\n")), "not available")
	refusal(t, profile.CheckTemplate([]byte("true\r\n")), "carriage return")
}

func TestRenderAllNamesThePhase(t *testing.T) {
	scripts := map[profile.Phase]string{profile.Install: "true", profile.Join: "{{.Vars.dns}}", profile.Leave: "true"}
	_, err := profile.RenderAll(scripts, profile.Values{})
	refusal(t, err, "join: ")
	got, err := profile.RenderAll(scripts, profile.Values{Vars: map[string]string{"dns": "x"}})
	refusal(t, err, "")
	want := map[profile.Phase][]byte{profile.Install: []byte("true"), profile.Join: []byte("x"), profile.Leave: []byte("true")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("scripts (-want +got):\n%s", diff)
	}
	delete(scripts, profile.Leave)
	_, err = profile.RenderAll(scripts, profile.Values{Vars: map[string]string{"dns": "x"}})
	refusal(t, err, "leave: script is missing")
}

func input(phase profile.Phase) profile.Input {
	return profile.Input{
		Phase:           phase,
		ClusterEndpoint: "https://api:6443", ClusterCA: []byte("-----BEGIN CERTIFICATE-----\n"),
		BootstrapToken: "abcdef.0123456789abcdef",
		NodeName:       "pool-x7k2p", ProviderID: "kpssh://kpssh-system/host-a",
		HostAddress: "10.0.0.11", NodeAddress: "192.168.1.11",
		Labels: map[string]string{
			"karpenter.sh/nodepool": "pool", "kubernetes.io/arch": "arm64", "node.kubernetes.io/instance-type": "pi",
			"topology.kubernetes.io/zone": "pool", "example.org/empty": "", "plain": "x",
			"node-restriction.kubernetes.io/a": "1", "node-role.kubernetes.io/worker": "", "kubernetes.io/other": "1",
			"app.k8s.io/x": "1", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
			"fast.kubelet.kubernetes.io/x": "1", "x.node.kubernetes.io/y": "1",
		},
		Taints: []profile.Taint{
			{Key: "example.org/b", Value: "v", Effect: "NoSchedule"}, {Key: "example.org/a", Effect: "NoExecute"},
			{Key: "karpenter.sh/unregistered", Effect: "NoExecute"}, {Key: "example.org/b", Value: "w", Effect: "NoSchedule"},
			{Key: "example.org/b", Value: "v", Effect: "PreferNoSchedule"},
		},
		Vars:    map[string]string{"clusterDNS": "10.96.0.10"},
		Secrets: map[string][]byte{"pull-token": []byte("s3cret\n"), "user.name": []byte("u")},
	}
}

func TestEnvironmentOfEachPhase(t *testing.T) {
	common := map[string]string{
		"KPSSH_CLUSTER_ENDPOINT": "https://api:6443",
		"KPSSH_CLUSTER_CA_B64":   base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\n")),
		"KPSSH_NODE_NAME":        "pool-x7k2p",
		"KPSSH_PROVIDER_ID":      "kpssh://kpssh-system/host-a",
		"KPSSH_HOST_ADDRESS":     "10.0.0.11",
		"KPSSH_NODE_ADDRESS":     "192.168.1.11",
		"KPSSH_NODE_LABELS": "example.org/empty=,fast.kubelet.kubernetes.io/x=1,karpenter.sh/nodepool=pool,kubernetes.io/arch=arm64," +
			"node.kubernetes.io/instance-type=pi,plain=x,topology.kubernetes.io/zone=pool,x.node.kubernetes.io/y=1",
		"KPSSH_TAINTS": "karpenter.sh/unregistered:NoExecute,example.org/b=v:NoSchedule,example.org/a:NoExecute," +
			"example.org/b=v:PreferNoSchedule",
		"KPSSH_VAR_CLUSTERDNS": "10.96.0.10",
	}
	addresses := map[string]string{"KPSSH_HOST_ADDRESS": "10.0.0.11", "KPSSH_NODE_ADDRESS": "192.168.1.11"}
	secrets := map[string]string{"KPSSH_SECRET_PULL_TOKEN": "s3cret", "KPSSH_SECRET_USER_NAME": "u"}
	withToken := map[string]string{
		"KPSSH_SECRET_PULL_TOKEN": "s3cret", "KPSSH_SECRET_USER_NAME": "u", "KPSSH_BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef",
	}
	for phase, want := range map[profile.Phase]struct{ params, secrets map[string]string }{
		profile.Install:   {common, secrets},
		profile.Join:      {common, withToken},
		profile.Leave:     {addresses, map[string]string{}},
		profile.Uninstall: {addresses, map[string]string{}},
	} {
		t.Run(string(phase), func(t *testing.T) {
			params, secrets, err := profile.Environment(input(phase))
			refusal(t, err, "")
			if diff := cmp.Diff(want.params, params); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.secrets, secrets); diff != "" {
				t.Errorf("secrets (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEnvironmentOfTheSmallestInput(t *testing.T) {
	params, _, err := profile.Environment(profile.Input{Phase: profile.Join, HostAddress: "host-a"})
	refusal(t, err, "")
	for name, want := range map[string]string{
		"KPSSH_NODE_ADDRESS": "host-a", "KPSSH_PROVIDER_ID": "", "KPSSH_NODE_LABELS": "",
		"KPSSH_TAINTS": "karpenter.sh/unregistered:NoExecute",
	} {
		if got, given := params[name]; !given || got != want {
			t.Errorf("%s is %q (given: %v), want %q", name, got, given, want)
		}
	}
}

func TestEnvironmentRefuses(t *testing.T) {
	const canary = "CANARY"
	many := map[string][]byte{}
	for i := range profile.MaxSecrets {
		many[strings.Repeat("k", i+1)] = []byte(canary)
	}
	for name, tt := range map[string]struct {
		change func(*profile.Input)
		want   string
	}{
		"a phase that is none":               {func(in *profile.Input) { in.Phase = "repair" }, "not known"},
		"vars that make one name":            {func(in *profile.Input) { in.Vars = map[string]string{"a": canary, "A": canary} }, `vars: keys "A" and "a" both make KPSSH_VAR_A`},
		"secrets that make one name":         {func(in *profile.Input) { in.Secrets = map[string][]byte{"a-b": []byte(canary), "a.b": []byte(canary)} }, `join secret: keys "a-b" and "a.b" both make KPSSH_SECRET_A_B`},
		"a var no shell could name":          {func(in *profile.Input) { in.Vars = map[string]string{"a b": canary} }, "does not make the name of a variable"},
		"a var with other letters":           {func(in *profile.Input) { in.Vars = map[string]string{"ß": canary} }, "does not make the name of a variable"},
		"a var without a name":               {func(in *profile.Input) { in.Vars = map[string]string{"": canary} }, "does not make the name of a variable"},
		"a var with a name too long":         {func(in *profile.Input) { in.Vars = map[string]string{strings.Repeat("a", 128): canary} }, "does not make the name of a variable"},
		"a var of several lines":             {func(in *profile.Input) { in.Vars = map[string]string{"a": canary + "\nx"} }, "KPSSH_VAR_A holds line ends"},
		"a var that turns text around":       {func(in *profile.Input) { in.Vars = map[string]string{"a": canary + "\u202e"} }, "KPSSH_VAR_A holds line ends"},
		"a secret of several lines":          {func(in *profile.Input) { in.Secrets = map[string][]byte{"a": []byte(canary + "\nx")} }, "KPSSH_SECRET_A holds line ends"},
		"a secret of bytes":                  {func(in *profile.Input) { in.Secrets = map[string][]byte{"a": []byte(canary + "\xff")} }, "KPSSH_SECRET_A is not UTF-8"},
		"a secret with a NUL":                {func(in *profile.Input) { in.Secrets = map[string][]byte{"a": []byte(canary + "\x00")} }, "KPSSH_SECRET_A holds line ends"},
		"a secret too long":                  {func(in *profile.Input) { in.Secrets = map[string][]byte{"a": []byte(strings.Repeat(canary, 20000))} }, "KPSSH_SECRET_A has 120000 bytes"},
		"more secrets than an order carries": {func(in *profile.Input) { in.Secrets = many }, "32 keys, at most 31"},
		"a taint without an effect":          {func(in *profile.Input) { in.Taints = []profile.Taint{{Key: "a"}} }, `taint "a" has the effect ""`},
		"a node name with a line end":        {func(in *profile.Input) { in.NodeName = "a\nb" }, "KPSSH_NODE_NAME holds line ends"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(profile.Join)
			tt.change(&in)
			_, _, err := profile.Environment(in)
			refusal(t, err, tt.want)
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("the error holds a value: %v", err)
			}
		})
	}
}

func TestVarsAndSecretsCanBeCheckedBeforeThereIsANode(t *testing.T) {
	refusal(t, profile.CheckVars(map[string]string{"a": "1"}), "")
	refusal(t, profile.CheckVars(map[string]string{"a": "1\n"}), "KPSSH_VAR_A holds line ends")
	refusal(t, profile.CheckSecrets(map[string][]byte{"tls.crt": []byte("x\n")}), "")
	refusal(t, profile.CheckSecrets(map[string][]byte{"tls.crt": []byte("x\ny\n")}), "KPSSH_SECRET_TLS_CRT holds line ends")
}

// Each variable that a phase gets is in its schema, secret where it is secret.
func TestSchemaCoversTheEnvironment(t *testing.T) {
	for _, phase := range profile.Phases() {
		in := input(phase)
		in.Vars, in.Secrets = nil, nil
		params, secrets, err := profile.Environment(in)
		refusal(t, err, "")
		got := map[string]bool{}
		for _, p := range profile.Schema(phase) {
			got[p.Name] = p.Secret
		}
		want := map[string]bool{}
		for name := range params {
			want[name] = false
		}
		for name := range secrets {
			want[name] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: variables, and whether they are secret (-want +got):\n%s", phase, diff)
		}
	}
}

func TestDeclare(t *testing.T) {
	for name, tt := range map[string]struct {
		phase    profile.Phase
		declared []profile.Parameter
		want     string
	}{
		"nothing":                      {phase: profile.Join},
		"a var and a secret":           {phase: profile.Install, declared: []profile.Parameter{{Name: "KPSSH_VAR_A"}, {Name: "KPSSH_SECRET_B", Secret: true}}},
		"a standard name, narrower":    {phase: profile.Join, declared: []profile.Parameter{{Name: profile.EnvNodeName, Type: "nodeName", MaxLength: 20}}},
		"an address for leave":         {phase: profile.Leave, declared: []profile.Parameter{{Name: profile.EnvNodeAddress, Type: "ip"}}},
		"a name twice":                 {phase: profile.Join, declared: []profile.Parameter{{Name: "KPSSH_VAR_A"}, {Name: "KPSSH_VAR_A"}}, want: "declared twice"},
		"a name of no kind":            {phase: profile.Join, declared: []profile.Parameter{{Name: "KPSSH_OTHER"}}, want: "neither standard nor"},
		"a prefix alone":               {phase: profile.Join, declared: []profile.Parameter{{Name: "KPSSH_VAR_"}}, want: "neither standard nor"},
		"a name in lower case":         {phase: profile.Join, declared: []profile.Parameter{{Name: "KPSSH_VAR_a"}}, want: "neither standard nor"},
		"the token for install":        {phase: profile.Install, declared: []profile.Parameter{{Name: profile.EnvBootstrapToken, Secret: true}}, want: "neither standard nor"},
		"a var for leave":              {phase: profile.Leave, declared: []profile.Parameter{{Name: "KPSSH_VAR_A"}}, want: "the two addresses only"},
		"an endpoint for leave":        {phase: profile.Leave, declared: []profile.Parameter{{Name: profile.EnvClusterEndpoint}}, want: "the two addresses only"},
		"a secret that is not secret":  {phase: profile.Join, declared: []profile.Parameter{{Name: "KPSSH_SECRET_A"}}, want: "are secret, and nothing else is"},
		"a token that is not secret":   {phase: profile.Join, declared: []profile.Parameter{{Name: profile.EnvBootstrapToken}}, want: "are secret, and nothing else is"},
		"a var that is secret":         {phase: profile.Join, declared: []profile.Parameter{{Name: "KPSSH_VAR_A", Secret: true}}, want: "are secret, and nothing else is"},
		"an endpoint that is a secret": {phase: profile.Join, declared: []profile.Parameter{{Name: profile.EnvClusterEndpoint, Secret: true}}, want: "are secret, and nothing else is"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := profile.Declare(tt.phase, tt.declared)
			refusal(t, err, tt.want)
			if err != nil {
				return
			}
			byName := map[string]profile.Parameter{}
			for i, p := range got {
				byName[p.Name] = p
				if p.Type == "" || i > 0 && got[i-1].Name >= p.Name {
					t.Errorf("parameter %d %s (type %q) is out of order or has no type", i, p.Name, p.Type)
				}
			}
			for _, p := range profile.Schema(tt.phase) {
				if _, ok := byName[p.Name]; !ok {
					t.Errorf("%s is missing", p.Name)
				}
			}
			for _, p := range tt.declared {
				if p.Type == "" {
					p.Type = "string"
				}
				if diff := cmp.Diff(p, byName[p.Name]); diff != "" {
					t.Errorf("declared (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// k0sproject, kubeadm#2287, dash0#1214 and others: tokens show up in logs in one spelling or another.
func TestRedactorTakesOutSecretsInEverySpelling(t *testing.T) {
	secrets := map[string]string{
		"KPSSH_BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef",
		"KPSSH_SECRET_PASSWORD": `it's "hot" & <new>`,
		"KPSSH_SECRET_LONG":     "xyzzy-plugh", "KPSSH_SECRET_SHORT": "xyzzy", "KPSSH_SECRET_OVERLAP": "plugh-42",
		"KPSSH_SECRET_EMPTY": "",
	}
	redactor := profile.NewRedactor(secrets)
	for name, tt := range map[string]struct{ text, want string }{
		"nothing to hide":         {"kubelet is active", "kubelet is active"},
		"a token":                 {"token abcdef.0123456789abcdef used", "token [redacted] used"},
		"the secret half":         {"secret=0123456789abcdef", "secret=[redacted]"},
		"the public half stays":   {"token id abcdef", "token id abcdef"},
		"xtrace":                  {`+ PASSWORD='it'\''s "hot" & <new>'`, "+ PASSWORD='[redacted]'"},
		"JSON":                    {`{"p":"it's \"hot\" \u0026 \u003cnew\u003e"}`, `{"p":"[redacted]"}`},
		"base64":                  {"p: " + base64.StdEncoding.EncodeToString([]byte("xyzzy-plugh")), "p: [redacted]="},
		"base64 of echo":          {"p: " + base64.StdEncoding.EncodeToString([]byte("xyzzy-plugh\n")), "p: [redacted]"},
		"a secret inside another": {"xyzzy-plugh xyzzy", "[redacted] [redacted]"},
		"secrets that overlap":    {"<xyzzy-plugh-42>", "<[redacted]>"},
		"a secret twice in a row": {"xyzzyxyzzy", "[redacted]"},
		"at the ends":             {"xyzzy", "[redacted]"},
		"a name is not its value": {"KPSSH_SECRET_SHORT is set", "KPSSH_SECRET_SHORT is set"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := redactor.Redact(tt.text); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	if got := (profile.Redactor{}).Redact("x"); got != "x" {
		t.Errorf("no secrets: %q", got)
	}
}

// Whoever may write a profile may write any template: rendering neither panics nor runs away, and
// what it gives is a script.
func FuzzRender(f *testing.F) {
	for _, seed := range []string{"true", "{{.Vars.a}}", "{{if .Vars}}{{quote .Vars.a}}{{end}}", `{{"{{"}}`, "{{define \"x\"}}{{end}}", "{{nil}}"} {
		f.Add(seed)
	}
	values := profile.Values{Vars: map[string]string{"a": "it's"}}
	f.Fuzz(func(t *testing.T, script string) {
		first, err := profile.Render([]byte(script), values)
		if err != nil {
			return
		}
		if err := profile.Check(first); err != nil {
			t.Errorf("rendered what is no script: %v", err)
		}
		if again, err := profile.Render([]byte(script), values); err != nil || string(again) != string(first) {
			t.Errorf("rendered %q, then %q, %v", first, again, err)
		}
	})
}

func TestAZoneOfOursIsNotTheHosts(t *testing.T) {
	params, _, err := profile.Environment(profile.Input{Phase: profile.Leave, HostAddress: "fe80::1%eth0", NodeAddress: "192.0.2.7"})
	if err != nil || params["KPSSH_HOST_ADDRESS"] != "fe80::1" || params["KPSSH_NODE_ADDRESS"] != "192.0.2.7" {
		t.Errorf("got %v, %v", params, err)
	}
}
