package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	program = "karpenter-provider-ssh"
	// user is nonroot of distroless images, by number, so that a kubelet sees that it is not root. The chart asks for it too.
	user   = "65532:65532"
	passwd = "nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"
)

// release is what an image says of itself.
type release struct {
	version, revision string
	created           time.Time
}

// labels are those of the OCI image specification, annotations.md.
func (r release) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       program,
		"org.opencontainers.image.description": "A Karpenter provider that claims hosts from a pool that is reached over SSH",
		"org.opencontainers.image.source":      "https://github.com/kpssh/karpenter-provider-ssh",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.created":     r.created.Format(time.RFC3339),
	}
	if r.revision != "" {
		labels["org.opencontainers.image.revision"] = r.revision
	}
	return labels
}

// newImage is the image of one platform: one layer that all platforms and releases share, and one with the program.
func newImage(arch string, binary []byte, r release) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(image, &v1.ConfigFile{
		OS: "linux", Architecture: arch,
		Created: v1.Time{Time: r.created},
		Config: v1.Config{
			Entrypoint: []string{"/" + program},
			User:       user,
			WorkingDir: "/",
			Labels:     r.labels(),
		},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, fmt.Errorf("describing the image of %s: %w", arch, err)
	}
	roots, err := certificates()
	if err != nil {
		return nil, err
	}
	for _, content := range []struct {
		comment string
		files   []file
	}{
		{"users and certificate authorities", []file{
			{"etc/", 0o755, nil},
			{"etc/passwd", 0o644, []byte(passwd)},
			{"etc/ssl/", 0o755, nil},
			{"etc/ssl/certs/", 0o755, nil},
			{"etc/ssl/certs/ca-certificates.crt", 0o644, roots},
		}},
		{program, []file{{program, 0o755, binary}}},
	} {
		layer, err := newLayer(content.files)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:     layer,
			MediaType: types.OCILayer,
			History:   v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "packaging/image", Comment: content.comment},
		})
		if err != nil {
			return nil, fmt.Errorf("adding a layer to the image of %s: %w", arch, err)
		}
	}
	return mutate.Annotations(image, r.labels()).(v1.Image), nil
}

// newIndex puts the images of all platforms under one name.
func newIndex(images map[string]v1.Image, r release) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range architectures {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        images[arch],
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return mutate.Annotations(index, r.labels()).(v1.ImageIndex)
}

// file of a layer; a directory has a final slash. All are root's, and of the year 1970.
type file struct {
	name    string
	mode    int64
	content []byte
}

func newLayer(files []file) (v1.Layer, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, f := range files {
		header := tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(&header); err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing: %w", err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open,
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("compressing a layer: %w", err)
	}
	return layer, nil
}
