package operator

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// readTimeout bounds a read that comes from a cache as soon as that is filled.
	readTimeout    = 5 * time.Second
	allowlistEntry = "allowlist.json"
)

// rootEntry is how kpssh names the root documents.
func rootEntry() *regexp.Regexp { return regexp.MustCompile(`^root\.([1-9][0-9]{0,17})\.json$`) }

// configMapTrust hands out the signed documents of a ConfigMap. Others may change what is in it: dispatch believes
// nothing of it that is not signed.
type configMapTrust struct {
	reader client.Reader
	name   types.NamespacedName
	root   *regexp.Regexp
}

func newTrust(reader client.Reader, name types.NamespacedName) *configMapTrust {
	return &configMapTrust{reader: reader, name: name, root: rootEntry()}
}

// Documents implements dispatch.Trust.
func (t *configMapTrust) Documents() (map[int64][]byte, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	object := &corev1.ConfigMap{}
	if err := t.reader.Get(ctx, t.name, object); err != nil {
		return nil, nil, fmt.Errorf("reading ConfigMap %q: %w", t.name, err)
	}
	entries := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for name, text := range object.Data {
		entries[name] = []byte(text)
	}
	for name, bytes := range object.BinaryData {
		entries[name] = bytes
	}
	roots := map[int64][]byte{}
	for name, envelope := range entries {
		match := t.root.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		version, err := strconv.ParseInt(match[1], 10, 64)
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s of ConfigMap %q: %w", name, t.name, err)
		}
		roots[version] = envelope
	}
	return roots, entries[allowlistEntry], nil
}
