package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func TestPushedIsWhatWasBuilt(t *testing.T) {
	for kind, referrers := range map[string]bool{
		"to a registry that lists referrers":         true,
		"to a registry from before it could do that": false,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv("DOCKER_CONFIG", t.TempDir()) // no login of the machine's
			server := httptest.NewServer(registry.New(registry.WithReferrersSupport(referrers), registry.Logger(log.New(io.Discard, "", 0))))
			t.Cleanup(server.Close)
			b, digest := built(t)
			to := strings.TrimPrefix(server.URL, "http://") + "/kpssh/controller:v1.2.3"

			for range 2 { // the second time it is there already
				var stdout, stderr bytes.Buffer
				if code := run(t.Context(), []string{"push", "-from", b.out, "-image", to}, &stdout, &stderr); code != 0 {
					t.Fatalf("exit code %d: %s", code, stderr.String())
				}
				if want := strings.TrimSuffix(to, ":v1.2.3") + "@" + digest + "\n"; stdout.String() != want {
					t.Errorf("it says %q, want %q", stdout.String(), want)
				}
			}

			tag, err := name.NewTag(to)
			if err != nil {
				t.Fatal(err)
			}
			index, err := remote.Index(tag)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(index); err != nil {
				t.Error(err)
			}
			if sum, err := index.Digest(); err != nil || sum.String() != digest {
				t.Errorf("the registry has %s, %v; want %s", sum, err, digest)
			}
			manifest, err := index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range manifest.Manifests {
				checkSBOM(t, b, tag.Digest(m.Digest.String()), m.Platform.Architecture)
			}
		})
	}
}

// checkSBOM finds the SBOM of an image the way that scanners do.
func checkSBOM(t *testing.T, b build, of name.Digest, arch string) {
	t.Helper()
	referrers, err := remote.Referrers(of)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := referrers.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].ArtifactType != "application/vnd.cyclonedx+json" {
		t.Fatalf("%s is referred to by %+v", arch, manifest.Manifests)
	}
	sbom, err := remote.Image(of.Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := sbom.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	open, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(open)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(filepath.Join(b.out, fileName(arch, ".cdx.json"))); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the SBOM of %s is another: %v", arch, err)
	}
}

func TestRunSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no verb":                {nil, exitUsage, "Usage:"},
		"an unknown verb":        {[]string{"fly"}, exitUsage, "Usage:"},
		"a flag of another verb": {[]string{"push", "-out", "x"}, exitUsage, "-out"},
		"help":                   {[]string{"build", "-h"}, 0, "Usage:"},
		"nothing was built":      {[]string{"push", "-from", t.TempDir(), "-image", image}, exitFailure, "make image"},
		"no name":                {[]string{"push", "-from", t.TempDir()}, exitFailure, "REGISTRY/NAME:TAG"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), c.args, &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
				t.Errorf("exit code %d, want %d; %q, want %q", code, c.code, stderr.String(), c.want)
			}
		})
	}
}
