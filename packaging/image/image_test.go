package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const image = "registry.test/kpssh/karpenter-provider-ssh:v1.2.3"

// contentFor stands for what build.sh compiles; it is no ELF file, because nothing here looks into it.
func contentFor(arch string) []byte { return []byte("the program of " + arch) }

// example is a build of two small programs, with the SBOMs that a release has beside them.
func example(t *testing.T) build {
	t.Helper()
	b := build{
		programs: t.TempDir(), out: filepath.Join(t.TempDir(), "image"), image: image,
		release: release{version: "v1.2.3", revision: "0cf3a21", created: time.Unix(1760000000, 0).UTC()},
	}
	for _, arch := range architectures {
		for suffix, content := range map[string][]byte{
			"":          contentFor(arch),
			".cdx.json": []byte(`{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": [{"name": "x"}]}`),
		} {
			if err := os.WriteFile(filepath.Join(b.programs, fileName(arch, suffix)), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b
}

func built(t *testing.T) (b build, digest string) {
	t.Helper()
	b = example(t)
	digest, err := b.run()
	if err != nil {
		t.Fatal(err)
	}
	return b, digest
}

// entries is what one sees in the image's file system.
func entries(t *testing.T, img v1.Image) (map[string]tar.Header, map[string][]byte) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	headers, contents := map[string]tar.Header{}, map[string][]byte{}
	for _, layer := range layers {
		open, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(open); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if contents[header.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
			headers[header.Name] = *header
		}
	}
	return headers, contents
}

func TestTheIndexHasBothPlatformsAndNothingElse(t *testing.T) {
	b, digest := built(t)
	index, err := readIndex(filepath.Join(b.out, layoutDir))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if sum, err := index.Digest(); err != nil || sum.String() != digest {
		t.Errorf("the layout's index is %s, %v; want %s", sum, err, digest)
	}
	if said, err := os.ReadFile(filepath.Join(b.out, "digest")); err != nil || string(said) != digest+"\n" {
		t.Errorf("digest says %q, %v", said, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Annotations["org.opencontainers.image.version"] != "v1.2.3" {
		t.Errorf("annotations: %v", manifest.Annotations)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms); diff != "" {
		t.Fatal(diff)
	}
	for i, arch := range architectures {
		img, err := index.Image(manifest.Manifests[i].Digest)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(arch, func(t *testing.T) { checkImage(t, img, arch) })
	}
}

func checkImage(t *testing.T, img v1.Image, arch string) {
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != arch || config.OS != "linux" {
		t.Errorf("it is for %s/%s", config.OS, config.Architecture)
	}
	labels := config.Config.Labels
	config.Config.Labels = nil
	want := v1.Config{Entrypoint: []string{"/karpenter-provider-ssh"}, User: "65532:65532", WorkingDir: "/"}
	if diff := cmp.Diff(want, config.Config); diff != "" {
		t.Error(diff)
	}
	wantLabels := map[string]string{
		"org.opencontainers.image.title":       "karpenter-provider-ssh",
		"org.opencontainers.image.description": "A Karpenter provider that claims hosts from a pool that is reached over SSH",
		"org.opencontainers.image.source":      "https://github.com/kpssh/karpenter-provider-ssh",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     "v1.2.3",
		"org.opencontainers.image.revision":    "0cf3a21",
		"org.opencontainers.image.created":     "2025-10-09T08:53:20Z",
	}
	if diff := cmp.Diff(wantLabels, labels); diff != "" {
		t.Error(diff)
	}
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantLabels, manifest.Annotations); diff != "" {
		t.Error(diff)
	}

	headers, contents := entries(t, img)
	modes := map[string]int64{
		"etc/": 0o755, "etc/passwd": 0o644, "etc/ssl/": 0o755, "etc/ssl/certs/": 0o755, "etc/ssl/certs/ca-certificates.crt": 0o644,
		"karpenter-provider-ssh": 0o755,
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(modes)), slices.Sorted(maps.Keys(headers))); diff != "" {
		t.Error(diff)
	}
	for name, mode := range modes {
		h := headers[name]
		if h.Mode != mode || h.Uid != 0 || h.Gid != 0 || (h.Typeflag == tar.TypeDir) != strings.HasSuffix(name, "/") {
			t.Errorf("%s has mode %o, owner %d:%d and type %q", name, h.Mode, h.Uid, h.Gid, h.Typeflag)
		}
	}
	if got := contents["karpenter-provider-ssh"]; !bytes.Equal(got, contentFor(arch)) {
		t.Errorf("the program is %q", got)
	}
	if got := string(contents["etc/passwd"]); got != "nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n" {
		t.Errorf("/etc/passwd is %q", got)
	}
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(contents["etc/ssl/certs/ca-certificates.crt"]) {
		t.Error("no certificate can be read")
	}
	if n := bytes.Count(contents["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN CERTIFICATE")); n < 100 {
		t.Errorf("there are %d certificates", n)
	}
}

func TestTheSameProgramsMakeTheSameBytes(t *testing.T) {
	first, digest := built(t)
	again, digestAgain := built(t)
	if digest != digestAgain {
		t.Errorf("%s and %s", digest, digestAgain)
	}
	one, two := tree(t, first.out), tree(t, again.out)
	// Two archives, two SBOMs, the digest; of the layout: oci-layout, index.json, the index, and of each image a manifest, a
	// configuration and its program; the layer below that is shared.
	if len(one) != 5+3+2*3+1 {
		t.Errorf("there are %d files: %v", len(one), slices.Sorted(maps.Keys(one)))
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(one)), slices.Sorted(maps.Keys(two))); diff != "" {
		t.Error(diff)
	}
	for path, content := range one {
		if !bytes.Equal(content, two[path]) {
			t.Errorf("%s differs", path)
		}
	}

	other := example(t)
	other.version = "v1.2.4"
	if digestOther, err := other.run(); err != nil || digestOther == digest {
		t.Errorf("another release has digest %s, %v", digestOther, err)
	}
}

func TestALaterBuildLeavesNothingOfTheLast(t *testing.T) {
	b, _ := built(t)
	want := len(tree(t, b.out))
	b.version = "v1.2.4"
	if _, err := b.run(); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, b.out); len(got) != want {
		t.Errorf("there are %d files, want %d: %v", len(got), want, slices.Sorted(maps.Keys(got)))
	}
}

func tree(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path], err = os.ReadFile(filepath.Join(dir, path))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A kubelet goes by what the chart says, and an engine without one by what the image says.
func TestTheChartRunsItAsTheSameUser(t *testing.T) {
	deployment, err := os.ReadFile("../../charts/karpenter-provider-ssh/templates/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	uid, gid, _ := strings.Cut(user, ":")
	for _, want := range []string{"runAsUser: " + uid + "\n", "runAsGroup: " + gid + "\n"} {
		if !bytes.Contains(deployment, []byte(want)) {
			t.Errorf("the chart does not say %q", want)
		}
	}
	for _, other := range []string{"command:", "workingDir:"} {
		if bytes.Contains(deployment, []byte(other)) {
			t.Errorf("the chart has %s of its own, where the image's fits", other)
		}
	}
}

func TestArchivesCarryTheNameAndTheSameFiles(t *testing.T) {
	b, _ := built(t)
	for _, arch := range architectures {
		path := filepath.Join(b.out, fileName(arch, ".tar"))
		img, err := tarball.ImageFromPath(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkArchive(t, img, arch)
		manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) })
		if err != nil {
			t.Fatal(err)
		}
		if len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{image}) {
			t.Errorf("%s holds %+v", path, manifest)
		}
	}
}

func checkArchive(t *testing.T, img v1.Image, arch string) {
	t.Helper()
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	if _, contents := entries(t, img); !bytes.Equal(contents["karpenter-provider-ssh"], contentFor(arch)) {
		t.Errorf("the archive for %s has another program", arch)
	}
}

func TestTheSBOMHasWhatTheImageHasBesideTheProgram(t *testing.T) {
	b, _ := built(t)
	for _, arch := range architectures {
		content, err := os.ReadFile(filepath.Join(b.out, fileName(arch, ".cdx.json")))
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			Components []struct{ Name, Version, Purl string }
		}
		if err := json.Unmarshal(content, &document); err != nil {
			t.Fatal(err)
		}
		if len(document.Components) != 2 || document.Components[0].Name != "x" {
			t.Fatalf("components: %+v", document.Components)
		}
		roots := document.Components[1]
		if roots.Name != rootsModule || !strings.HasPrefix(roots.Version, "v") || roots.Purl != "pkg:golang/"+rootsModule+"@"+roots.Version {
			t.Errorf("certificate authorities are %+v", roots)
		}
	}
}

func TestWhatIsNotARelease(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*build)
		want   string
	}{
		"no version":              {func(b *build) { b.version = "" }, "-version"},
		"no time":                 {func(b *build) { b.created = time.Unix(0, 0) }, "-time"},
		"a name without registry": {func(b *build) { b.image = "karpenter-provider-ssh:v1" }, "REGISTRY/NAME:TAG"},
		"a name without tag":      {func(b *build) { b.image = "registry.test/karpenter-provider-ssh" }, "REGISTRY/NAME:TAG"},
		"no program":              {func(b *build) { b.programs = t.TempDir() }, "reading the program"},
		"an SBOM of another kind": {func(b *build) {
			for _, arch := range architectures {
				if err := os.WriteFile(filepath.Join(b.programs, fileName(arch, ".cdx.json")), []byte(`{"spdxVersion": "SPDX-2.3"}`), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}, "no CycloneDX"},
	} {
		t.Run(name, func(t *testing.T) {
			b := example(t)
			c.change(&b)
			if _, err := b.run(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
