//go:build e2e

package threats

import (
	"debug/buildinfo"
	"debug/elf"
	"debug/gosym"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// functionsOf lists the functions that a Go program holds. They stand in its line table, which stripping leaves.
func functionsOf(t testing.TB, program string) map[string]bool {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	section := f.Section(".gopclntab")
	if section == nil {
		t.Fatal("the binary has no line table")
	}
	lines, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(lines, f.Section(".text").Addr))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, fn := range table.Funcs {
		names[fn.Name] = true
	}
	return names
}

// What runs as root on a host is the standard library, two modules of the Go project and ours.
func TestB9_TheShimHoldsLittleAndIsTheSameEachTime(t *testing.T) {
	t.Parallel()
	info, err := buildinfo.ReadFile(binaries.shim)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range info.Deps {
		if m.Path != "golang.org/x/sys" && m.Path != "golang.org/x/crypto" || m.Replace != nil {
			t.Errorf("B9 the binary holds module %s %s", m.Path, m.Version)
		}
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" {
		t.Errorf("B9 built with %v", settings)
	}
	f, err := elf.Open(binaries.shim)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("B9 it has a %v segment: it is not static", p.Type)
		}
	}
	st, err := os.Stat(binaries.shim)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, %d modules beside the standard library and ours", st.Size(), len(info.Deps))

	// The same source at another place, compiled anew, is the same binary.
	copied := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Mkdir(copied, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"go.mod", "go.sum", "cmd/kpssh-shim", "shim", "signing", "packaging"} {
		cmd := exec.Command("cp", "-a", "--parents", part, copied)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("copying %s: %v: %s", part, err, out)
		}
	}
	digests := map[string]string{}
	for where, repo := range map[string]string{"here": "../..", "elsewhere": copied} {
		to := filepath.Join(t.TempDir(), "kpssh-shim")
		cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", linkerFlags, "-o", to, "./cmd/kpssh-shim")
		cmd.Dir, cmd.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
		if where == "elsewhere" {
			cmd.Env = append(cmd.Env, "GOCACHE="+filepath.Join(t.TempDir(), "cache"))
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v: %s", where, err, out)
		}
		data, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		digests[where] = signing.Digest(data)
	}
	if digests["here"] != digests["elsewhere"] || !strings.HasPrefix(digests["here"], "sha256:") {
		t.Errorf("B9 two builds: %v", digests)
	}
}
