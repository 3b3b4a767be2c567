package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// A rotation that is killed, wherever it is and however often, is finished by calling it again: with the root documents
// that it takes and no more, with one new key, and with the old one where it was.
func TestAKilledRotationIsFinishedByTheNext(t *testing.T) {
	program, err := exec.LookPath("kpssh")
	if err != nil {
		t.Fatal("TestMain did not put kpssh into PATH: ", err)
	}
	for name, c := range map[string]struct {
		args  []string
		roots int64
	}{
		"dispatch":              {[]string{"dispatch"}, 3},
		"author":                {[]string{"author"}, 3},
		"dispatch in emergency": {[]string{"dispatch", "--emergency"}, 2},
		"author in emergency":   {[]string{"author", "--emergency"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fresh := filepath.Join(t.TempDir(), "fresh")
			profile := filepath.Join(t.TempDir(), "profile.yaml")
			write(t, profile, "apiVersion: karpenter.dklesev.github.io/v1beta1\nkind: SSHJoinProfile\nmetadata: {name: demo}\nspec: {scripts: {install: 'true', join: 'true', leave: 'true'}}\n")
			mustRun(t, program, "init", "--no-passphrase", "--dir", fresh)
			mustRun(t, program, "profile", "sign", "--no-pins", "--dir", fresh, profile)
			killed := 0
			for delay := 10 * time.Millisecond; delay < 150*time.Millisecond; delay += 17 * time.Millisecond {
				dir := filepath.Join(t.TempDir(), "trust")
				if err := os.CopyFS(dir, os.DirFS(fresh)); err != nil {
					t.Fatal(err)
				}
				before := privateKeys(t, dir)
				args := append([]string{"keys", "rotate", "--no-passphrase", "--offline", "--confirm", "spread", "--confirm", "switch", "--dir", dir}, c.args...)
				for range 3 { // the second and third one find what the one before left
					if kill(t, delay, program, args...) {
						killed++
					}
				}
				mustRun(t, program, args...)
				checkRotation(t, program, dir, c.roots, before)
			}
			if killed == 0 {
				t.Error("no rotation was killed: the delays are too long")
			}
		})
	}
}

func kill(t *testing.T, after time.Duration, program string, args ...string) bool {
	t.Helper()
	cmd := exec.Command(program, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // it may have ended already
	defer timer.Stop()
	return cmd.Wait() != nil
}

func mustRun(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("kpssh %s: %s", strings.Join(args, " "), out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func checkRotation(t *testing.T, program, dir string, roots int64, before map[string]string) {
	t.Helper()
	var chain []string
	var root *signing.Root
	for n := int64(1); ; n++ {
		path := filepath.Join(dir, "public", fmt.Sprintf("root.%d.json", n))
		envelope, err := os.ReadFile(path)
		if err != nil {
			break
		}
		chain = append(chain, "--root", path)
		if n == 1 {
			root, err = signing.OpenFirstRoot(envelope)
		} else {
			root, err = signing.NextRoot(root, envelope)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if root.Version != roots || len(root.Author.Keys) != 1 || len(root.Dispatch.Keys) != 1 {
		t.Errorf("root version %d with %d author and %d dispatch keys", root.Version, len(root.Author.Keys), len(root.Dispatch.Keys))
	}
	list := filepath.Join(dir, "public", "allowlist.json")
	mustRun(t, program, append(append([]string{"verify", "allowlist"}, chain...), list)...)
	manifest, err := os.ReadFile(filepath.Join(dir, "manifests", "10-trust.yaml"))
	if err != nil || !strings.Contains(string(manifest), fmt.Sprintf("root.%d.json", roots)) {
		t.Errorf("the ConfigMap lacks the newest root, %v", err)
	}
	made, _ := filepath.Glob(filepath.Join(dir, "public", "*-2.pub"))
	further, _ := filepath.Glob(filepath.Join(dir, "public", "*-3.pub"))
	if len(made) != 2 || len(further) != 0 { // root-2 is init's
		t.Errorf("keys made: %v %v", made, further)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*", ".kpssh-tmp-*"))
	deeper, _ := filepath.Glob(filepath.Join(dir, "*", "*", ".kpssh-tmp-*"))
	pending, _ := filepath.Glob(filepath.Join(dir, "public", "*.pending.json"))
	if all := append(append(left, deeper...), pending...); len(all) > 0 {
		t.Errorf("left over: %v", all)
	}
	checkNothingLost(t, dir, before)
}

// checkNothingLost finds every private key of before somewhere.
func checkNothingLost(t *testing.T, dir string, before map[string]string) {
	t.Helper()
	after := privateKeys(t, dir)
	aside, _ := filepath.Glob(filepath.Join(dir, "online", "dispatch", "*"))
	for _, path := range aside {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		after[path] = string(data)
	}
	for name, content := range before {
		found := false
		for _, have := range after {
			found = found || have == content
		}
		if !found {
			t.Errorf("%s is gone", name)
		}
	}
}
