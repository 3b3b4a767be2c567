package lint

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/authoring"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

const (
	strict    = "set -euo pipefail\n"
	goodLeave = strict + "systemctl disable --now kubelet containerd\n"
)

// newSource is a profile with a class; scripts that are not given are without a finding.
func newSource(install, join, leave string, declared ...v1beta1.Parameter) authoring.Source {
	p := &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}
	p.Spec.Scripts = v1beta1.Scripts{Install: strict, Join: strict, Leave: goodLeave}
	for given, to := range map[string]*string{install: &p.Spec.Scripts.Install, join: &p.Spec.Scripts.Join, leave: &p.Spec.Scripts.Leave} {
		if given != "" {
			*to = given
		}
	}
	p.Spec.Parameters = &v1beta1.Parameters{Install: declared, Join: declared}
	class := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
	class.Spec.JoinProfileRef.Name = "demo"
	class.Spec.Vars = map[string]string{"zone": "eu"}
	return authoring.Source{Profile: p, Classes: []*v1beta1.SSHNodeClass{class}}
}

func summary(findings []Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, fmt.Sprintf("%s %s %d:%d", f.Severity, f.Rule, f.Line, f.Column))
	}
	return out
}

// Each row is a join script, behind a first line with set -euo pipefail, and what is found in it.
func TestJoinScripts(t *testing.T) {
	secret := v1beta1.Parameter{Name: "KPSSH_SECRET_KEY", Secret: true}
	for name, c := range map[string]struct {
		script string
		want   []string
	}{
		// Quotes.
		"quoted":                      {`echo "$KPSSH_NODE_NAME" "${KPSSH_TAINTS}x" 'a $KPSSH_TAINTS'`, nil},
		"unquoted":                    {`echo $KPSSH_NODE_NAME x${KPSSH_TAINTS}`, []string{"error unquoted-parameter 2:6", "error unquoted-parameter 2:24"}},
		"unquoted in a test":          {`[ $KPSSH_NODE_NAME = a ]`, []string{"error unquoted-parameter 2:3"}},
		"unquoted after >":            {`echo >/etc/$KPSSH_NODE_NAME`, []string{"error unquoted-parameter 2:12"}},
		"unquoted in an array":        {`a=($KPSSH_TAINTS); echo "${a[@]}"`, []string{"error unquoted-parameter 2:4"}},
		"unquoted in a loop":          {`for x in $KPSSH_TAINTS; do echo "$x"; done`, []string{"error unquoted-parameter 2:10"}},
		"unquoted in $(...)":          {`x=$(echo $KPSSH_TAINTS); echo "$x"`, []string{"error unquoted-parameter 2:10"}},
		"a list split on purpose":     {`for x in ${KPSSH_TAINTS//,/ }; do echo "$x"; done`, nil},
		"where bash does not split":   {"x=$KPSSH_NODE_NAME y=${KPSSH_TAINTS%%,*}\n[[ $KPSSH_NODE_NAME == a ]] || export z=$KPSSH_TAINTS\ncase $KPSSH_NODE_NAME in a) ;; esac\ncat <<<$KPSSH_TAINTS\ncat <<X\n$KPSSH_TAINTS\nX\n((${#KPSSH_TAINTS} > 1)) && echo ${#KPSSH_TAINTS} \"$x$y$z\"", nil},
		"other variables are its own": {`x=1; echo $x`, nil},

		// Secrets in a trace.
		"a secret without a trace":           {`x=$KPSSH_SECRET_KEY; printf %s "$x" "$KPSSH_BOOTSTRAP_TOKEN" >/etc/k`, nil},
		"a secret in a trace":                {"set -x\nprintf %s \"$KPSSH_SECRET_KEY\" >/etc/k", []string{"error secret-traced 3:12"}},
		"the token in a trace":               {"set -euxo pipefail\nt=$KPSSH_BOOTSTRAP_TOKEN", []string{"error secret-traced 3:3"}},
		"by its long name":                   {"set -o xtrace\n[[ -n $KPSSH_SECRET_KEY ]]", []string{"error secret-traced 3:7"}},
		"a copy in a trace":                  {"a=${KPSSH_SECRET_KEY:?}\nb=\"x$a\"\nset -x\n: \"$b\"", []string{"error secret-traced 5:4"}},
		"an encoded copy":                    {"a=$(printf %s \"$KPSSH_SECRET_KEY\" | base64 -w0)\nset -x\n: \"$a\"", []string{"error secret-traced 4:4"}},
		"what a command answers is no copy":  {"a=$(ask <<<\"$KPSSH_SECRET_KEY\")\nset -x\n: \"$a\"", nil},
		"traced, then not":                   {"set -x\necho a\n{ set +x; } 2>/dev/null\n: \"$KPSSH_SECRET_KEY\"", nil},
		"traced in a branch":                 {"if [[ -e /debug ]]; then set -x; fi\n: \"$KPSSH_SECRET_KEY\"", []string{"error secret-traced 3:4"}},
		"not traced in a branch only":        {"set -x\nif [[ -e /quiet ]]; then set +x; fi\n: \"$KPSSH_SECRET_KEY\"", []string{"error secret-traced 4:4"}},
		"not traced in either branch":        {"set -x\nif [[ -e /quiet ]]; then set +x; else set +x; fi\n: \"$KPSSH_SECRET_KEY\"", nil},
		"traced in one of three":             {"if [[ -e /a ]]; then :; elif [[ -e /b ]]; then set -x; else :; fi\n: \"$KPSSH_SECRET_KEY\"", []string{"error secret-traced 3:4"}},
		"traced in a subshell":               {"(set -x; echo a)\n: \"$KPSSH_SECRET_KEY\"", nil},
		"traced in a loop":                   {"while read -r x; do set -x; echo \"$x\"; done </etc/hosts\n: \"$KPSSH_SECRET_KEY\"", []string{"error secret-traced 3:4"}},
		"traced behind &&":                   {"[[ -e /debug ]] && set -x\n: \"$KPSSH_SECRET_KEY\"", []string{"error secret-traced 3:4"}},
		"a function that is called traced":   {"f() { : \"$KPSSH_SECRET_KEY\"; }\nset -x\nf", []string{"error secret-traced 2:10"}},
		"a function that turns it off":       {"f() { { set +x; } 2>/dev/null; : \"$KPSSH_SECRET_KEY\"; }\nset -x\nf", nil},
		"a function that turns it on":        {"debug() { set -x; }\ndebug\n: \"$KPSSH_SECRET_KEY\"", []string{"error secret-traced 4:4"}},
		"its length and whether it is there": {"set -x\n[[ ${#KPSSH_SECRET_KEY} -gt 1 ]] && echo ${KPSSH_SECRET_KEY:+yes}", nil},
		"a here-document is not in a trace":  {"set -x\ncat >/etc/k <<X\n$KPSSH_SECRET_KEY\nX", nil},

		// Secrets in arguments.
		"a secret in arguments":                {`login --password "$KPSSH_SECRET_KEY"`, []string{"error secret-argument 2:18"}},
		"within a word":                        {`curl -H "Authorization: Bearer $KPSSH_BOOTSTRAP_TOKEN" https://127.0.0.1`, []string{"error secret-argument 2:9"}},
		"a copy in arguments":                  {"t=$KPSSH_SECRET_KEY\nlogin -p \"$t\"", []string{"error secret-argument 3:10"}},
		"by way of $(...)":                     {`login -p "$(printf %s "$KPSSH_SECRET_KEY")"`, []string{"error secret-argument 2:10"}},
		"behind sudo and timeout":              {`sudo -n timeout 5 login "$KPSSH_SECRET_KEY"`, []string{"error secret-argument 2:25"}},
		"with exec":                            {`exec printf %s "$KPSSH_SECRET_KEY"`, []string{"error secret-argument 2:16"}},
		"of a program whose name varies":       {`"$SHELL" -c "$KPSSH_SECRET_KEY"`, []string{"error secret-argument 2:13"}},
		"of a builtin":                         {`printf '%s\n' "$KPSSH_SECRET_KEY" >/etc/k; test -n "$KPSSH_SECRET_KEY"; command printf %s "$KPSSH_SECRET_KEY" >/etc/k`, nil},
		"of a function":                        {"f() { echo done; }\nf \"$KPSSH_SECRET_KEY\"", nil},
		"by stdin, <(...) and the environment": {`login <<<"$KPSSH_SECRET_KEY"; curl -K <(printf 'user=%s' "$KPSSH_SECRET_KEY") https://localhost; PASSWORD=$KPSSH_SECRET_KEY login`, nil},

		// Variables.
		"standard ones":               {`echo "$KPSSH_CLUSTER_ENDPOINT" "$KPSSH_PROVIDER_ID" "$KPSSH_VAR_ZONE"`, nil},
		"a name that is none":         {`echo "$KPSSH_NODENAME"`, []string{"error undeclared-parameter 2:7"}},
		"a var of no class":           {`echo "$KPSSH_VAR_RACK"`, []string{"error undeclared-parameter 2:7"}},
		"a var of no class, optional": {`echo "${KPSSH_VAR_RACK-}"; [[ -v KPSSH_VAR_ROW ]]`, []string{"warning undeclared-parameter 2:7", "warning undeclared-parameter 2:31"}},
		"its own":                     {"KPSSH_ARGS=1\necho \"$KPSSH_ARGS\"", nil},

		// rm -r.
		"rm of what may be empty":            {`rm -rf "${KPSSH_VAR_ZONE-}/x" "$KPSSH_NODE_NAME"/y`, []string{"error remove-empty 2:8", "error remove-empty 2:31"}},
		"rm of what was never set":           {`sudo rm -r "$DATA/x"`, []string{"error remove-empty 2:12"}},
		"rm of what is empty at first":       {"d=''\n[[ -e /a ]] && d=/a\nrm --recursive -- \"$d\"/*", []string{"error remove-empty 4:19"}},
		"rm of what takes an empty value":    {"d=${KPSSH_VAR_ZONE:-}\nrm -fR \"$d/\"", []string{"error remove-empty 3:8"}},
		"rm that asks first":                 {`rm -rf "${KPSSH_NODE_NAME:?}/x"`, nil},
		"rm of what is there":                {"d=/etc/x\ne=$d/y\nt=$(mktemp -d)\nrm -rf \"$d\" \"$e/z\" \"$t\"/* \"${HOME}/x\" /tmp/\"$KPSSH_NODE_NAME\"/x", nil},
		"rm of one file":                     {`rm -f "$KPSSH_NODE_NAME/x"`, nil},
		"rm in a loop, of an argument, read": {"for d in a b; do rm -rf \"$d/x\"; done\nf() { rm -rf \"$1/x\"; }\nf a\nread -r e </etc/x\nrm -rf \"$e/x\"", nil},

		// Downloads.
		"curl | bash":             {`curl -fsSL https://example.org/x | sudo bash -s`, []string{"error download-runs 2:1", "warning download-unchecked 2:1"}},
		"wget, tee, sh":           {`wget -O- https://example.org/x | tee /x | sh`, []string{"error download-runs 2:1", "warning download-unchecked 2:1"}},
		"bash <(curl)":            {`bash <(curl https://example.org/x)`, []string{"error download-runs 2:1", "warning download-unchecked 2:8"}},
		"eval of curl":            {`eval "$(curl https://example.org/x)"`, []string{"error download-runs 2:1", "warning download-unchecked 2:9"}},
		"a download":              {`curl -o /x https://example.org/x`, []string{"warning download-unchecked 2:1"}},
		"a download that is held": {"curl -o /x https://example.org/x\necho \"$KPSSH_VAR_ZONE  /x\" | sha256sum -c", nil},
		"a look at the cluster":   {`curl -fsS "$KPSSH_CLUSTER_ENDPOINT/healthz"`, nil},
		"the cluster | bash":      {`curl -fsS "$KPSSH_CLUSTER_ENDPOINT/x" | bash`, []string{"error download-runs 2:1"}},
		"a look at itself":        {`curl -fsS http://localhost:10248/healthz; curl http://127.0.0.1/; curl --unix-socket /x http://a/`, nil},
		"curl without bash":       {"curl https://example.org/x | tar -xz\nsha256sum -c sums", nil},

		// What does not show.
		"right to left":    {"echo a # \u202e b", []string{"error invisible-character 2:10"}},
		"a sequence":       {"printf '\x1b[2J'", []string{"error invisible-character 2:9"}},
		"other writing":    {"echo 'grüße, мир, 日本'", nil},
		"a Cyrillic a":     {"cаt /etc/hosts", []string{"warning mixed-scripts 2:1"}},
		"no bash":          {"if true; then", []string{"error shell-syntax 2:10"}},
		"no bash, quoting": {"echo 'a", []string{"error shell-syntax 2:6"}},
		"of another shell": {"echo ${(f)x}", []string{"error shell-syntax 2:6"}},
		"bash and not sh":  {"declare -A a=([x]=1)\n[[ x =~ ^(a|b)$ ]] || mapfile -t b < <(echo \"${a[@]@Q}\")\necho \"${b[-1]}\" $'\\n' {1..3} &>/dev/null |& cat", nil},

		// Comments that turn rules off.
		"off for the script": {"# kpssh-lint: disable=unquoted-parameter,undeclared-parameter\necho $KPSSH_VAR_X\necho $KPSSH_VAR_X", []string{"error undeclared-parameter 3:6", "error unquoted-parameter 3:6", "error unquoted-parameter 4:6"}[2:]},
		"off for a command":  {"# kpssh-lint: disable=unquoted-parameter\nif true; then\n  echo $KPSSH_TAINTS\nfi\necho $KPSSH_TAINTS", []string{"error unquoted-parameter 6:6"}},
		"off for a line":     {"echo $KPSSH_TAINTS # kpssh-lint: disable=unquoted-parameter\necho $KPSSH_TAINTS", []string{"error unquoted-parameter 3:6"}},
		"no such rule":       {"# kpssh-lint: disable=quoting\necho $KPSSH_TAINTS", []string{"warning unknown-rule 2:1", "error unquoted-parameter 3:6"}},
	} {
		t.Run(name, func(t *testing.T) {
			source := newSource("", strict+c.script+"\n", "", secret)
			source.Profile.Spec.Scripts.Install = strict + ": \"$KPSSH_SECRET_KEY\"\n"
			if diff := cmp.Diff(c.want, summary(Check(source))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A parser may be wrong, and its rule can be turned off like any other, though the script could not be read.
func TestAScriptThatTheParserCannotReadMaySaySo(t *testing.T) {
	for script, want := range map[string][]string{
		"#!/bin/bash\n# kpssh-lint: disable=shell-syntax\n\necho $((\n": nil,
		"#!/bin/bash\necho $((\n# kpssh-lint: disable=shell-syntax\n":   {"error shell-syntax 2:6"},
	} {
		if diff := cmp.Diff(want, summary(Check(newSource("", script, "")))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", script, diff)
		}
	}
}

func TestStrictModeComesFirst(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   []string
	}{
		"in one":                {"#!/bin/bash\n# A comment.\nset -euo pipefail\necho a\n", nil},
		"in pieces":             {"set -e\nset -u -o pipefail\necho a\n", nil},
		"by long names":         {"set -o errexit -o nounset\nset -o pipefail\necho a\n", nil},
		"behind what is no act": {"umask 022\nx=1\nf() { echo; }\nreadonly y=2\nset -euo pipefail\necho \"$x$y\"\n", nil},
		"too late":              {"echo a\nset -euo pipefail\n", []string{"warning strict-mode 1:1"}},
		"not at all":            {"echo a\n", []string{"error strict-mode 1:1"}},
		"a part of it":          {"set -e\necho a\n", []string{"error strict-mode 1:1"}},
		"in a branch":           {"if true; then set -euo pipefail; fi\n", []string{"error strict-mode 1:1"}},
		"only comments":         {"# nothing\n", []string{"error strict-mode 1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, summary(Check(newSource(c.script, "", "")))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLeaveStopsAndAsksForNothing(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   []string
	}{
		"all":                       {goodLeave, nil},
		"by a function":             {strict + "halt() { systemctl disable \"$1\"; systemctl stop \"$1\"; }\nfor u in kubelet containerd; do halt \"$u\"; done\n", nil},
		"by a tool":                 {strict + "nodeadm uninstall\n", nil},
		"another runtime":           {strict + "systemctl disable --now kubelet.service crio.service\n", nil},
		"nothing":                   {strict + "echo bye\n", []string{"warning leave-stops 1:1"}},
		"stopped, not disabled":     {strict + "systemctl stop kubelet containerd\n", []string{"warning leave-stops 1:1"}},
		"without containerd":        {strict + "systemctl disable --now kubelet\n", []string{"warning leave-stops 1:1"}},
		"it looks at its addresses": {goodLeave + "echo \"$KPSSH_HOST_ADDRESS $KPSSH_NODE_ADDRESS\"\n", nil},
		"it asks for a var":         {goodLeave + "echo \"${KPSSH_VAR_ZONE:-}\"\n", []string{"error leave-parameter 3:7"}},
		"it asks for secret and name": {goodLeave + "login <<<\"$KPSSH_SECRET_KEY\"\necho \"$KPSSH_NODE_NAME\"\n",
			[]string{"error leave-parameter 3:11", "error leave-parameter 4:7"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, summary(Check(newSource("", "", c.script)))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDeclarations(t *testing.T) {
	reads := strict + `echo "${KPSSH_VAR_A-}"` + "\n"
	for name, c := range map[string]struct {
		change func(*authoring.Source)
		want   []string
	}{
		"read once, declared twice": {func(s *authoring.Source) { declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A", Optional: true}) }, nil},
		"not read at all":           {func(s *authoring.Source) { declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_B"}) }, []string{"warning unused-parameter 0:0", "warning unused-parameter 0:0", "warning undeclared-parameter 2:7"}},
		"declared for join alone": {func(s *authoring.Source) {
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A"})
			s.Profile.Spec.Parameters.Install = nil
		}, []string{"warning one-sided-parameter 0:0"}},
		"optional and pinned": {func(s *authoring.Source) {
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A", Optional: true, Pin: []string{"x"}})
		}, []string{"warning optional-pin 0:0", "warning optional-pin 0:0"}},
		"an open repository": {func(s *authoring.Source) {
			s.Profile.Spec.Scripts.Join = strict + `echo "$KPSSH_VAR_APT_MIRROR" "$KPSSH_VAR_A"` + "\n"
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_APT_MIRROR"}, v1beta1.Parameter{Name: "KPSSH_VAR_A", Type: "uri", Enum: []string{"https://a"}})
		}, []string{"warning open-repository 0:0", "warning open-repository 0:0"}},
		"a standard name, wider": {func(s *authoring.Source) {
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A"}, v1beta1.Parameter{Name: profile.EnvNodeName, Type: "string"})
		}, []string{"warning loosened-parameter 0:0", "warning loosened-parameter 0:0"}},
		"a standard name, pinned": {func(s *authoring.Source) {
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A"}, v1beta1.Parameter{Name: profile.EnvClusterEndpoint, Type: "endpoint", Pin: []string{"https://a"}})
		}, nil},
		"optional, and read as if it were not": {func(s *authoring.Source) {
			s.Profile.Spec.Scripts.Join = strict + `echo "$KPSSH_VAR_A"` + "\n"
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A", Optional: true})
		}, []string{"warning optional-parameter 2:7"}},
		"declared twice": {func(s *authoring.Source) {
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A"}, v1beta1.Parameter{Name: "KPSSH_VAR_A"})
		}, []string{"error declaration 0:0", "error declaration 0:0"}},
		"a template without its value": {func(s *authoring.Source) {
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A"})
			s.Profile.Spec.Scripts.Install = strict + "echo {{.Vars.rack}} # KPSSH_VAR_A\n"
		}, []string{"error template 0:0"}},
		"a template without its class": {func(s *authoring.Source) {
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A"})
			s.Profile.Spec.Scripts.Install = strict + "echo {{.Vars.zone}} # KPSSH_VAR_A\n"
			s.Classes = nil
		}, []string{"warning not-rendered 0:0"}},
		"a template that is none": {func(s *authoring.Source) {
			declare(s, v1beta1.Parameter{Name: "KPSSH_VAR_A"})
			s.Profile.Spec.Scripts.Install = strict + "echo {{.Vars.zone # KPSSH_VAR_A\n"
			s.Classes = nil
		}, []string{"error template 0:0"}},
	} {
		t.Run(name, func(t *testing.T) {
			source := newSource("", reads, "")
			c.change(&source)
			if diff := cmp.Diff(c.want, summary(Check(source))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func declare(s *authoring.Source, p ...v1beta1.Parameter) {
	s.Profile.Spec.Parameters = &v1beta1.Parameters{Install: p, Join: p}
}

// Scripts that differ by class are looked at one by one, and say whose they are.
func TestEachClassHasItsFindings(t *testing.T) {
	source := newSource("", strict+"{{if eq .Vars.zone \"us\"}}echo $KPSSH_TAINTS{{end}}\n", "")
	other := source.Classes[0].DeepCopy()
	other.Name, other.Spec.Vars = "overseas", map[string]string{"zone": "us"}
	source.Classes = append(source.Classes, other)
	findings := Check(source)
	if len(findings) != 1 || !slices.Equal(findings[0].Classes, []string{"overseas"}) || findings[0].Line != 2 {
		t.Errorf("%+v", findings)
	}
}

func shipped(t *testing.T) []authoring.Source {
	t.Helper()
	objects, err := manifest.Load(&cli.Env{}, []string{"../../../../examples/tls-bootstrap.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	sources, err := authoring.Sources(objects)
	if err != nil || len(sources) != 1 {
		t.Fatalf("%d profiles, %v", len(sources), err)
	}
	return sources
}

// The profile that we ship is held to the rules that we recommend.
func TestTheShippedProfileIsClean(t *testing.T) {
	for _, f := range Check(shipped(t)[0]) {
		t.Errorf("%s %d:%d %s: %s", f.Phase, f.Line, f.Column, f.Rule, f.Message)
	}
}

// Whatever a script is, lint ends soon and the program goes on: the parser recurses, and a full stack ends a Go program.
func TestHostileScriptsEndInFindings(t *testing.T) {
	for _, unit := range []string{
		"(", "((", "$(", "{ ", "[[ ( ", "$[", "${a[", "${a:", "if ", "case a in a) ", "f() ", "time ", "\"$(", "`", "a&&", "a|", "a;", "\n",
		"<<a\n$(", "$KPSSH_VAR_X ", "a=$KPSSH_SECRET_X ", "set -x\n", "\x1b", "\u202e", "# kpssh-lint: disable=mixed-scripts\n",
	} {
		t.Run(fmt.Sprintf("%q", unit), func(t *testing.T) {
			text := strings.Repeat(unit, profile.MaxScript/len(unit))
			start := time.Now()
			findings := Check(newSource("", text, ""))
			if took := time.Since(start); took > time.Minute {
				t.Errorf("it took %s", took)
			}
			if strings.TrimSpace(text) != "" && len(findings) == 0 {
				t.Error("nothing was found")
			}
		})
	}
	for name, text := range map[string]string{"NUL": "echo \x00\n", "no UTF-8": "echo \xff\n", "CR LF": "echo\r\n", "too large": strings.Repeat("#", profile.MaxScript+1)} {
		t.Run(name, func(t *testing.T) {
			if got := summary(Check(newSource("", text, ""))); !slices.Equal(got, []string{"error template 0:0"}) {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestRulesAreTheOnesThatTheCodeReports(t *testing.T) {
	if !slices.IsSorted(Rules()) {
		t.Error("not sorted")
	}
	used := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`(?:Error|Warning), "([a-z-]+)"|Rule: "([a-z-]+)"|f\.Rule = Warning, "([a-z-]+)"|add\("([a-z-]+)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range form.FindAllStringSubmatch(string(text), -1) {
			used[strings.Join(m[1:], "")] = true
		}
	}
	delete(used, "shellcheck")
	for _, rule := range Rules() {
		if !used[rule] {
			t.Errorf("no code reports %q", rule)
		}
		delete(used, rule)
	}
	for rule := range used {
		t.Errorf("%q is not among Rules", rule)
	}
}

// What shellcheck 0.9.0 says of a script, as it said it; the program itself is asked where there is one.
func TestShellcheckIsHeard(t *testing.T) {
	const said = `{"comments":[{"file":"-","line":2,"endLine":2,"column":6,"endColumn":8,"level":"info","code":2086,"message":"Double quote to prevent globbing and word splitting.","fix":null},` +
		`{"file":"-","line":3,"endLine":3,"column":1,"endColumn":1,"level":"error","code":1009,"message":"The mentioned syntax error was in this if expression.","fix":null}]}`
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "shellcheck")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"findings":       {write("cat >/dev/null; cat <<'X'\n" + said + "\nX\nexit 1\n"), []string{"warning shellcheck:SC2086 2:6", "error shellcheck:SC1009 3:1"}},
		"none":           {write("cat >/dev/null; echo '{\"comments\":[]}'\n"), nil},
		"it breaks":      {write("echo broken >&2; exit 3\n"), []string{"warning shellcheck 0:0"}},
		"it says rubble": {write("echo rubble\n"), []string{"warning shellcheck 0:0"}},
		"it is gone":     {"/nonexistent/shellcheck", []string{"warning shellcheck 0:0"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, summary(Shellcheck(t.Context(), c.path)([]byte("echo\n")))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if path, err := exec.LookPath("shellcheck"); err == nil {
		want := []string{"warning shellcheck:SC2086 3:6"}
		if diff := cmp.Diff(want, summary(Shellcheck(t.Context(), path)([]byte("x=$(id)\ny=\"$x\"\necho $y\n")))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, f := range Check(shipped(t)[0], Shellcheck(t.Context(), path)) {
			t.Errorf("%s %d:%d %s: %s", f.Phase, f.Line, f.Column, f.Rule, f.Message)
		}
	}
}
