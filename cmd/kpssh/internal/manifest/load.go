package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Objects are what was found in manifests. Kinds that kpssh has no use for are passed over.
type Objects struct {
	Profiles []v1beta1.SSHJoinProfile
	Classes  []v1beta1.SSHNodeClass
	Secrets  []corev1.Secret
	// Trust is the ConfigMap kpssh-trust, nil when none was given.
	Trust *corev1.ConfigMap
}

// Load reads manifests of files, of the *.yaml, *.yml and *.json files of folders, and of stdin ("-").
func Load(env *cli.Env, paths []string) (*Objects, error) {
	objects := &Objects{}
	for _, path := range paths {
		files, err := expand(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			data, err := env.Read(file)
			if err != nil {
				return nil, err
			}
			if err := objects.add(data); err != nil {
				return nil, fmt.Errorf("reading %s: %w", file, err)
			}
		}
	}
	return objects, objects.unique()
}

func expand(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
		found, err := filepath.Glob(filepath.Join(path, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%q holds no manifest", path)
	}
	sort.Strings(files)
	return files, nil
}

func (o *Objects) add(data []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		if err := o.addOne(doc); err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

func (o *Objects) addOne(doc []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	group, _, _ := strings.Cut(kind.APIVersion, "/")
	switch {
	case kind.Kind == "List" || group == apis.Group && strings.HasSuffix(kind.Kind, "List"):
		return o.addList(doc)
	case group == apis.Group:
		return o.addOurs(kind, doc)
	case kind.APIVersion == "v1" && kind.Kind == "Secret":
		return addTo(&o.Secrets, doc)
	case kind.APIVersion == "v1" && kind.Kind == "ConfigMap":
		return o.addTrust(doc)
	}
	return nil
}

func (o *Objects) addOurs(kind metav1.TypeMeta, doc []byte) error {
	if kind.APIVersion != v1beta1.GroupVersion.String() {
		return fmt.Errorf("%s of %q: only %s is known", kind.Kind, kind.APIVersion, v1beta1.GroupVersion)
	}
	switch kind.Kind {
	case "SSHJoinProfile":
		return addTo(&o.Profiles, doc)
	case "SSHNodeClass":
		return addTo(&o.Classes, doc)
	}
	return nil
}

func (o *Objects) addList(doc []byte) error {
	var list struct {
		Items []any `json:"items"`
	}
	if err := yaml.Unmarshal(doc, &list); err != nil {
		return err
	}
	for _, item := range list.Items {
		out, err := yaml.Marshal(item)
		if err != nil {
			return err
		}
		if err := o.addOne(out); err != nil {
			return err
		}
	}
	return nil
}

func (o *Objects) addTrust(doc []byte) error {
	var found []corev1.ConfigMap
	if err := addTo(&found, doc); err != nil {
		return err
	}
	if found[0].Name != TrustName {
		return nil
	}
	if o.Trust != nil {
		return fmt.Errorf("ConfigMap %q is given twice", TrustName)
	}
	o.Trust = &found[0]
	return nil
}

// addTo decodes strictly: a field that is not known would silently not be signed.
func addTo[T any](list *[]T, doc []byte) error {
	var v T
	if err := yaml.UnmarshalStrict(doc, &v); err != nil {
		return err
	}
	*list = append(*list, v)
	return nil
}

func (o *Objects) unique() error {
	seen := map[string]bool{}
	check := func(kind, name string) error {
		if name == "" {
			return fmt.Errorf("a %s has no metadata.name", kind)
		}
		if seen[kind+"/"+name] {
			return fmt.Errorf("%s %q is given twice", kind, name)
		}
		seen[kind+"/"+name] = true
		return nil
	}
	for i := range o.Profiles {
		if err := check("SSHJoinProfile", o.Profiles[i].Name); err != nil {
			return err
		}
	}
	for i := range o.Classes {
		if err := check("SSHNodeClass", o.Classes[i].Name); err != nil {
			return err
		}
	}
	return nil
}

// SecretKeys returns the keys of the Secret with a name, sorted, and whether it was given.
func (o *Objects) SecretKeys(name string) ([]string, bool) {
	for i := range o.Secrets {
		s := &o.Secrets[i]
		if s.Name != name {
			continue
		}
		var keys []string
		for k := range s.Data {
			keys = append(keys, k)
		}
		for k := range s.StringData {
			if _, both := s.Data[k]; !both {
				keys = append(keys, k)
			}
		}
		sort.Strings(keys)
		return keys, true
	}
	return nil, false
}

// ReadTrust returns the root chain and the allowlist of the manifest that Trust made.
func ReadTrust(text []byte) (chain [][]byte, allowlist []byte, err error) {
	var objects Objects
	if err := objects.add(text); err != nil {
		return nil, nil, err
	}
	if objects.Trust == nil {
		return nil, nil, fmt.Errorf("it holds no ConfigMap %q", TrustName)
	}
	chain, allowlist = TrustDocuments(objects.Trust)
	return chain, allowlist, nil
}

// TrustDocuments returns the root chain and the allowlist of a ConfigMap.
func TrustDocuments(cm *corev1.ConfigMap) (chain [][]byte, allowlist []byte) {
	for n := 1; ; n++ {
		root, ok := cm.Data[RootEntry(n)]
		if !ok {
			break
		}
		chain = append(chain, []byte(root))
	}
	return chain, []byte(cm.Data[AllowlistEntry])
}
