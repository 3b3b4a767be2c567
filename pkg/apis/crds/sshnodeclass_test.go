package crds_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds/crdtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

const validClass = `
apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHNodeClass
metadata: {name: default}
spec:
  joinProfileRef: {name: tls-bootstrap}
`

func manyVars(n int) map[string]any {
	out := map[string]any{}
	for i := range n {
		out[fmt.Sprintf("key_%d", i)] = strings.Repeat("v", 2048)
	}
	return out
}

// classCases are objects of the kind by what is about them.
func classCases() map[string]objectCase {
	gate := func(removeWhen map[string]any) map[string]any {
		return map[string]any{"spec/startupTaintGates": []any{map[string]any{"taintKey": "example.org/cni", "removeWhen": removeWhen}}}
	}
	pods := map[string]any{"namespace": "kube-system", "selector": map[string]any{"matchLabels": map[string]any{"app": "cni"}}}
	condition := map[string]any{"type": "NetworkUnavailable", "status": "False"}
	vars := func(pairs ...string) map[string]any {
		out := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = pairs[i+1]
		}
		return map[string]any{"spec/vars": out}
	}
	certificate := "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUIKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="
	const badKey = "keys of vars must be shell identifiers"
	const badEndpoint = "endpoint must be https://HOST[:PORT]"
	return map[string]objectCase{
		"the smallest class":          {},
		"a selector":                  {change: map[string]any{"spec/hostSelector": map[string]any{"matchLabels": map[string]any{"rack": "1"}}}},
		"vars in any case":            {change: vars("clusterDNS", "10.96.0.10", "_x", "", "NO_PROXY", "a,b")},
		"64 vars of 2048 characters":  {change: map[string]any{"spec/vars": manyVars(64)}},
		"no price":                    {change: map[string]any{"spec/pricePerCPUHour": nil}},
		"a price of nothing":          {change: map[string]any{"spec/pricePerCPUHour": "0"}},
		"kubeReserved without memory": {change: map[string]any{"spec/kubeReserved": map[string]any{"cpu": "1"}}},
		"Adopt":                       {change: map[string]any{"spec/providerIDSource": "Adopt"}},
		"an endpoint by name":         {change: map[string]any{"spec/cluster": map[string]any{"endpoint": "https://api.example.org:6443"}}},
		"an endpoint by IPv6 address": {change: map[string]any{"spec/cluster": map[string]any{"endpoint": "https://[2001:db8::1]:6443"}}},
		"a CA bundle":                 {change: map[string]any{"spec/cluster": map[string]any{"caBundle": certificate}}},
		"a gate on pods":              {change: gate(map[string]any{"podsReady": pods})},
		"a gate on a condition":       {change: gate(map[string]any{"nodeCondition": condition})},
		// A review: a name with a mistake in it was stored, and ignored nothing, in silence.
		"ignored checks":                            {change: map[string]any{"spec/ignoredPreflightChecks": []any{"SwapOn", "CapacityDrift"}}},
		"an ignored check that there is none of":    {change: map[string]any{"spec/ignoredPreflightChecks": []any{"SwapOn", "Swap"}}, want: `Unsupported value: "Swap"`},
		"an ignored check in another case":          {change: map[string]any{"spec/ignoredPreflightChecks": []any{"swapOn"}}, want: `supported values: "AddressConflict"`},
		"no profile":                                {change: map[string]any{"spec/joinProfileRef": nil}, want: "spec.joinProfileRef: Required value"},
		"a profile without a name":                  {change: map[string]any{"spec/joinProfileRef/name": ""}, want: "spec.joinProfileRef.name"},
		"a profile name that is none":               {change: map[string]any{"spec/joinProfileRef/name": "../secret"}, want: "spec.joinProfileRef.name"},
		"a var that no shell could name":            {change: vars("cluster-dns", "x"), want: badKey},
		"a var that begins with a digit":            {change: vars("1st", "x"), want: badKey},
		"a var with an injected name":               {change: vars("A=1;id", "x"), want: badKey},
		"a var with a name of 64 characters":        {change: vars(strings.Repeat("k", 64), "x"), want: badKey},
		"vars that differ in case alone":            {change: vars("proxy", "a", "PROXY", "b"), want: "must differ in more than upper and lower case"},
		"a var with a newline":                      {change: vars("motd", "a\nb"), want: "must not hold control characters"},
		"a var with a NUL":                          {change: vars("motd", "a\x00b"), want: "must not hold control characters"},
		"a var of 2049 characters":                  {change: vars("long", strings.Repeat("v", 2049)), want: "Too long"},
		"65 vars":                                   {change: map[string]any{"spec/vars": manyVars(65)}, want: "spec.vars"},
		"a var that is no string":                   {change: map[string]any{"spec/vars": map[string]any{"n": 1}}, want: "spec.vars.n"},
		"a Secret in another namespace":             {change: map[string]any{"spec/joinSecretRef": map[string]any{"name": "a/b"}}, want: "spec.joinSecretRef.name"},
		"a Secret with a namespace":                 {change: map[string]any{"spec/joinSecretRef": map[string]any{"name": "a", "namespace": "b"}}, want: "unknown field"},
		"a provider id source that is none":         {change: map[string]any{"spec/providerIDSource": "Guess"}, want: "spec.providerIDSource: Unsupported value"},
		"a price in words":                          {change: map[string]any{"spec/pricePerCPUHour": "cheap"}, want: "spec.pricePerCPUHour"},
		"a negative price":                          {change: map[string]any{"spec/pricePerCPUHour": "-0.02"}, want: "spec.pricePerCPUHour"},
		"a price with a comma":                      {change: map[string]any{"spec/pricePerCPUHour": "0,02"}, want: "spec.pricePerCPUHour"},
		"a price with an exponent":                  {change: map[string]any{"spec/pricePerCPUHour": "1e9"}, want: "spec.pricePerCPUHour"},
		"a price as a number":                       {change: map[string]any{"spec/pricePerCPUHour": 0.02}, want: "spec.pricePerCPUHour"},
		"negative kubeReserved":                     {change: map[string]any{"spec/kubeReserved": map[string]any{"cpu": "-1"}}, want: "kubeReserved must not be negative"},
		"kubeReserved that no client could decode":  {change: map[string]any{"spec/kubeReserved": map[string]any{"cpu": "1e99999999999999999999"}}, want: "kubeReserved must be quantities"},
		"kubeReserved that takes a decoder minutes": {change: map[string]any{"spec/kubeReserved": map[string]any{"memory": "1e999999999"}}, want: "quantities without an exponent"},
		"kubeReserved of another resource":          {change: map[string]any{"spec/kubeReserved": map[string]any{"nvidia.com/gpu": "1"}}, want: "kubeReserved may hold"},
		"no pods":                                   {change: map[string]any{"spec/maxPods": 0}, want: "spec.maxPods"},
		"too many pods":                             {change: map[string]any{"spec/maxPods": 10001}, want: "spec.maxPods"},
		"an endpoint without TLS":                   {change: map[string]any{"spec/cluster": map[string]any{"endpoint": "http://api:6443"}}, want: badEndpoint},
		"an endpoint without a scheme":              {change: map[string]any{"spec/cluster": map[string]any{"endpoint": "api:6443"}}, want: badEndpoint},
		"an endpoint with a path":                   {change: map[string]any{"spec/cluster": map[string]any{"endpoint": "https://api:6443/"}}, want: badEndpoint},
		"an endpoint with a user":                   {change: map[string]any{"spec/cluster": map[string]any{"endpoint": "https://u:p@api:6443"}}, want: badEndpoint},
		"an endpoint with a newline":                {change: map[string]any{"spec/cluster": map[string]any{"endpoint": "https://api:6443\n"}}, want: badEndpoint},
		"an endpoint in upper case":                 {change: map[string]any{"spec/cluster": map[string]any{"endpoint": "https://API:6443"}}, want: badEndpoint},
		"a CA bundle that is not base64":            {change: map[string]any{"spec/cluster": map[string]any{"caBundle": "-----BEGIN CERTIFICATE-----"}}, want: "spec.cluster.caBundle"},
		"a CA bundle that is no PEM":                {change: map[string]any{"spec/cluster": map[string]any{"caBundle": "aGVsbG8="}}, want: "caBundle must be the base64 of PEM certificates"},
		"a gate without a taint":                    {change: map[string]any{"spec/startupTaintGates": []any{map[string]any{"removeWhen": map[string]any{"nodeCondition": condition}}}}, want: "taintKey: Required value"},
		"a gate on a malformed taint":               {change: map[string]any{"spec/startupTaintGates": []any{map[string]any{"taintKey": "a b", "removeWhen": map[string]any{"nodeCondition": condition}}}}, want: "taintKey"},
		"a gate that says nothing":                  {change: gate(map[string]any{}), want: "exactly one of podsReady and nodeCondition must be set"},
		"a gate that says both":                     {change: gate(map[string]any{"podsReady": pods, "nodeCondition": condition}), want: "exactly one of podsReady and nodeCondition must be set"},
		"a gate that says something else":           {change: gate(map[string]any{"always": true}), want: "unknown field"},
		"a gate on pods without a selector":         {change: gate(map[string]any{"podsReady": map[string]any{"namespace": "x"}}), want: "podsReady.selector: Required value"},
		"a gate on pods without a namespace":        {change: gate(map[string]any{"podsReady": map[string]any{"selector": map[string]any{}}}), want: "podsReady.namespace: Required value"},
		"a gate on no pods":                         {change: gate(map[string]any{"podsReady": map[string]any{"namespace": "x", "selector": map[string]any{}, "minReady": 0}}), want: "podsReady.minReady"},
		"a gate on a status that is none":           {change: gate(map[string]any{"nodeCondition": map[string]any{"type": "Ready", "status": "Yes"}}), want: "nodeCondition.status: Unsupported value"},
		"a gate on a condition without a type":      {change: gate(map[string]any{"nodeCondition": map[string]any{"status": "True"}}), want: "nodeCondition.type: Required value"},
		"two gates on one taint": {change: map[string]any{"spec/startupTaintGates": []any{
			map[string]any{"taintKey": "a", "removeWhen": map[string]any{"nodeCondition": condition}},
			map[string]any{"taintKey": "a", "removeWhen": map[string]any{"podsReady": pods}},
		}}, want: "Duplicate value"},
	}
}

func TestAdmissionOfSSHNodeClass(t *testing.T) {
	admit := crdtest.Load(t, crds.Own())["SSHNodeClass"]
	for name, tt := range classCases() {
		t.Run(name, func(t *testing.T) {
			object := parse(t, validClass, tt.change)
			verdict(t, admit.Admit(t.Context(), object, nil), tt.want)
			if tt.want == "" {
				crdtest.Decodable(t, object, &v1beta1.SSHNodeClass{})
			}
		})
	}
}
