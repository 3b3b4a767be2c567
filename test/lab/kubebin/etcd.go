package kubebin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
)

// ensureEtcd returns an etcd of its own, for when Kubernetes' binaries came without one: the distribution's, unpacked
// and not installed so that no service starts on this machine, or else a build.
func (f Finder) ensureEtcd(ctx context.Context) (string, error) {
	dir, err := cachedir.Fill(ctx, f.CacheDir, "etcd/"+f.Arch, f.Log, func(ctx context.Context, dir string) error {
		if packaged := f.unpackEtcd(ctx, dir); packaged != nil {
			f.Log.Printf("no packaged etcd (%v)", packaged)
			return f.buildEtcd(ctx, dir)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "etcd"), nil
}

func (f Finder) unpackEtcd(ctx context.Context, dir string) (err error) {
	done := cachedir.Step(f.Log, nil, "unpacking the distribution's etcd")
	defer func() { done(err) }()
	return cachedir.UnpackDebian(ctx, dir, "etcd-server", "etcd")
}

func (f Finder) buildEtcd(ctx context.Context, dir string) error {
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o755); err != nil {
		return err
	}
	gomod := fmt.Sprintf("module kpssh.invalid/etcd\n\ngo 1.25.0\n\nrequire go.etcd.io/etcd/server/v3 %s\n", etcdVersion)
	main := "package main\n\nimport (\n\t\"os\"\n\n\t\"go.etcd.io/etcd/server/v3/etcdmain\"\n)\n\nfunc main() { etcdmain.Main(os.Args) }\n"
	if err := os.WriteFile(filepath.Join(source, "go.mod"), []byte(gomod), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(source, "main.go"), []byte(main), 0o644); err != nil {
		return err
	}
	err := f.goBuild(ctx, source, "building etcd "+etcdVersion+" from source", "-ldflags", "-s -w", "-o", filepath.Join(dir, "etcd"), ".")
	if err != nil {
		return err
	}
	return os.RemoveAll(source)
}
