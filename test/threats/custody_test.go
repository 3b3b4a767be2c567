//go:build e2e

package threats

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A reference to a key comes from a flag, and a scheme that is not on the list starts no program, however it is called
// and wherever it is found: sigstore would run sigstore-kms-evil from PATH for evil://.
func TestA21_AKeyReferenceStartsNoPlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	marker := filepath.Join(dir, "marks")
	path := dir + ":" + os.Getenv("PATH")
	for _, name := range []string{"sigstore-kms-evil", "sigstore-kms-awskms", "sigstore-kms-file", "sigstore-kms-k8s", "sigstore-kms-EVIL"} {
		script := "#!/bin/sh\necho ran $0 >> " + marker + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	trust := filepath.Join(dir, "trust")
	cli, controller := built(t, "./cmd/kpssh"), built(t, "./cmd/controller")
	if out, errs, code := program(t, path, cli, "init", "--dir", trust, "--no-passphrase"); code != 0 {
		t.Fatalf("init: exit %d: %s%s", code, out, errs)
	}
	// No cluster answers here. The reference is refused before one is looked for.
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: c}}]\nusers: [{name: c, user: {token: t}}]\ncurrent-context: c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, ref := range map[string]string{
		"A21 a scheme of nobody's": "evil://x", "A21 in upper case": "EVIL://x", "A21 with a path": "evil:///../x",
		"A21 a plugin by its name": "sigstore-kms-evil://x", "A21 a file by its scheme": "file:///etc/shadow", "A21 a secret by its scheme": "k8s://default/key",
	} {
		t.Run(name+", the controller", func(t *testing.T) {
			_, errs, code := program(t, path, controller, "--dispatch-key", ref, "--disable-leader-election", "KUBECONFIG="+kubeconfig)
			if code == 0 || code == -1 || !strings.Contains(errs, "scheme") {
				t.Errorf("exit %d, %s", code, errs[max(0, len(errs)-400):])
			}
		})
		t.Run(name+", the CLI", func(t *testing.T) {
			_, errs, code := program(t, path, cli, "profile", "sign", "--dir", trust, "--no-pins", "--key", ref, "../../examples/tls-bootstrap.yaml")
			if code == 0 || code == -1 || !strings.Contains(errs, "scheme") {
				t.Errorf("exit %d, %s", code, errs[max(0, len(errs)-400):])
			}
		})
	}
	if ran, err := os.ReadFile(marker); err == nil {
		t.Errorf("plugins ran: %s", ran)
	}
}

// program runs a program for at most a minute; arguments of the form NAME=value are its environment.
func program(t *testing.T, path, name string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	env := []string{"PATH=" + path, "HOME=" + t.TempDir()}
	var flags []string
	for _, a := range args {
		if variable, _, found := strings.Cut(a, "="); found && variable == strings.ToUpper(variable) && !strings.HasPrefix(a, "-") {
			env = append(env, a)
		} else {
			flags = append(flags, a)
		}
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, flags...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, env
	_ = cmd.Run()
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
