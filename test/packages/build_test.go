//go:build e2e

package packages

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPackagesOfACopyInAnotherFolderAreTheSame(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	copied := filepath.Join(t.TempDir(), "elsewhere")
	must(t, os.Mkdir(copied, 0o700))
	// Without .git, with other times and with other modes than a clone has here.
	script := `umask 077; git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$1"; chmod -R go-rwx "$1"`
	cmd := exec.CommandContext(ctx, "bash", "-c", script, "bash", copied)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	again := older
	again.dir = t.TempDir()
	must(t, again.build(ctx, copied, again.dir))
	first, second := digests(t, older.dir), digests(t, again.dir)
	if len(first) != 13 {
		t.Errorf("there are %d files, want 3 binaries, 3 SBOMs, 6 packages and SHA256SUMS", len(first))
	}
	for name, digest := range first {
		if second[name] != digest {
			t.Errorf("%s is %s, and %s when built elsewhere", name, digest, second[name])
		}
	}
	other := digests(t, newer.dir)
	for name, digest := range first {
		if other[name] == digest {
			t.Errorf("%s is the same in another release", name)
		}
	}
}

func TestVersionsAreOrderedAsTheirCommitsAre(t *testing.T) {
	versions := []struct{ version, want string }{
		{"0cf3a21", "0~20251009085320.0cf3a21"},
		{"0cf3a21-dirty", "0~20251009085320.0cf3a21+dirty"},
		{"v1.2.3-rc.1", "1.2.3~rc.1"},
		{"v1.2.3-rc.1-4-g0cf3a21", "1.2.3~rc.1+4.g0cf3a21"},
		{"v1.2.3-rc.2", "1.2.3~rc.2"},
		{"v1.2.3", "1.2.3"},
		{"v1.2.3-4-g0cf3a21", "1.2.3+4.g0cf3a21"},
		{"v1.2.3-12-g1cf3a21-dirty", "1.2.3+12.g1cf3a21+dirty"},
		{"1.10.0", "1.10.0"},
	}
	before := ""
	for _, tc := range versions {
		cmd := exec.Command("../../packaging/version.sh")
		cmd.Env = append(os.Environ(), "VERSION="+tc.version, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", older.time))
		out, err := cmd.CombinedOutput()
		got := strings.TrimSpace(string(out))
		if err != nil || got != tc.want {
			t.Errorf("%s is %q, want %q (%v)", tc.version, got, tc.want, err)
		}
		if before != "" {
			if out, err := exec.Command("dpkg", "--compare-versions", before, "lt", got).CombinedOutput(); err != nil {
				t.Errorf("dpkg does not place %s before %s: %s", before, got, out)
			}
		}
		before = got
	}
}

func digests(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := os.ReadDir(dir)
	must(t, err)
	all := map[string]string{}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		must(t, err)
		sum := sha256.Sum256(content)
		all[f.Name()] = hex.EncodeToString(sum[:])
	}
	return all
}

func TestChecksumsCoverEverythingElse(t *testing.T) {
	sums, err := os.ReadFile(filepath.Join(older.dir, "SHA256SUMS"))
	must(t, err)
	want := digests(t, older.dir)
	delete(want, "SHA256SUMS")
	for line := range strings.Lines(string(sums)) {
		digest, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if want[name] != digest {
			t.Errorf("%s: %s, want %s", name, digest, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
}

// What `go version -m` reads out of a binary is the truth.
func TestSBOMsListWhatTheBinariesWereBuiltFrom(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64", "arm"} {
		binary := filepath.Join(older.dir, "kpssh-shim-linux-"+arch)
		info, err := buildinfo.ReadFile(binary)
		must(t, err)
		var want []string
		for _, m := range info.Deps {
			want = append(want, m.Path+"@"+m.Version)
		}
		content, err := os.ReadFile(binary + ".cdx.json")
		must(t, err)
		var bom struct {
			BOMFormat  string
			Components []struct{ Name, Version, PURL string }
		}
		must(t, json.Unmarshal(content, &bom))
		var got []string
		for _, c := range bom.Components {
			got = append(got, c.Name+"@"+c.Version)
			if !strings.HasPrefix(c.PURL, "pkg:golang/") {
				t.Errorf("%s: %s has the package URL %q", arch, c.Name, c.PURL)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if bom.BOMFormat != "CycloneDX" || len(want) == 0 || !slices.Equal(slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "std@") }), want) {
			t.Errorf("%s: the SBOM lists %q, the binary %q", arch, got, want)
		}
	}
}

func TestEveryPackageIsWhatItsNameSays(t *testing.T) {
	for arch, goarch := range map[string]string{"amd64": "amd64", "arm64": "arm64", "armhf": "arm"} {
		control, err := exec.Command("dpkg-deb", "--field", older.deb(arch), "Architecture", "Version").Output()
		must(t, err)
		if got, want := string(control), fmt.Sprintf("Architecture: %s\nVersion: 0.1.0-1\n", arch); got != want {
			t.Errorf("%s: %q", arch, got)
		}
		dir := t.TempDir()
		if out, err := exec.Command("dpkg-deb", "--extract", older.deb(arch), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		packaged, err := os.ReadFile(dir + shim)
		must(t, err)
		binary, err := os.ReadFile(filepath.Join(older.dir, "kpssh-shim-linux-"+goarch))
		must(t, err)
		if !bytes.Equal(packaged, binary) {
			t.Errorf("%s: the package has another shim", arch)
		}
		for from, to := range map[string]string{"kpssh.socket": unit, "kpssh@.service": filepath.Dir(unit) + "/kpssh@.service", "tmpfiles.conf": "/usr/lib/tmpfiles.d/kpssh.conf"} {
			want, err := os.ReadFile("../../packaging/host/" + from)
			must(t, err)
			if got, err := os.ReadFile(dir + to); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s is not packaging/host/%s (%v)", arch, to, from, err)
			}
		}
	}
}

// The man page keeps up with what the program says of itself.
func TestTheManPageNamesEveryCommandAndFlag(t *testing.T) {
	page, err := os.ReadFile("../../packaging/kpssh-shim.8")
	must(t, err)
	text := strings.ReplaceAll(string(page), `\-`, "-")
	binary := filepath.Join(older.dir, "kpssh-shim-linux-"+runtime.GOARCH)
	usage, err := exec.Command(binary, "-h").Output()
	must(t, err)
	named := 0
	for line := range strings.Lines(string(usage)) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(line, "  kpssh-shim ") || fields[1] == "COMMAND" {
			continue
		}
		named++
		if !strings.Contains(text, ".B kpssh-shim "+fields[1]) {
			t.Errorf("the man page has no %s", fields[1])
		}
		help, _ := exec.Command(binary, fields[1], "-h").Output()
		for line := range strings.Lines(string(help)) {
			if flag := strings.Fields(line); strings.HasPrefix(line, "  --") && !strings.Contains(text, flag[0]) {
				t.Errorf("the man page has no %s of %s", flag[0], fields[1])
			}
		}
	}
	if named < 5 {
		t.Errorf("the usage text names %d commands", named)
	}
}
