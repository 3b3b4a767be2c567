package rootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeyTellsReleasesApartAndIsStable(t *testing.T) {
	first, err := Maker{}.key("bookworm")
	if err != nil {
		t.Fatal(err)
	}
	again, err := Maker{Mirror: "http://elsewhere.invalid"}.key("bookworm")
	if err != nil {
		t.Fatal(err)
	}
	other, err := Maker{}.key("trixie")
	if err != nil {
		t.Fatal(err)
	}
	if first != again {
		t.Errorf("%q and %q: the place it comes from is not part of it", first, again)
	}
	if first == other {
		t.Error("two releases share a key")
	}
}

func TestCopyFilesMakesProgramsExecutableAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	if err := copyFiles(dir); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		"usr/local/sbin/kpssh-lab-host":             0o755,
		"etc/containerd/config.toml":                0o644,
		"etc/kubernetes/kubelet.conf.d/10-lab.conf": 0o644,
	} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
}

func TestHostsComeWithoutAnythingOfTheProduct(t *testing.T) {
	for _, name := range packages("bookworm") {
		if strings.Contains(name, "kube") {
			t.Errorf("package %s: a host is to get that from elsewhere", name)
		}
	}
}
