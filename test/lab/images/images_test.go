package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func unpack(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = content
	}
}

func TestArchiveNamesItsImageAndSumsItsLayer(t *testing.T) {
	archive, err := Archive("example.test/x:1", "arm64", "run", []byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, archive)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"example.test/x:1"}, manifest[0].RepoTags); diff != "" {
		t.Error(diff)
	}
	var config struct {
		Architecture string
		Config       struct{ Entrypoint []string }
		RootFS       struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(files[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	layer := files[manifest[0].Layers[0]]
	sum := sha256.Sum256(layer)
	if diff := cmp.Diff([]string{"sha256:" + hex.EncodeToString(sum[:])}, config.RootFS.DiffIDs); diff != "" {
		t.Error(diff)
	}
	if config.Architecture != "arm64" || config.Config.Entrypoint[0] != "/run" {
		t.Errorf("config is %+v", config)
	}
	if got := unpack(t, layer)["run"]; string(got) != "program" {
		t.Errorf("the layer holds %q", got)
	}
}

func TestPauseIsBuiltOnceAndStatic(t *testing.T) {
	cache := t.TempDir()
	first, err := Pause(t.Context(), cache, "example.test/pause:1", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Pause(t.Context(), cache, "example.test/pause:1", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(second)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("it was built twice")
	}
	archive, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	program := unpack(t, unpack(t, archive)["layer.tar"])["pause"]
	if bytes.Contains(program, []byte("ld-linux")) {
		t.Error("it names a dynamic linker, which the image does not hold")
	}
}
