// Package images makes container images without a registry and without a container engine: a lab's hosts can pull
// nothing, and need little.
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
)

//go:embed pause.go.txt
var pauseSource []byte

// Pause is the path of a docker-archive with the image called ref: a static program that waits to be told to stop. It
// is the pause container of every sandbox and a workload that costs nothing.
func Pause(ctx context.Context, cacheDir, ref string, log cachedir.Logf) (string, error) {
	sum := sha256.Sum256(append([]byte(ref+"\n"), pauseSource...))
	key := fmt.Sprintf("images/pause-%s-%s", hex.EncodeToString(sum[:6]), runtime.GOARCH)
	dir, err := cachedir.Fill(ctx, cacheDir, key, log, func(ctx context.Context, dir string) (err error) {
		done := cachedir.Step(log, nil, "building the image %s", ref)
		defer func() { done(err) }()
		program, err := compile(ctx, dir)
		if err != nil {
			return err
		}
		archive, err := Archive(ref, runtime.GOARCH, "pause", program)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "image.tar"), archive, 0o644)
	})
	if err != nil {
		return "", fmt.Errorf("making the image %s: %w", ref, err)
	}
	return filepath.Join(dir, "image.tar"), nil
}

func compile(ctx context.Context, dir string) ([]byte, error) {
	source, binary := filepath.Join(dir, "pause.go"), filepath.Join(dir, "pause")
	if err := os.WriteFile(source, pauseSource, 0o644); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, source)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling: %w: %s", err, out)
	}
	return os.ReadFile(binary)
}

// Archive is a docker-archive of one image called ref, which holds and runs one static program.
func Archive(ref, arch, name string, program []byte) ([]byte, error) {
	layer, err := pack(file{name, 0o755, program})
	if err != nil {
		return nil, err
	}
	diff := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": arch, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + name}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(diff[:])}},
	})
	if err != nil {
		return nil, fmt.Errorf("describing image %s: %w", ref, err)
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{ref}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return nil, fmt.Errorf("describing image %s: %w", ref, err)
	}
	return pack(file{"manifest.json", 0o644, manifest}, file{"config.json", 0o644, config}, file{"layer.tar", 0o644, layer})
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func pack(files ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Format: tar.FormatUSTAR}); err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing: %w", err)
	}
	return b.Bytes(), nil
}
