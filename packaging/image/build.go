package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// architectures are the platforms of the index, in its order.
var architectures = []string{"amd64", "arm64"}

// build makes an image of programs, and writes it in all its forms.
type build struct {
	// programs is the folder of the programs and their SBOMs, out that of what is made of them.
	programs, out string
	// image is the name and tag that archives carry.
	image string
	release
}

// run returns the index's digest.
func (b build) run() (string, error) {
	if b.version == "" || b.created.Unix() <= 0 {
		return "", errors.New("-version and -time must say which release this is")
	}
	tag, err := parseTag(b.image)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return "", fmt.Errorf("making the folder: %w", err)
	}
	images := map[string]v1.Image{}
	for _, arch := range architectures {
		if images[arch], err = b.platform(arch, tag); err != nil {
			return "", err
		}
	}
	index := newIndex(images, b.release)
	dir := filepath.Join(b.out, layoutDir)
	if err := os.RemoveAll(dir); err != nil { // it would keep the blobs of another release
		return "", fmt.Errorf("removing the last OCI layout: %w", err)
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return "", fmt.Errorf("writing the OCI layout: %w", err)
	}
	called := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag.TagStr()})
	if err := path.AppendIndex(index, called); err != nil {
		return "", fmt.Errorf("writing the OCI layout: %w", err)
	}
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("summing the index: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.out, "digest"), []byte(digest.String()+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("writing the digest: %w", err)
	}
	return digest.String(), nil
}

// platform makes and writes what is of one platform alone.
func (b build) platform(arch string, tag name.Tag) (v1.Image, error) {
	binary, err := os.ReadFile(filepath.Join(b.programs, fileName(arch, "")))
	if err != nil {
		return nil, fmt.Errorf("reading the program: %w", err)
	}
	ofProgram, err := os.ReadFile(filepath.Join(b.programs, fileName(arch, ".cdx.json")))
	if err != nil {
		return nil, fmt.Errorf("reading the program's SBOM: %w", err)
	}
	sbom, err := imageSBOM(ofProgram)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(b.out, fileName(arch, ".cdx.json")), sbom, 0o644); err != nil {
		return nil, fmt.Errorf("writing the SBOM: %w", err)
	}
	image, err := newImage(arch, binary, b.release)
	if err != nil {
		return nil, err
	}
	// Of Docker's form, which every engine reads; the price is that an engine sums it anew, so go by tag.
	if err := tarball.WriteToFile(filepath.Join(b.out, fileName(arch, ".tar")), tag, image); err != nil {
		return nil, fmt.Errorf("writing the archive for %s: %w", arch, err)
	}
	return image, nil
}

// layoutDir is the folder of the OCI layout.
const layoutDir = "oci"

func fileName(arch, suffix string) string { return program + "-linux-" + arch + suffix }

// parseTag wants registry and tag spelled out: one that is made up would be found out after a push.
func parseTag(image string) (name.Tag, error) {
	tag, err := name.NewTag(image, name.StrictValidation)
	if err != nil {
		return name.Tag{}, fmt.Errorf("reading -image, which is REGISTRY/NAME:TAG: %w", err)
	}
	return tag, nil
}
