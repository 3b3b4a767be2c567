//go:build e2e

package packages

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
)

// Two releases. Their times lie in the past: no host believes a clock that is behind its shim's.
var older, newer = release{version: "v0.1.0", time: 1760000000}, release{version: "v0.2.0-rc.1", time: 1760100000}

// release is a set of packages.
type release struct {
	version string
	time    int64
	dir     string
}

func (r release) deb(arch string) string {
	return filepath.Join(r.dir, fmt.Sprintf("kpssh-shim_%s-1_%s.deb", r.packageVersion(), arch))
}

func (r release) rpm(arch string) string {
	return filepath.Join(r.dir, fmt.Sprintf("kpssh-shim-%s-1.%s.rpm", r.packageVersion(), arch))
}

// packageVersion is how dpkg and rpm are told the version.
func (r release) packageVersion() string {
	return map[string]string{"v0.1.0": "0.1.0", "v0.2.0-rc.1": "0.2.0~rc.1"}[r.version]
}

// build runs the script of a repository, which need not be this one.
func (r release) build(ctx context.Context, repo, dir string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(repo, "packaging", "build.sh"), dir)
	cmd.Env = append(os.Environ(), "VERSION="+r.version, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.time))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the packages of %s: %w: %s", r.version, err, out)
	}
	return nil
}

// progress is for whoever waits: the first run on a machine takes minutes.
func progress(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kpssh-packages-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, r := range []*release{&older, &newer} {
		r.dir = filepath.Join(dir, r.version)
		done := cachedir.Step(progress, nil, "building the packages of %s", r.version)
		err := r.build(context.Background(), "../..", r.dir)
		done(err)
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return m.Run()
}

// within is a context for one test, which also its clean-up may use.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// must fails the test at once.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
