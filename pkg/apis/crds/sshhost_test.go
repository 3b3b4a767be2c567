package crds_test

import (
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds/crdtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

const validHost = `
apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHHost
metadata: {name: host-a, namespace: kpssh-system}
spec:
  address: 10.0.0.11
  sshKeySecretRef: {name: pool-key}
  capacity: {cpu: "4", memory: 8Gi}
  shim:
    hostID: 0123456789abcdef0123456789abcdef
    receiptKey: ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
`

const validP256 = "ecdsa-p256-sha256:MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEhyQCx0E9wQWSFI9ULGwy3BuRklnt4IqozONbbdbqz11hlRJy9c7SG+hdcFl9jE9uE/dwtuwU2MqU9T/cN0YkWw=="

// hostCases are objects of the kind by what is about them.
func hostCases() map[string]objectCase {
	capacity := func(pairs ...any) map[string]any {
		out := map[string]any{"cpu": "4", "memory": "8Gi"}
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] == nil {
				delete(out, pairs[i].(string))
			} else {
				out[pairs[i].(string)] = pairs[i+1]
			}
		}
		return out
	}
	const badAddress = "address must be an IP address (link-local with its zone) or a DNS name"
	const badReceiptKey = "spec.shim.receiptKey in body should match"
	return map[string]objectCase{
		"the smallest Verified host":                   {},
		"a Raw host needs no shim":                     {change: map[string]any{"spec/execMode": "Raw", "spec/shim": nil}},
		"an IPv6 address":                              {change: map[string]any{"spec/address": "2001:db8::11"}},
		"a DNS name":                                   {change: map[string]any{"spec/address": "host-a.rack1.example.org"}},
		"a one-word name":                              {change: map[string]any{"spec/address": "pi4"}},
		"a node address":                               {change: map[string]any{"spec/nodeAddress": "192.0.2.7"}},
		"a P-256 receipt key":                          {change: map[string]any{"spec/shim/receiptKey": validP256}},
		"a user and a port":                            {change: map[string]any{"spec/user": "svc.kpssh@corp", "spec/port": 2222}},
		"whole numbers and extended resources":         {change: map[string]any{"spec/capacity": capacity("cpu", 4, "nvidia.com/gpu", 2, "hugepages-2Mi", "64Mi", "ephemeral-storage", "10Gi", "pods", 110)}},
		"no address":                                   {change: map[string]any{"spec/address": nil}, want: "spec.address: Required value"},
		"an empty address":                             {change: map[string]any{"spec/address": ""}, want: "spec.address"},
		"an address with a port":                       {change: map[string]any{"spec/address": "10.0.0.11:22"}, want: badAddress},
		"an address with a user":                       {change: map[string]any{"spec/address": "root@host-a"}, want: badAddress},
		"an address that ssh would take for an option": {change: map[string]any{"spec/address": "-oProxyCommand=id"}, want: badAddress},
		"an address in brackets":                       {change: map[string]any{"spec/address": "[2001:db8::1]"}, want: badAddress},
		"a link-local address with its zone":           {change: map[string]any{"spec/address": "fe80::1%eth0", "spec/nodeAddress": "192.0.2.7"}},
		"a zone without a node address":                {change: map[string]any{"spec/address": "fe80::1%eth0"}, want: "nodeAddress is required"},
		"a zone of another address":                    {change: map[string]any{"spec/address": "2001:db8::1%eth0"}, want: badAddress},
		"a zone that is an option":                     {change: map[string]any{"spec/address": "fe80::1%e;reboot"}, want: badAddress},
		"a zone of an address in another spelling":     {change: map[string]any{"spec/address": "fe80::0001%eth0"}, want: badAddress},
		"an IPv6 address in another spelling":          {change: map[string]any{"spec/address": "2001:DB8::0011"}, want: badAddress},
		"an octet too large":                           {change: map[string]any{"spec/address": "10.0.0.256"}, want: badAddress},
		"a short form of an address":                   {change: map[string]any{"spec/address": "127.1"}, want: badAddress},
		"a name in upper case":                         {change: map[string]any{"spec/address": "Host-A"}, want: badAddress},
		"a name with a final dot":                      {change: map[string]any{"spec/address": "host-a."}, want: badAddress},
		"a name with an underscore":                    {change: map[string]any{"spec/address": "host_a"}, want: badAddress},
		"a name with a newline":                        {change: map[string]any{"spec/address": "host-a\nhost-b"}, want: badAddress},
		"port 0":                                       {change: map[string]any{"spec/port": 0}, want: "spec.port"},
		"port 65536":                                   {change: map[string]any{"spec/port": 65536}, want: "spec.port"},
		"a port in words":                              {change: map[string]any{"spec/port": "22"}, want: "spec.port"},
		"a user with a space":                          {change: map[string]any{"spec/user": "a b"}, want: "spec.user"},
		"a user that ssh would take for an option":     {change: map[string]any{"spec/user": "-l"}, want: "spec.user"},
		"no key":                                    {change: map[string]any{"spec/sshKeySecretRef": nil}, want: "spec.sshKeySecretRef: Required value"},
		"a key without a name":                      {change: map[string]any{"spec/sshKeySecretRef": map[string]any{}}, want: "spec.sshKeySecretRef.name: Required value"},
		"a key with a namespace in its name":        {change: map[string]any{"spec/sshKeySecretRef/name": "kube-system/admin"}, want: "spec.sshKeySecretRef.name"},
		"a node address that no kubelet advertises": {change: map[string]any{"spec/nodeAddress": "127.0.0.1"}, want: "not unspecified, loopback, link-local or multicast"},
		"an unspecified node address":               {change: map[string]any{"spec/nodeAddress": "::"}, want: "not unspecified, loopback, link-local or multicast"},
		"cpu that takes a decoder minutes":          {change: map[string]any{"spec/capacity": capacity("cpu", "1e2147483648")}, want: "quantities without an exponent"},
		"memory that takes a decoder minutes":       {change: map[string]any{"spec/capacity": capacity("memory", "1E+999999999")}, want: "quantities without an exponent"},
		"a device count that takes minutes":         {change: map[string]any{"spec/capacity": capacity("example.org/gpu", "1e-999999999")}, want: "quantities without an exponent"},
		"a quantity of endless digits":              {change: map[string]any{"spec/capacity": capacity("memory", strings.Repeat("9", 100000))}, want: "capacity must be quantities"},
		"a quantity in exa":                         {change: map[string]any{"spec/capacity": capacity("memory", "1Ei")}},
		"half a device":                             {change: map[string]any{"spec/capacity": capacity("nvidia.com/gpu", "0.5")}, want: "must be whole numbers"},
		"half a pod":                                {change: map[string]any{"spec/capacity": capacity("pods", "1.5")}, want: "must be whole numbers"},
		"half a cpu":                                {change: map[string]any{"spec/capacity": capacity("cpu", "0.5")}},
		"a node address that is a name":             {change: map[string]any{"spec/nodeAddress": "host-a"}, want: "nodeAddress must be an IP address"},
		"a node address with a prefix":              {change: map[string]any{"spec/nodeAddress": "10.0.0.1/24"}, want: "nodeAddress must be an IP address"},
		"no capacity":                               {change: map[string]any{"spec/capacity": nil}, want: "spec.capacity: Required value"},
		"capacity without cpu":                      {change: map[string]any{"spec/capacity": capacity("cpu", nil, "pods", 10)}, want: "capacity.cpu is required and must be positive"},
		"capacity without memory":                   {change: map[string]any{"spec/capacity": capacity("memory", nil, "pods", 10)}, want: "capacity.memory is required and must be positive"},
		"no cpus":                                   {change: map[string]any{"spec/capacity": capacity("cpu", 0)}, want: "capacity.cpu is required and must be positive"},
		"negative cpus":                             {change: map[string]any{"spec/capacity": capacity("cpu", -1)}, want: "capacity.cpu is required and must be positive"},
		"no memory":                                 {change: map[string]any{"spec/capacity": capacity("memory", "0")}, want: "capacity.memory is required and must be positive"},
		"a negative extended resource":              {change: map[string]any{"spec/capacity": capacity("nvidia.com/gpu", "-1")}, want: "capacity must not be negative"},
		"a quantity that is none":                   {change: map[string]any{"spec/capacity": capacity("cpu", "four")}, want: "spec.capacity.cpu"},
		"a quantity that no client could decode":    {change: map[string]any{"spec/capacity": capacity("nvidia.com/gpu", "1e99999999999999999999")}, want: "capacity must be quantities"},
		"a resource without its domain":             {change: map[string]any{"spec/capacity": capacity("gpu", 1)}, want: "capacity may hold cpu, memory"},
		"a mode that is none":                       {change: map[string]any{"spec/execMode": "Agent"}, want: "spec.execMode: Unsupported value"},
		"Verified without a shim":                   {change: map[string]any{"spec/shim": nil}, want: "shim is required in execMode Verified"},
		"Verified spelled out without a shim":       {change: map[string]any{"spec/execMode": "Verified", "spec/shim": nil}, want: "shim is required in execMode Verified"},
		"a shim without its key":                    {change: map[string]any{"spec/shim/receiptKey": nil}, want: "spec.shim.receiptKey: Required value"},
		"a shim without its id":                     {change: map[string]any{"spec/shim/hostID": nil}, want: "spec.shim.hostID: Required value"},
		"an id too short to be random":              {change: map[string]any{"spec/shim/hostID": "host-a"}, want: "spec.shim.hostID"},
		"an id with other characters":               {change: map[string]any{"spec/shim/hostID": "0123456789abcdef $"}, want: "spec.shim.hostID"},
		"a receipt key cut short":                   {change: map[string]any{"spec/shim/receiptKey": "ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7"}, want: badReceiptKey},
		"a receipt key of another algorithm":        {change: map[string]any{"spec/shim/receiptKey": "rsa:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="}, want: badReceiptKey},
		"a P-256 key under the name of the other":   {change: map[string]any{"spec/shim/receiptKey": "ed25519:" + validP256[len("ecdsa-p256-sha256:"):]}, want: badReceiptKey},
		"a field that does not exist":               {change: map[string]any{"spec/hostname": "10.0.0.1"}, want: "unknown field"},
		"a state that is none":                      {change: map[string]any{"status/state": "Broken"}, want: "status.state: Unsupported value"},
		"a claim without a uid":                     {change: map[string]any{"status/claimRef": map[string]any{"name": "nc"}}, want: "status.claimRef.uid: Required value"},
		"a negative fence":                          {change: map[string]any{"status/fence": -1}, want: "status.fence"},
	}
}

func TestAdmissionOfSSHHost(t *testing.T) {
	admit := crdtest.Load(t, crds.Own())["SSHHost"]
	for name, tt := range hostCases() {
		t.Run(name, func(t *testing.T) {
			object := parse(t, validHost, tt.change)
			verdict(t, admit.Admit(t.Context(), object, nil), tt.want)
			if tt.want == "" {
				crdtest.Decodable(t, object, &v1beta1.SSHHost{})
			}
		})
	}
}

func TestUpdatesOfSSHHost(t *testing.T) {
	admit := crdtest.Load(t, crds.Own())["SSHHost"]
	claimed := map[string]any{"status/claimRef": map[string]any{"name": "nc", "uid": "u-1"}, "status/fence": 3}
	with := func(base map[string]any, more map[string]any) map[string]any {
		out := map[string]any{}
		for k, v := range base {
			out[k] = v
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	const shimFixed = "spec.shim is immutable while the host is claimed"
	for name, tt := range map[string]struct {
		old, change map[string]any
		want        string
	}{
		"another capacity":                   {change: map[string]any{"spec/capacity": map[string]any{"cpu": 2, "memory": "1Gi"}}},
		"another address":                    {change: map[string]any{"spec/address": "10.0.0.12"}, want: "address is immutable"},
		"another identity of a free host":    {change: map[string]any{"spec/shim/receiptKey": validP256}},
		"another mode of a free host":        {change: map[string]any{"spec/execMode": "Raw", "spec/shim": nil}},
		"another key of a claimed host":      {old: claimed, change: map[string]any{"spec/shim/receiptKey": validP256}, want: shimFixed},
		"another host id of a claimed host":  {old: claimed, change: map[string]any{"spec/shim/hostID": "ffffffffffffffffffffffffffffffff"}, want: shimFixed},
		"a claimed host without its shim":    {old: claimed, change: map[string]any{"spec/execMode": "Raw", "spec/shim": nil}, want: shimFixed},
		"a claimed host downgraded":          {old: claimed, change: map[string]any{"spec/execMode": "Raw"}, want: "spec.execMode is immutable while the host is claimed"},
		"another capacity of a claimed host": {old: claimed, change: map[string]any{"spec/capacity": map[string]any{"cpu": 2, "memory": "1Gi"}}},
		"a claim released":                   {old: claimed, change: map[string]any{"status/claimRef": nil}},
		"a higher fence":                     {old: claimed, change: map[string]any{"status/fence": 4}},
		"a lower fence":                      {old: claimed, change: map[string]any{"status/fence": 2}, want: "status.fence must not decrease"},
		"a forgotten fence":                  {old: claimed, change: map[string]any{"status/fence": nil}, want: "status.fence must not decrease"},
		"a forgotten status":                 {old: claimed, change: map[string]any{"status": nil}, want: "status.fence must not decrease"},
		"a first fence":                      {change: map[string]any{"status/fence": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			old := parse(t, validHost, tt.old)
			verdict(t, admit.Admit(t.Context(), old, nil), "")
			verdict(t, admit.Admit(t.Context(), parse(t, validHost, with(tt.old, tt.change)), old), tt.want)
		})
	}
}
