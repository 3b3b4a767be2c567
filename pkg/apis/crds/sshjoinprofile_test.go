package crds_test

import (
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds/crdtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

const validProfile = `
apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHJoinProfile
metadata: {name: tls-bootstrap}
spec:
  scripts: {install: "true", join: "true", leave: "true"}
`

// profileCases are objects of the kind by what is about them.
func profileCases() map[string]objectCase {
	join := func(pairs ...any) map[string]any {
		p := map[string]any{"name": "KPSSH_VAR_CLUSTERDNS"}
		for i := 0; i < len(pairs); i += 2 {
			p[pairs[i].(string)] = pairs[i+1]
		}
		return map[string]any{"spec/parameters": map[string]any{"join": []any{p}}}
	}
	phase := func(phase, name string) map[string]any {
		return map[string]any{"spec/parameters": map[string]any{phase: []any{map[string]any{"name": name}}}}
	}
	timeout := func(value any) map[string]any { return map[string]any{"spec/timeouts": map[string]any{"join": value}} }
	const badTimeout = "timeout must be between 1s and 24h"
	const badSecret = "KPSSH_BOOTSTRAP_TOKEN and KPSSH_SECRET_* are secret, and nothing else is"
	return map[string]objectCase{
		"the smallest profile":              {},
		"an uninstall script":               {change: map[string]any{"spec/scripts/uninstall": "true"}},
		"a version":                         {change: map[string]any{"spec/version": "2026.07_rc-1"}},
		"scripts of 256 KiB":                {change: map[string]any{"spec/scripts/join": strings.Repeat("#", 256<<10)}},
		"timeouts of several units":         {change: timeout("1h30m15s")},
		"a timeout of a day":                {change: timeout("24h")},
		"a var with a pattern":              {change: join("pattern", `[0-9.]+`, "maxLength", 15)},
		"a var with an enum":                {change: join("enum", []any{"systemd", "cgroupfs"})},
		"a pinned endpoint":                 {change: join("name", "KPSSH_CLUSTER_ENDPOINT", "type", "endpoint", "pin", []any{"https://api:6443"})},
		"a secret":                          {change: join("name", "KPSSH_SECRET_PULL_TOKEN", "secret", true, "pattern", "[a-z]{20}")},
		"a token":                           {change: join("name", "KPSSH_BOOTSTRAP_TOKEN", "type", "token", "secret", true)},
		"a narrower address for leave":      {change: phase("leave", "KPSSH_HOST_ADDRESS")},
		"a narrower address for uninstall":  {change: phase("uninstall", "KPSSH_NODE_ADDRESS")},
		"no scripts":                        {change: map[string]any{"spec/scripts": nil}, want: "spec.scripts: Required value"},
		"no install":                        {change: map[string]any{"spec/scripts/install": nil}, want: "spec.scripts.install: Required value"},
		"no join":                           {change: map[string]any{"spec/scripts/join": nil}, want: "spec.scripts.join: Required value"},
		"no leave":                          {change: map[string]any{"spec/scripts/leave": nil}, want: "spec.scripts.leave: Required value"},
		"an empty leave":                    {change: map[string]any{"spec/scripts/leave": ""}, want: "spec.scripts.leave"},
		"an install of more than 256 KiB":   {change: map[string]any{"spec/scripts/install": strings.Repeat("#", 256<<10+1)}, want: "spec.scripts.install"},
		"a join of more than 256 KiB":       {change: map[string]any{"spec/scripts/join": strings.Repeat("#", 256<<10+1)}, want: "spec.scripts.join"},
		"a leave of more than 256 KiB":      {change: map[string]any{"spec/scripts/leave": strings.Repeat("#", 256<<10+1)}, want: "spec.scripts.leave"},
		"an uninstall of more than 256 KiB": {change: map[string]any{"spec/scripts/uninstall": strings.Repeat("#", 256<<10+1)}, want: "spec.scripts.uninstall"},
		"a script for another phase":        {change: map[string]any{"spec/scripts/reboot": "true"}, want: "unknown field"},
		"an empty version":                  {change: map[string]any{"spec/version": ""}, want: "spec.version"},
		"a version with the marker's @":     {change: map[string]any{"spec/version": "1@2"}, want: "spec.version"},
		"a version of 64 characters":        {change: map[string]any{"spec/version": strings.Repeat("1", 64)}, want: "spec.version"},
		"a version as a number":             {change: map[string]any{"spec/version": 2}, want: "spec.version"},
		"a name of 64 characters":           {change: map[string]any{"metadata/name": strings.Repeat("n", 64)}, want: "metadata.name must be at most 63 characters"},
		"a timeout as a number":             {change: timeout(300), want: "spec.timeouts.join"},
		"a timeout without a unit":          {change: timeout("300"), want: "spec.timeouts.join"},
		"a timeout in milliseconds":         {change: timeout("300ms"), want: "spec.timeouts.join"},
		"a negative timeout":                {change: timeout("-5m"), want: "spec.timeouts.join"},
		"a fractional timeout":              {change: timeout("1.5h"), want: "spec.timeouts.join"},
		"a timeout of nothing":              {change: timeout("0s"), want: badTimeout},
		"a timeout of more than a day":      {change: timeout("24h1s"), want: badTimeout},
		"a timeout that overflows":          {change: timeout("99999999999999999999h"), want: "spec.timeouts.join"},
		"a timeout for uninstall":           {change: map[string]any{"spec/timeouts": map[string]any{"uninstall": "1m"}}, want: "unknown field"},
		"a parameter of another name":       {change: join("name", "PATH"), want: ".name"},
		"a parameter in lower case":         {change: join("name", "KPSSH_VAR_dns"), want: ".name"},
		"a parameter of another type":       {change: join("type", "path"), want: ".type: Unsupported value"},
		"a pattern that is none":            {change: join("pattern", "("), want: "pattern"},
		"a pattern that opens the anchors":  {change: join("pattern", "a)|(?:.*"), want: "pattern"},
		"a pattern and an enum":             {change: join("pattern", "a", "enum", []any{"a"}), want: "pattern and enum exclude each other"},
		"an empty enum":                     {change: join("enum", []any{}), want: ".enum"},
		"an enum with a value twice":        {change: join("enum", []any{"a", "a"}), want: "Duplicate value"},
		"no length":                         {change: join("maxLength", 0), want: ".maxLength"},
		"a length of more than 64 KiB":      {change: join("maxLength", 65537), want: ".maxLength"},
		"a secret that is not marked":       {change: join("name", "KPSSH_SECRET_X"), want: badSecret},
		"a token that is not marked":        {change: join("name", "KPSSH_BOOTSTRAP_TOKEN"), want: badSecret},
		"a var marked secret":               {change: join("secret", true), want: badSecret},
		"a pinned secret":                   {change: join("name", "KPSSH_SECRET_X", "secret", true, "pin", []any{"x"}), want: "would give a secret away"},
		"a secret with an enum":             {change: join("name", "KPSSH_SECRET_X", "secret", true, "enum", []any{"x"}), want: "would give a secret away"},
		"an empty pin":                      {change: join("pin", []any{}), want: ".pin"},
		"a var for leave":                   {change: phase("leave", "KPSSH_VAR_X"), want: "leave gets KPSSH_HOST_ADDRESS and KPSSH_NODE_ADDRESS only"},
		"a token for uninstall":             {change: phase("uninstall", "KPSSH_VAR_X"), want: "uninstall gets KPSSH_HOST_ADDRESS and KPSSH_NODE_ADDRESS only"},
		"a parameter of no phase":           {change: phase("repair", "KPSSH_VAR_X"), want: "unknown field"},
		"a parameter declared twice": {change: map[string]any{"spec/parameters": map[string]any{"join": []any{
			map[string]any{"name": "KPSSH_VAR_X"}, map[string]any{"name": "KPSSH_VAR_X"},
		}}}, want: "Duplicate value"},
	}
}

func TestAdmissionOfSSHJoinProfile(t *testing.T) {
	admit := crdtest.Load(t, crds.Own())["SSHJoinProfile"]
	for name, tt := range profileCases() {
		t.Run(name, func(t *testing.T) {
			object := parse(t, validProfile, tt.change)
			verdict(t, admit.Admit(t.Context(), object, nil), tt.want)
			if tt.want == "" {
				crdtest.Decodable(t, object, &v1beta1.SSHJoinProfile{})
			}
		})
	}
}
