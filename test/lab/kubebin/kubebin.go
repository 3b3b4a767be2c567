// Package kubebin finds Kubernetes' binaries for this machine, in this order: the directory named by
// KPSSH_KUBE_BIN_DIR; the cache; the official release files, whose checksums are verified, where they can be reached;
// and a build from the Go module proxy, which takes minutes and is paid once a machine.
//
// The build links every component into one binary, because linking five takes five times as long; the cache then
// holds it under five names. etcd is part of it. With release files, etcd comes from the distribution's package,
// unpacked but not installed, or from a build of its own.
package kubebin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
)

// Versions that go together: the staging libraries of Kubernetes v1.N.P are v0.N.P, and etcd is the one its own
// go.mod names.
const (
	Version        = "v1.35.4"
	stagingVersion = "v0.35.4"
	etcdVersion    = "v3.6.5"
)

// DefaultReleaseURL is where the project publishes release files.
const DefaultReleaseURL = "https://dl.k8s.io/release"

// Names of the environment variables that FromEnvironment reads.
const (
	EnvBinDir     = "KPSSH_KUBE_BIN_DIR"
	EnvReleaseURL = "KPSSH_KUBE_RELEASE_URL"
	EnvAssets     = "KUBEBUILDER_ASSETS"
)

// Components are the programs that a whole cluster needs besides etcd.
func Components() []string {
	return []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}
}

// Binaries are programs found for this machine.
type Binaries struct {
	dir, etcd string
}

// Path is where the program called name is: one of Components, or etcd.
func (b Binaries) Path(name string) string {
	if name == "etcd" {
		return b.etcd
	}
	return filepath.Join(b.dir, name)
}

// Dir holds the Components.
func (b Binaries) Dir() string { return b.dir }

// Finder finds binaries.
type Finder struct {
	// CacheDir is the root of the cache.
	CacheDir string
	// BinDir, if set, must hold all that is asked for; nothing else is tried.
	BinDir string
	// Assets is a directory with etcd, kube-apiserver and kubectl, as setup-envtest makes one. Only APIServer uses it.
	Assets string
	// ReleaseURL has the layout of DefaultReleaseURL; "off" skips it.
	ReleaseURL string
	// Client makes the downloads.
	Client *http.Client
	// Log receives progress.
	Log cachedir.Logf
	// Version and Arch of what is wanted.
	Version, Arch string
}

// FromEnvironment is the Finder that a person's environment asks for.
func FromEnvironment(getenv func(string) string, log cachedir.Logf) (Finder, error) {
	cache, err := cachedir.Default()
	if err != nil {
		return Finder{}, err
	}
	url := getenv(EnvReleaseURL)
	if url == "" {
		url = DefaultReleaseURL
	}
	return Finder{
		CacheDir: cache, BinDir: getenv(EnvBinDir), Assets: getenv(EnvAssets),
		ReleaseURL: strings.TrimSuffix(url, "/"), Client: newClient(), Log: log,
		Version: Version, Arch: runtime.GOARCH,
	}, nil
}

// Cluster finds everything that a cluster needs.
func (f Finder) Cluster(ctx context.Context) (Binaries, error) {
	if f.BinDir != "" {
		return f.fromBinDir(ctx, Components())
	}
	return f.fromCache(ctx)
}

// APIServer finds etcd, kube-apiserver and kubectl.
func (f Finder) APIServer(ctx context.Context) (Binaries, error) {
	need := []string{"kube-apiserver", "kubectl"}
	if f.BinDir != "" {
		return f.fromBinDir(ctx, need)
	}
	if f.Assets != "" && missing(f.Assets, append(need, "etcd")) == nil {
		return Binaries{dir: f.Assets, etcd: filepath.Join(f.Assets, "etcd")}, nil
	}
	return f.fromCache(ctx)
}

func (f Finder) fromBinDir(ctx context.Context, need []string) (Binaries, error) {
	if err := missing(f.BinDir, need); err != nil {
		return Binaries{}, fmt.Errorf("using %s: %w", EnvBinDir, err)
	}
	return f.withEtcd(ctx, f.BinDir)
}

func (f Finder) fromCache(ctx context.Context) (Binaries, error) {
	dir, err := cachedir.Fill(ctx, f.CacheDir, f.key(), f.Log, func(ctx context.Context, dir string) error {
		err := f.download(ctx, dir)
		if !errors.Is(err, errUnreachable) {
			return err
		}
		f.Log.Printf("Kubernetes' release files are out of reach (%v): building them from source instead", err)
		return f.build(ctx, dir)
	})
	if err != nil {
		return Binaries{}, fmt.Errorf("getting Kubernetes %s: %w", f.Version, err)
	}
	return f.withEtcd(ctx, dir)
}

// key changes with what an entry holds: one that an older lab made lacks what has come since.
func (f Finder) key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%v\n%s", Components(), multicallSource))
	return fmt.Sprintf("kubernetes/%s-%s-%s", f.Version, f.Arch, hex.EncodeToString(sum[:6]))
}

// withEtcd takes etcd from dir where dir has it.
func (f Finder) withEtcd(ctx context.Context, dir string) (Binaries, error) {
	if own := filepath.Join(dir, "etcd"); missing(dir, []string{"etcd"}) == nil {
		return Binaries{dir: dir, etcd: own}, nil
	}
	etcd, err := f.ensureEtcd(ctx)
	if err != nil {
		return Binaries{}, fmt.Errorf("getting etcd: %w", err)
	}
	return Binaries{dir: dir, etcd: etcd}, nil
}

// missing names the programs that dir lacks.
func missing(dir string, names []string) error {
	var errs []error
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		switch {
		case err != nil:
			errs = append(errs, err)
		case info.IsDir() || info.Mode()&0o111 == 0:
			errs = append(errs, fmt.Errorf("%q is not executable", filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}
