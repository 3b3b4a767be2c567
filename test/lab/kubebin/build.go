package kubebin

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
)

//go:embed multicall.go.txt
var multicallSource []byte

// packagesToCompile is about how many packages a cold build compiles: enough for an honest progress line.
const packagesToCompile = 2980

var stagingReplace = regexp.MustCompile(`(?m)^\s*(k8s\.io/[a-z0-9-]+) => \./staging/`)

// build compiles the multi-call binary from the module proxy into dir and names it after each component.
func (f Finder) build(ctx context.Context, dir string) error {
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o755); err != nil {
		return err
	}
	gomod, err := f.moduleFile(ctx, source)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(source, "go.mod"), gomod, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(source, "main.go"), multicallSource, 0o644); err != nil {
		return err
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(f.Version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	const at = "k8s.io/component-base/version."
	flags := fmt.Sprintf("-s -w -X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s -X %[1]sgitTreeState=clean",
		at, f.Version, major, minor)
	err = f.goBuild(ctx, source, "building Kubernetes "+f.Version+" and etcd from source: once a machine, 5 to 20 minutes",
		"-ldflags", flags, "-o", filepath.Join(dir, "kubernetes"), ".")
	if err != nil {
		return err
	}
	for _, name := range append(Components(), "etcd") {
		if err := os.Symlink("kubernetes", filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return os.RemoveAll(source)
}

// moduleFile writes a go.mod that replaces Kubernetes' staging directories with the published modules of the same
// release: its own go.mod points into its own tree, which a module outside cannot use.
func (f Finder) moduleFile(ctx context.Context, dir string) ([]byte, error) {
	out, err := f.goCommand(ctx, dir, "mod", "download", "-json", "k8s.io/kubernetes@"+f.Version).Output()
	if err != nil {
		return nil, fmt.Errorf("downloading the source of Kubernetes: %w: %s", err, out)
	}
	var module struct{ GoMod string }
	if err := json.Unmarshal(out, &module); err != nil {
		return nil, fmt.Errorf("downloading the source of Kubernetes: %w", err)
	}
	theirs, err := os.ReadFile(module.GoMod)
	if err != nil {
		return nil, err
	}
	return renderModule(theirs, f.Version)
}

func renderModule(kubernetesGoMod []byte, version string) ([]byte, error) {
	staged := stagingReplace.FindAllSubmatch(kubernetesGoMod, -1)
	if len(staged) == 0 {
		return nil, fmt.Errorf("reading Kubernetes' go.mod: no staging module in it")
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "module kpssh.invalid/kubernetes\n\ngo 1.25.0\n\ngodebug default=go1.25\n\n")
	fmt.Fprintf(&b, "require (\n\tk8s.io/kubernetes %s\n\tgo.etcd.io/etcd/server/v3 %s\n)\n\nreplace (\n", version, etcdVersion)
	for _, m := range staged {
		fmt.Fprintf(&b, "\t%s => %s %s\n", m[1], m[1], stagingVersion)
	}
	b.WriteString(")\n")
	return b.Bytes(), nil
}

// goBuild runs "go build" in dir, telling how many packages it has compiled.
func (f Finder) goBuild(ctx context.Context, dir, what string, args ...string) (err error) {
	var compiled atomic.Int64
	done := cachedir.Step(f.Log, func() string {
		return fmt.Sprintf("%d of about %d packages", compiled.Load(), packagesToCompile)
	}, "%s", what)
	defer func() { done(err) }()

	cmd := f.goCommand(ctx, dir, append([]string{"build", "-v", "-trimpath", "-buildvcs=false"}, args...)...)
	stderr, err := cmd.StderrPipe() // "go build -v" prints one line for each package here, and its complaints
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the Go toolchain: %w", err)
	}
	last := tail(stderr, &compiled)
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil { // what it printed last says nothing about why it ended
			return fmt.Errorf("building in %s: %w", dir, ctx.Err())
		}
		return fmt.Errorf("building in %s: %w: %s", dir, err, last)
	}
	return nil
}

// tail counts the lines of r and keeps the end of them.
func tail(r io.Reader, lines *atomic.Int64) string {
	var last []string
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		lines.Add(1)
		if last = append(last, scanner.Text()); len(last) > 20 {
			last = last[1:]
		}
	}
	return strings.Join(last, "\n")
}

// goCommand runs the Go toolchain apart from the module and the workspace of whoever calls.
func (f Finder) goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cachedir.KillTogether(cmd)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+f.Arch, "GOFLAGS=-mod=mod", "GOWORK=off",
		"GOTMPDIR="+dir) // a build that is killed leaves hundreds of megabytes there: they go with the fill
	return cmd
}
