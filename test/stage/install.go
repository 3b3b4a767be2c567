package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/admission"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

func (s *Stage) applyCRDs(ctx context.Context) error {
	docs := slices.Concat(crds.Karpenter(), crds.Own(), admission.Policies())
	if err := s.Apply(ctx, string(bytes.Join(docs, []byte("\n---\n")))); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		return err
	}
	return s.ApplyExamples(ctx, "bootstrap-rbac.yaml")
}

// ApplyExamples applies files of examples/ as they are.
func (s *Stage) ApplyExamples(ctx context.Context, names ...string) error {
	for _, name := range names {
		manifests, err := s.Example(name)
		if err != nil {
			return err
		}
		if err := s.Apply(ctx, manifests); err != nil {
			return fmt.Errorf("applying examples/%s: %w", name, err)
		}
	}
	return nil
}

// ApplyWorkload applies the NodePool of examples/ and a Deployment without replicas. Nothing can be pulled in a lab, so
// the Deployment's container is the one program that its hosts have an image of.
func (s *Stage) ApplyWorkload(ctx context.Context) error {
	if err := s.ApplyExamples(ctx, "nodepool.yaml"); err != nil {
		return err
	}
	manifest, err := s.Example("demo.yaml")
	if err != nil {
		return err
	}
	lines := regexp.MustCompile(`(?m)^( +)image: .*\n +command: .*\n`)
	if !lines.MatchString(manifest) {
		return errors.New("examples/demo.yaml has no image and command to replace")
	}
	return s.Apply(ctx, lines.ReplaceAllString(manifest, "${1}image: "+lab.SandboxImage+"\n"))
}

// ApplyTrust applies the manifests of the trust folder.
func (s *Stage) ApplyTrust(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(s.TrustDir, "manifests", "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files { // Glob sorts, and the names are in the order of kubectl apply.
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := s.Apply(ctx, string(b)); err != nil {
			return fmt.Errorf("applying %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

func (s *Stage) initTrust(ctx context.Context) error {
	if _, err := s.CLI(ctx, "init", "--dir", s.TrustDir, "--no-passphrase"); err != nil {
		return err
	}
	return s.ApplyTrust(ctx)
}

// Profile is the manifest of the profile and node class that the stage signs and applies.
const Profile = "tls-bootstrap.yaml"

func (s *Stage) signProfile(ctx context.Context) error {
	if _, err := s.CLI(ctx, "profile", "sign", "--dir", s.TrustDir, "--pin-cluster",
		filepath.Join(s.opts.Repo, "examples", Profile)); err != nil {
		return err
	}
	if err := s.ApplyTrust(ctx); err != nil {
		return err
	}
	return s.ApplyExamples(ctx, Profile)
}

func (s *Stage) enrollHosts(ctx context.Context) error {
	hosts := s.Hosts()
	errs := make([]error, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { errs[i] = s.Enroll(ctx, h) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Enroll puts the shim on a host and the host into the pool.
func (s *Stage) Enroll(ctx context.Context, h *lab.Host) error {
	manifest, err := s.CLI(ctx, "host", "enroll", "--dir", s.TrustDir,
		"--with-secret", "--name", h.Name, "--identity", s.AdminKeyPath(), "--host-key", h.HostKeyLine(),
		"--shim", filepath.Join(s.opts.Repo, "bin"), "root@"+h.Address)
	if err != nil {
		return fmt.Errorf("enrolling %q: %w", h.Name, err)
	}
	return s.Apply(ctx, manifest)
}
