//go:build e2e

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const ref = "registry.test/kpssh/karpenter-provider-ssh:v0.1.0"

// out is what build.sh made of this repository.
var out string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kpssh-image-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out = filepath.Join(dir, "image")
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if err := build(ctx, "../..", out); err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}

// build runs the script of a repository, which need not be this one.
func build(ctx context.Context, repo, dir string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(repo, "packaging", "image", "build.sh"), dir)
	cmd.Env = append(os.Environ(), "IMAGE="+ref, "VERSION=v0.1.0", "REVISION=0cf3a21", "SOURCE_DATE_EPOCH=1760000000")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the image: %w: %s", err, said)
	}
	return nil
}

func TestTheImageOfACopyInAnotherFolderIsTheSame(t *testing.T) {
	copied := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Mkdir(copied, 0o700); err != nil {
		t.Fatal(err)
	}
	// Without .git, with other times and with other modes than a clone has here.
	script := `umask 077; git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$1"; chmod -R go-rwx "$1"`
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script, "bash", copied)
	cmd.Dir = "../.."
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	again := filepath.Join(t.TempDir(), "image")
	if err := build(t.Context(), copied, again); err != nil {
		t.Fatal(err)
	}
	first := sums(t, out)
	if diff := cmp.Diff(first, sums(t, again)); diff != "" {
		t.Error(diff)
	}
	if len(first) < 10 {
		t.Errorf("there are only %d files: %v", len(first), first)
	}
}

func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%x", sha256.Sum256(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func archive(arch string) string {
	return filepath.Join(out, "karpenter-provider-ssh-linux-"+arch+".tar")
}

// program is the one that a container of the image runs.
func program(t *testing.T, arch string) []byte {
	t.Helper()
	img, err := tarball.ImageFromPath(archive(arch), nil)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, img, "karpenter-provider-ssh")
}

func read(t *testing.T, img v1.Image, name string) []byte {
	t.Helper()
	files := mutate.Extract(img)
	defer func() { _ = files.Close() }()
	for r := tar.NewReader(files); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("there is no %s", name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Name == name {
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return content
		}
	}
}

func TestTheProgramNeedsNothingElse(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		f, err := elf.NewFile(bytes.NewReader(program(t, arch)))
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != machine {
			t.Errorf("%s: it is for %v", arch, f.Machine)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s: it has a %v segment: it is not static", arch, p.Type)
			}
		}
	}
}

// What `go version -m` reads out of a program is the truth.
func TestTheSBOMListsWhatTheProgramWasBuiltFrom(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		info, err := buildinfo.Read(bytes.NewReader(program(t, arch)))
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(out, "karpenter-provider-ssh-linux-"+arch+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			Metadata struct {
				Component struct{ Name, Version string }
			}
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(content, &document); err != nil {
			t.Fatal(err)
		}
		if c := document.Metadata.Component; c.Name != info.Main.Path || c.Version != "v0.1.0" {
			t.Errorf("%s: it is of %+v", arch, c)
		}
		var got, want []string
		for _, c := range document.Components {
			got = append(got, c.Name)
		}
		for _, m := range info.Deps {
			want = append(want, m.Path)
		}
		want = append(want, "std", "golang.org/x/crypto/x509roots/fallback")
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", arch, diff)
		}
	}
}

func TestANodeRunsIt(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	l, err := lab.Start(ctx, lab.Options{Log: t.Logf, HostsOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := l.AddHost(ctx, lab.HostOptions{Name: "host-a", NoKubelet: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LoadImage(ctx, archive(runtime.GOARCH)); err != nil {
		t.Fatal(err)
	}
	on := func(command ...string) string {
		t.Helper()
		said, err := h.Exec(ctx, command...)
		if err != nil {
			t.Fatal(err)
		}
		return said
	}
	on("systemctl", "start", "containerd")
	on("ctr", "-n", "k8s.io", "containers", "create", ref, "made")
	var made struct {
		Spec struct {
			Process struct {
				Args []string
				User struct{ UID, GID int }
			}
		}
	}
	if err := json.Unmarshal([]byte(on("ctr", "-n", "k8s.io", "containers", "info", "made")), &made); err != nil {
		t.Fatal(err)
	}
	if p := made.Spec.Process; !slices.Equal(p.Args, []string{"/karpenter-provider-ssh"}) || p.User.UID != 65532 || p.User.GID != 65532 {
		t.Errorf("containerd would run %+v", p)
	}
	// It does start, on a file system that is read-only as the chart has it, and says what it needs.
	_, err = h.Exec(ctx, "ctr", "-n", "k8s.io", "run", "--rm", "--read-only", ref, "run", "/karpenter-provider-ssh")
	if err == nil || !strings.Contains(err.Error(), "karpenter-provider-ssh: error: finding the cluster") {
		t.Errorf("it says %v", err)
	}
}
