package cachedir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// UnpackDebian puts programs of a package of the distribution into dir. The package is unpacked and not installed, so
// that no service of it starts on this machine. It is an error where there is no apt-get.
func UnpackDebian(ctx context.Context, dir, pkg string, programs ...string) (err error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(dir, "deb-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err := download(ctx, scratch, pkg); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(scratch, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("downloading %s: got %d packages (%w)", pkg, len(debs), err)
	}
	root := filepath.Join(scratch, "root")
	if out, err := exec.CommandContext(ctx, "dpkg", "-x", debs[0], root).CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w: %s", pkg, err, out)
	}
	for _, program := range programs {
		if err := os.Rename(filepath.Join(root, "usr", "bin", program), filepath.Join(dir, program)); err != nil {
			return fmt.Errorf("unpacking %s: %w", pkg, err)
		}
	}
	return nil
}

// download fetches a package into dir. The lists of packages are fetched only if it does not work without.
func download(ctx context.Context, dir, pkg string) error {
	apt := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "APT::Sandbox::User=root", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("running apt-get %s: %w: %s", args[0], err, out)
		}
		return nil
	}
	if apt("download", pkg) == nil {
		return nil
	}
	if err := apt("update"); err != nil {
		return err
	}
	return apt("download", pkg)
}
