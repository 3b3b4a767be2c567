package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// sbomType is what registries list an SBOM as.
const sbomType types.MediaType = "application/vnd.cyclonedx+json"

// push writes the index of folder from to a registry as image, and has each platform's SBOM refer to it. It returns the
// name by digest. Doing it again changes nothing.
func push(ctx context.Context, from, image string) (string, error) {
	tag, err := parseTag(image)
	if err != nil {
		return "", err
	}
	index, err := readIndex(filepath.Join(from, layoutDir))
	if err != nil {
		return "", fmt.Errorf("reading the image: %w: run `make image` first", err)
	}
	opts := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(tag, index, opts...); err != nil {
		return "", fmt.Errorf("pushing %s: %w", tag, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return "", fmt.Errorf("reading the index: %w", err)
	}
	for _, m := range manifest.Manifests {
		if err := pushSBOM(tag.Repository, m, filepath.Join(from, fileName(m.Platform.Architecture, ".cdx.json")), opts); err != nil {
			return "", err
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("summing the index: %w", err)
	}
	return tag.Digest(digest.String()).String(), nil
}

// readIndex is the one index of a layout.
func readIndex(dir string) (v1.ImageIndex, error) {
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, errors.New("the layout does not hold one index")
	}
	return all.ImageIndex(manifest.Manifests[0].Digest)
}

// pushSBOM writes a manifest that refers to the image of one platform: the referrers of OCI 1.1, which `oras discover`,
// trivy and registries list. Where a registry does not, the library keeps their list under a tag.
func pushSBOM(repository name.Repository, of v1.Descriptor, path string, opts []remote.Option) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the SBOM: %w", err)
	}
	sbom := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), sbomType)
	sbom, err = mutate.Append(sbom, mutate.Addendum{Layer: static.NewLayer(content, sbomType)})
	if err != nil {
		return fmt.Errorf("wrapping the SBOM: %w", err)
	}
	sbom = mutate.Subject(sbom, of).(v1.Image)
	digest, err := sbom.Digest()
	if err != nil {
		return fmt.Errorf("summing the SBOM: %w", err)
	}
	if err := remote.Write(repository.Digest(digest.String()), sbom, opts...); err != nil {
		return fmt.Errorf("pushing the SBOM of %s: %w", of.Digest, err)
	}
	return nil
}
