//go:build e2e

package threats

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// builtVersion is what the binaries of these tests say of themselves.
const builtVersion = "v1.4.0"

// binaries are the programs as they ship, built once.
var binaries struct {
	dir  string
	shim string
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("these tests give the shim mount namespaces of its own, and so need root")
		return 1
	}
	dir, err := os.MkdirTemp("", "kpssh-threats-*")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binaries.dir, binaries.shim = dir, filepath.Join(dir, "kpssh-shim")
	if err := buildShim(binaries.shim); err != nil {
		fmt.Println(err)
		return 1
	}
	code := m.Run()
	for _, f := range closers {
		if err := f(); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	return code
}

// closers are called when all tests have run, for what several of them share.
var closers []func() error

const linkerFlags = "-s -w -X main.version=" + builtVersion

// buildShim builds the shim as the Makefile does.
func buildShim(to string) error {
	return goBuild([]string{"CGO_ENABLED=0"}, "-trimpath", "-ldflags", linkerFlags, "-o", to, "./cmd/kpssh-shim")
}

func goBuild(env []string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build"}, args...)...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", args[len(args)-1], err, out)
	}
	return nil
}

var builtOnce sync.Map // package → func() error

// built builds another program of the project, as the Makefile does, when the first test asks for it, and returns its
// path.
func built(t testing.TB, pkg string) string {
	t.Helper()
	to := filepath.Join(binaries.dir, filepath.Base(pkg))
	once, _ := builtOnce.LoadOrStore(pkg, sync.OnceValue(func() error {
		return goBuild(nil, "-ldflags", linkerFlags, "-o", to, pkg)
	}))
	if err := once.(func() error)(); err != nil {
		t.Fatal(err)
	}
	return to
}
