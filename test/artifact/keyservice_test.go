//go:build e2e

package artifact

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Threat A21: for a scheme that it does not know, sigstore runs a program sigstore-kms-SCHEME from PATH.
func TestAPluginForAKeySchemeIsNeverRun(t *testing.T) {
	dir := t.TempDir()
	marker := filepath.Join(dir, "ran")
	if err := os.WriteFile(filepath.Join(dir, "sigstore-kms-evil"), []byte("#!/bin/sh\ntouch "+marker+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "trust")
	if out, err := exec.Command("../../bin/kpssh", "init", "--dir", root, "--no-passphrase").CombinedOutput(); err != nil {
		t.Fatalf("%v: run `make build` first\n%s", err, out)
	}
	const ref = "evil://x"
	for name, c := range map[string]struct {
		args []string
		env  string
		code int
	}{
		"the controller, by flag":          {[]string{"karpenter-provider-ssh", "--dispatch-key", ref}, "", 2},
		"the controller, by its variable":  {[]string{"karpenter-provider-ssh"}, "DISPATCH_KEY=" + ref, 2},
		"the CLI, showing a key":           {[]string{"kpssh", "keys", "show", ref}, "", 1},
		"the CLI, signing a root":          {[]string{"kpssh", "root", "new", "--dir", root, "--sign-with", ref}, "", 1},
		"the CLI, listing a key in a root": {[]string{"kpssh", "root", "new", "--dir", root, "--sign-with", filepath.Join(root, "offline/root/root-1.key"), "--dispatch-key", ref}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("../../bin/"+c.args[0], c.args[1:]...)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), c.env)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), "unknown-key-scheme") {
				t.Errorf("%v, want exit status %d\n%s", err, c.code, out)
			}
			if _, err := os.Stat(marker); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the plugin ran: %v", err)
			}
		})
	}
}

// The code that would run it is not even there: the linker leaves out what nothing calls. A program's
// functions are named in its tables, stripped or not.
func TestThePluginCodeIsNotLinked(t *testing.T) {
	const plugins = "github.com/sigstore/sigstore/pkg/signature/kms/cliplugin."
	for _, name := range []string{"karpenter-provider-ssh", "kpssh"} {
		program, err := os.ReadFile("../../bin/" + name)
		if err != nil {
			t.Fatalf("%v: run `make build` first", err)
		}
		if !bytes.Contains(program, []byte("karpenter-provider-ssh/signing/keys.NewServiceKey")) {
			t.Errorf("%s: functions cannot be found by name", name)
		}
		for _, function := range []string{"LoadSignerVerifier", "newPluginClient", "getPluginExecutableAndKeyResourceID"} {
			if bytes.Contains(program, []byte(plugins+function)) {
				t.Errorf("%s: %s%s is linked", name, plugins, function)
			}
		}
	}
	shim, err := os.ReadFile("../../bin/kpssh-shim-linux-amd64")
	if err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []string{"sigstore/sigstore", "aws-sdk-go", "hashicorp/vault", "azure-sdk-for-go", "cloud.google.com"} {
		if bytes.Contains(shim, []byte(foreign)) {
			t.Errorf("kpssh-shim: %s is linked", foreign)
		}
	}
}
