package charts_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestValuesThatAreWrongOrUnknownAreRefused(t *testing.T) {
	for values, says := range map[string]string{
		"replica: 2":                                          "replica",
		"image: {name: x}":                                    "name",
		"image: {digest: sha256:12}":                          "digest",
		"image: {pullPolicy: Sometimes}":                      "pullPolicy",
		"replicas: two":                                       "replicas",
		"replicas: -1":                                        "replicas",
		"poolNamespace: No Name":                              "poolNamespace",
		"probeInterval: soon":                                 "probeInterval",
		"probeInterval: 5":                                    "probeInterval",
		"logLevel: loud":                                      "logLevel",
		"batch: {idle: 1s}":                                   "idle",
		"allowRawExec: \"yes\"":                               "allowRawExec",
		"trust: {configmap: x}":                               "configmap",
		"dispatchKey: {kms: evil://x}":                        "kms",
		"dispatchKey: {secret: x}":                            "secret",
		"resources: {limit: {}}":                              "limit",
		"affinity: {nodes: {}}":                               "nodes",
		"podDisruptionBudget: {minAvailable: 50%}":            "minAvailable",
		"podDisruptionBudget: {maxUnavailable: 1}":            "maxUnavailable",
		"networkPolicy: {sshCIDRs: [everywhere]}":             "sshCIDRs",
		"networkPolicy: {sshPorts: [70000]}":                  "sshPorts",
		"serviceMonitor: {interval: 1 minute}":                "interval",
		"prometheusRule: {labels: {a: 1}}":                    "labels",
		"prometheusRule: {rules: []}":                         "rules",
		"dashboard: {namespace: Not One}":                     "namespace",
		"dashboard: {folder: x}":                              "folder",
		"rbac: {create: false}":                               "create",
		"serviceAccount: {create: false}":                     "create",
		"extraEnv: [{value: x}]":                              "extraEnv",
		"extraArgs: [join-parallelism]":                       "extraArgs",
		"imagePullSecrets: [registry]":                        "imagePullSecrets",
		"replicas: 2\npodDisruptionBudget: {minAvailable: 2}": "no node with a controller could be drained",
	} {
		if _, err := files(t, app, values); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", values, err)
		}
	}
	if _, err := files(t, crds, "keep: false"); err == nil {
		t.Error("the CRD chart takes values that it does not know")
	}
}

type schema struct {
	AdditionalProperties json.RawMessage
	Properties           map[string]schema
}

// TestSchemaAndValuesHaveTheSameKeys holds the schema, which is written by hand, to values.yaml.
func TestSchemaAndValuesHaveTheSameKeys(t *testing.T) {
	text, err := os.ReadFile(app + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var root schema
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if text, err = os.ReadFile(app + "/values.yaml"); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	delete(root.Properties, "global") // Helm's own
	same(t, "", root, values)
}

func same(t *testing.T, at string, s schema, values map[string]any) {
	t.Helper()
	if string(s.AdditionalProperties) != "false" {
		t.Errorf("%q takes unknown values", at)
	}
	for key, value := range values {
		sub, ok := s.Properties[key]
		if !ok {
			t.Errorf("%s%s is not in the schema", at, key)
		}
		// What is Kubernetes' own has no key of its own in the schema beyond the first level.
		if nested, isMap := value.(map[string]any); isMap && sub.Properties != nil && !slices.Contains([]string{"affinity", "resources"}, key) {
			same(t, at+key+".", sub, nested)
		}
	}
	for key := range s.Properties {
		if _, ok := values[key]; !ok {
			t.Errorf("%s%s is not in values.yaml", at, key)
		}
	}
}

func TestEachValueHasAComment(t *testing.T) {
	text, err := os.ReadFile(app + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	key := regexp.MustCompile(`^( {0,2})([A-Za-z]+):`)
	inside, keys := "", 0
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		match := key.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		if match[1] == "" {
			inside = match[2]
		} else if slices.Contains([]string{"affinity", "resources", "nodeSelector"}, inside) {
			continue
		}
		keys++
		if i == 0 || !strings.HasPrefix(strings.TrimSpace(lines[i-1]), "# ") {
			t.Errorf("%s: no comment above it", line)
		}
	}
	if keys < 40 {
		t.Errorf("only %d keys were looked at", keys)
	}
}
