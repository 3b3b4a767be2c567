package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

// kpssh starts the program: TestMain put it into PATH.
func kpssh(args ...string) *exec.Cmd { return exec.Command("kpssh", args...) }

// An init that is killed, wherever it is, is finished by the next one, and no key that it made changes.
func TestAKilledInitIsFinishedByTheNext(t *testing.T) {
	path, err := exec.LookPath("kpssh")
	if err != nil {
		t.Fatal("TestMain did not put kpssh into PATH: ", err)
	}
	killed := 0
	for delay := time.Duration(0); delay < 120*time.Millisecond; delay += 8 * time.Millisecond {
		dir := filepath.Join(t.TempDir(), "trust")
		cmd := exec.Command(path, "init", "--no-passphrase", "--dir", dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(delay, func() { _ = cmd.Process.Kill() }) // it may have ended already
		err := cmd.Wait()
		timer.Stop()
		if err == nil {
			continue // it was faster than the kill
		}
		killed++
		before := privateKeys(t, dir)
		if out, err := kpssh("init", "--no-passphrase", "--dir", dir).CombinedOutput(); err != nil && !strings.Contains(string(out), "finished init") {
			t.Fatalf("killed after %s, the next says: %s", delay, out)
		}
		after := privateKeys(t, dir)
		for name, content := range before {
			if after[name] != content {
				t.Errorf("killed after %s: %s was replaced", delay, name)
			}
		}
		checkTrust(t, dir)
	}
	if killed == 0 {
		t.Error("no init was killed: the delays are too long")
	}
}

func privateKeys(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"offline/*/*.key", "online/ssh/id_ed25519", "manifests/20-*.yaml"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found[f] = string(data)
		}
	}
	return found
}

// checkTrust holds the root document against the keys that lie beside it.
func checkTrust(t *testing.T, dir string) {
	t.Helper()
	read := func(parts ...string) []byte {
		data, err := os.ReadFile(filepath.Join(append([]string{dir}, parts...)...))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	root, err := signing.OpenFirstRoot(read("public", "root.1.json"))
	if err != nil {
		t.Fatal(err)
	}
	author, err := keys.Read(filepath.Join(dir, "offline", "author", "author.key"), nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := manifest.ReadSecret(read("manifests", "20-dispatch-key.secret.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dispatch, err := keys.FromSecret(data)
	if err != nil {
		t.Fatal(err)
	}
	if !root.Author.Keys[0].Equal(author.Public()) || !root.Dispatch.Keys[0].Equal(dispatch.Public()) {
		t.Error("the root document lists other keys than there are")
	}
	leftovers, err := filepath.Glob(filepath.Join(dir, "*", "*", ".kpssh-tmp-*"))
	if err != nil || len(leftovers) > 0 {
		t.Errorf("left over: %q, %v", leftovers, err)
	}
}

func TestInitsAtTheSameTimeMakeOneTrust(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trust")
	var wg sync.WaitGroup
	var mu sync.Mutex
	finished := 0
	for range 4 {
		wg.Go(func() {
			out, err := kpssh("init", "--no-passphrase", "--dir", dir).CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				finished++
			} else if !strings.Contains(string(out), "another kpssh works in") && !strings.Contains(string(out), "finished init") {
				t.Error(fmt.Sprint("unexpected: ", string(out)))
			}
		})
	}
	wg.Wait()
	if finished != 1 {
		t.Errorf("%d inits finished", finished)
	}
	checkTrust(t, dir)
}
