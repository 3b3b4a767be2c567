package main

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

//go:embed shell-shim.sh
var shellShim []byte

// newShellSide makes the keys of author, dispatcher and host, a list and an order, as files that ssh-keygen reads.
func newShellSide(box *sandbox, script []byte) (*shellSide, error) {
	s := &shellSide{box: box, program: filepath.Join(box.dir, "shell-shim.sh"), state: filepath.Join(box.dir, "shell")}
	if err := os.Mkdir(s.state, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.program, shellShim, 0o600); err != nil {
		return nil, err
	}
	var signers strings.Builder
	for _, who := range []string{"author", "dispatch", "key"} {
		if err := keygen("-q", "-t", "ed25519", "-N", "", "-f", s.path(who)); err != nil {
			return nil, err
		}
		public, err := os.ReadFile(s.path(who + ".pub"))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&signers, "%s %s", who, public)
	}
	digest := strings.TrimPrefix(signing.Digest(script), "sha256:")
	for name, content := range map[string]string{
		"signers": signers.String(), "fence": "0\n",
		"list":  fmt.Sprintf("expires %d\n%s\n", time.Now().Add(time.Hour).Unix(), digest),
		"order": fmt.Sprintf("script %s\nfence 1\n", digest),
	} {
		if err := os.WriteFile(s.path(name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	for name, who := range map[string]string{"list": "author", "order": "dispatch"} {
		if err := keygen("-q", "-Y", "sign", "-f", s.path(who), "-n", "kpssh-"+name, s.path(name)); err != nil {
			return nil, err
		}
	}
	var request bytes.Buffer
	for _, name := range []string{"list", "list.sig", "order", "order.sig"} {
		data, err := os.ReadFile(s.path(name))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&request, "%s %s\n", name, base64.StdEncoding.EncodeToString(data))
	}
	fmt.Fprintf(&request, "script %s\nend\n", base64.StdEncoding.EncodeToString(script))
	s.request = request.Bytes()
	return s, nil
}

// newKeygenSide checks one signature over the script, with ssh-keygen.
func newKeygenSide(s *shellSide, script []byte) (func() error, error) {
	path := s.path("script")
	if err := os.WriteFile(path, script, 0o600); err != nil {
		return nil, err
	}
	const namespace = "kpssh-script"
	if err := keygen("-q", "-Y", "sign", "-f", s.path("author"), "-n", namespace, path); err != nil {
		return nil, err
	}
	return func() error {
		cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", s.path("signers"), "-I", "author", "-n", namespace, "-s", path+".sig")
		cmd.Stdin = bytes.NewReader(script)
		return s.box.run(cmd)
	}, nil
}

func (s *shellSide) path(name string) string { return filepath.Join(s.state, name) }

func keygen(args ...string) error {
	if out, err := exec.Command("ssh-keygen", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("running ssh-keygen (Debian package openssh-client): %v: %s", err, out)
	}
	return nil
}
