package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/images"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/kubebin"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/rootfs"
)

// DefaultSuite is the Debian release of pool hosts.
const DefaultSuite = "bookworm"

// SandboxImage is on every host: see the package comment.
const SandboxImage = "kpssh.lab/pause:1"

// tool is a program that the machine must have, and the Debian package that brings it.
type tool struct{ program, pkg string }

func networkTools() []tool { return []tool{{"ip", "iproute2"}, {"nsenter", "util-linux"}} }

func hostTools() []tool {
	return append(networkTools(),
		tool{"systemd-nspawn", "systemd-container"},
		tool{"debootstrap", "debootstrap"},
	)
}

// missingPackages are the packages of those tools that lookPath does not find.
func missingPackages(tools []tool, lookPath func(string) (string, error)) []string {
	var missing []string
	for _, t := range tools {
		if _, err := lookPath(t.program); err != nil {
			missing = append(missing, t.pkg)
		}
	}
	return missing
}

// ensureTools installs what is missing. The lists of packages are fetched only if installing without does not work.
func ensureTools(ctx context.Context, tools []tool, log cachedir.Logf) (err error) {
	missing := missingPackages(tools, exec.LookPath)
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("this machine lacks %s and has no apt-get to install them with", strings.Join(missing, ", "))
	}
	done := cachedir.Step(log, nil, "installing %s", strings.Join(missing, ", "))
	defer func() { done(err) }()
	install := append([]string{"install", "--yes", "--no-install-recommends"}, missing...)
	if aptGet(ctx, install...) == nil {
		return nil
	}
	if err := aptGet(ctx, "update"); err != nil {
		return err
	}
	return aptGet(ctx, install...)
}

func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running apt-get %s: %w: %s", args[0], err, out)
	}
	return nil
}

// Prepare fills the caches and installs what the machine lacks, so that Start is quick afterwards. With
// apiServerOnly it prepares for [StartAPIServer], which needs no root.
func Prepare(ctx context.Context, log func(format string, args ...any), apiServerOnly bool) error {
	if apiServerOnly {
		finder, err := kubebin.FromEnvironment(os.Getenv, log)
		if err != nil {
			return err
		}
		_, err = finder.APIServer(ctx)
		return err
	}
	_, err := prepare(ctx, log, Options{})
	return err
}

func prepare(ctx context.Context, log cachedir.Logf, opts Options) (kubebin.Binaries, error) {
	hosts, tools := !opts.ControlPlaneOnly, networkTools()
	if hosts {
		tools = hostTools()
	}
	if err := ensureTools(ctx, tools, log); err != nil {
		return kubebin.Binaries{}, err
	}
	if opts.HostsOnly {
		_, err := prepareHosts(ctx, log, DefaultSuite)
		return kubebin.Binaries{}, err
	}
	finder, err := kubebin.FromEnvironment(os.Getenv, log)
	if err != nil {
		return kubebin.Binaries{}, err
	}
	bins, err := finder.Cluster(ctx)
	if err != nil || !hosts {
		return bins, err
	}
	if _, err := prepareHosts(ctx, log, DefaultSuite); err != nil {
		return kubebin.Binaries{}, err
	}
	return bins, nil
}

// hostParts are what a host is made of.
type hostParts struct{ root, image string }

func prepareHosts(ctx context.Context, log cachedir.Logf, suite string) (hostParts, error) {
	if err := ensureTools(ctx, hostTools(), log); err != nil {
		return hostParts{}, err
	}
	cache, err := cachedir.Default()
	if err != nil {
		return hostParts{}, err
	}
	image, err := images.Pause(ctx, cache, SandboxImage, log)
	if err != nil {
		return hostParts{}, err
	}
	maker := rootfs.Maker{CacheDir: cache, Mirror: os.Getenv(rootfs.EnvMirror), Log: log}
	root, err := maker.Ensure(ctx, suite)
	if err != nil {
		return hostParts{}, err
	}
	return hostParts{root: root, image: image}, nil
}

// programPath follows the cache's links: what is bound into a host must be the file itself.
func (l *Lab) programPath(name string) (string, error) {
	path, err := filepath.EvalSymlinks(l.control.bins.Path(name))
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", name, err)
	}
	return path, nil
}
