package profile

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The standard variables.
const (
	EnvClusterEndpoint = "KPSSH_CLUSTER_ENDPOINT"
	EnvClusterCA       = "KPSSH_CLUSTER_CA_B64"
	EnvBootstrapToken  = "KPSSH_BOOTSTRAP_TOKEN"
	EnvNodeName        = "KPSSH_NODE_NAME"
	EnvProviderID      = "KPSSH_PROVIDER_ID"
	EnvHostAddress     = "KPSSH_HOST_ADDRESS"
	EnvNodeAddress     = "KPSSH_NODE_ADDRESS"
	EnvNodeLabels      = "KPSSH_NODE_LABELS"
	EnvTaints          = "KPSSH_TAINTS"

	// PrefixVar and PrefixSecret stand before the keys of a class's vars and of its join Secret.
	PrefixVar    = "KPSSH_VAR_"
	PrefixSecret = "KPSSH_SECRET_"
)

// MaxSecrets is how many secrets one order may carry, the bootstrap token among them.
const MaxSecrets = 32

const (
	maxName  = 128
	maxValue = 64 << 10
)

// UnregisteredTaint is what a node must register with, so that nothing is scheduled there before
// karpenter has given it its labels and taints.
const UnregisteredTaint = "karpenter.sh/unregistered:NoExecute"

// Taint of a node.
type Taint struct{ Key, Value, Effect string }

// Input is what a phase could be told. What a phase may not know is left out by Environment.
type Input struct {
	Phase Phase
	// ClusterEndpoint is the https URL of the API server.
	ClusterEndpoint string
	// ClusterCA is the PEM bundle that its certificate is checked with.
	ClusterCA      []byte
	BootstrapToken string
	NodeName       string
	// ProviderID is empty when the node's own is adopted.
	ProviderID  string
	HostAddress string
	// NodeAddress is HostAddress when empty.
	NodeAddress string
	// Labels of the NodeClaim; those that a kubelet may not set itself are left out.
	Labels map[string]string
	// Taints of the NodeClaim, its startup taints among them.
	Taints []Taint
	// Vars of the node class.
	Vars map[string]string
	// Secrets are the data of the class's join Secret.
	Secrets map[string][]byte
}

// Environment makes the variables of a phase: parameters, and apart from them the secrets. Leave and
// uninstall get the two addresses and nothing else. The error never holds a value.
func Environment(in Input) (params, secrets map[string]string, err error) {
	// The zone of a link-local address names an interface of ours, which means nothing on the host.
	in.HostAddress, _, _ = strings.Cut(in.HostAddress, "%")
	params = map[string]string{EnvHostAddress: in.HostAddress, EnvNodeAddress: in.NodeAddress}
	if in.NodeAddress == "" {
		params[EnvNodeAddress] = in.HostAddress
	}
	secrets = map[string]string{}
	switch in.Phase {
	case Leave, Uninstall:
		return params, secrets, checkValues(params)
	case Install, Join:
	default:
		return nil, nil, fmt.Errorf("phase %.40q is not known", in.Phase)
	}
	vars, err := names(PrefixVar, in.Vars)
	if err != nil {
		return nil, nil, fmt.Errorf("vars: %w", err)
	}
	joinSecrets, err := secretNames(in.Secrets)
	if err != nil {
		return nil, nil, fmt.Errorf("join secret: %w", err)
	}
	taints, err := taintList(in.Taints)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(params, vars)
	maps.Copy(secrets, joinSecrets)
	params[EnvClusterEndpoint] = in.ClusterEndpoint
	params[EnvClusterCA] = base64.StdEncoding.EncodeToString(in.ClusterCA)
	params[EnvNodeName] = in.NodeName
	params[EnvProviderID] = in.ProviderID
	params[EnvNodeLabels] = labelList(in.Labels)
	params[EnvTaints] = taints
	if in.Phase == Join {
		secrets[EnvBootstrapToken] = in.BootstrapToken
	}
	if err := checkValues(params); err != nil {
		return nil, nil, err
	}
	return params, secrets, checkValues(secrets)
}

// CheckVars says what is wrong with a class's vars, before there is a node.
func CheckVars(vars map[string]string) error {
	named, err := names(PrefixVar, vars)
	if err != nil {
		return err
	}
	return checkValues(named)
}

// CheckSecrets says what is wrong with the data of a class's join Secret, before there is a node.
func CheckSecrets(data map[string][]byte) error {
	named, err := secretNames(data)
	if err != nil {
		return err
	}
	return checkValues(named)
}

// secretNames makes variables of a Secret's data. Line ends at the end of a value go, as they come
// from an editor or from echo; a value of several lines must be encoded, as variables cannot hold it.
func secretNames(data map[string][]byte) (map[string]string, error) {
	if len(data) > MaxSecrets-1 {
		return nil, fmt.Errorf("%d keys, at most %d", len(data), MaxSecrets-1)
	}
	values := make(map[string]string, len(data))
	for key, value := range data {
		values[key] = strings.TrimRight(string(value), "\r\n")
	}
	return names(PrefixSecret, values)
}

// names gives keys their variables' names: upper case, "-" and "." as "_".
func names(prefix string, values map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(values))
	from := make(map[string]string, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		name := prefix + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(key))
		if !isName(name, prefix) {
			return nil, fmt.Errorf("key %.80q does not make the name of a variable", key)
		}
		if other, taken := from[name]; taken {
			return nil, fmt.Errorf("keys %q and %q both make %s", other, key, name)
		}
		from[name] = key
		out[name] = values[key]
	}
	return out, nil
}

func isName(name, prefix string) bool {
	return len(name) > len(prefix) && len(name) <= maxName &&
		strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}

func checkValues(values map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch value := values[name]; {
		case len(value) > maxValue:
			return fmt.Errorf("%s has %d bytes, at most %d", name, len(value), maxValue)
		case !utf8.ValidString(value):
			return fmt.Errorf("%s is not UTF-8: encode it, for example as base64", name)
		case strings.ContainsFunc(value, invisible):
			return fmt.Errorf("%s holds line ends or other invisible characters: encode it, for example as base64", name)
		}
	}
	return nil
}

func invisible(r rune) bool { return unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) }

func taintList(taints []Taint) (string, error) {
	out := []string{UnregisteredTaint}
	for _, t := range taints {
		if !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, t.Effect) {
			return "", fmt.Errorf("taint %.80q has the effect %.40q", t.Key, t.Effect)
		}
		item := t.Key + ":" + t.Effect
		if t.Value != "" {
			item = t.Key + "=" + t.Value + ":" + t.Effect
		}
		// A taint is told from another by key and effect.
		known := func(other string) bool {
			key, _, _ := strings.Cut(other, ":")
			key, _, _ = strings.Cut(key, "=")
			return key == t.Key && strings.HasSuffix(other, ":"+t.Effect)
		}
		if !slices.ContainsFunc(out, known) {
			out = append(out, item)
		}
	}
	return strings.Join(out, ","), nil
}

func labelList(labels map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if kubeletMaySet(key) {
			out = append(out, key+"="+labels[key])
		}
	}
	return strings.Join(out, ",")
}

// kubeletMaySet follows what kubelet itself and the API server's NodeRestriction let a node say of
// itself: a kubelet that is told any other label in Kubernetes' own namespaces does not start. The
// marks that karpenter sets once it has seen the node are not the node's to set either.
func kubeletMaySet(key string) bool {
	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch",
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region":
		return true
	case "karpenter.sh/registered", "karpenter.sh/initialized":
		return false
	}
	namespace, _, found := strings.Cut(key, "/")
	if !found {
		return true
	}
	for _, own := range []string{"kubelet.kubernetes.io", "node.kubernetes.io"} {
		if namespace == own || strings.HasSuffix(namespace, "."+own) {
			return true
		}
	}
	for _, reserved := range []string{"kubernetes.io", "k8s.io"} {
		if namespace == reserved || strings.HasSuffix(namespace, "."+reserved) {
			return false
		}
	}
	return true
}
