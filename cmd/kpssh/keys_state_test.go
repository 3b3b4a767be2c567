package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/rotation"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
)

// twoDaysOn is an environment whose clock is two days ahead.
func twoDaysOn() *cli.Env {
	return &cli.Env{
		Prog: "kpssh", Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" },
		Now: func() time.Time { return time.Now().Add(48 * time.Hour) },
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// An emergency that was cut off before the controller had the new key is gone on with, however much later and without the
// flag. What cannot be seen is not guessed.
func TestAnEmergencyThatWasCutOffIsTakenUpDaysLater(t *testing.T) {
	program, err := exec.LookPath("kpssh")
	if err != nil {
		t.Fatal("TestMain did not put kpssh into PATH: ", err)
	}
	folders := t.TempDir()
	rotated := func(name string, rotations ...[]string) string {
		dir := filepath.Join(folders, name)
		mustRun(t, program, "init", "--no-passphrase", "--dir", dir)
		write(t, filepath.Join(dir, "old.yaml"), read(t, filepath.Join(dir, "manifests", "20-dispatch-key.secret.yaml")))
		for _, args := range rotations {
			mustRun(t, program, append([]string{"keys", "rotate", "dispatch", "--offline", "--dir", dir}, args...)...)
		}
		return dir
	}
	emergency := rotated("emergency", []string{"--emergency"})
	planned := rotated("planned", []string{"--confirm", "spread", "--confirm", "switch"})
	for name, c := range map[string]struct {
		dir string
		// manifest is what the Secret's manifest holds: "old", "new", or nothing when it was deleted.
		manifest string
		// cluster is the key that the controller signs with, "" when that cannot be read; offline when there is none to ask.
		cluster string
		again   bool
		want    rotation.Phase
		wantErr string
	}{
		"the manifest has the old key":               {emergency, "old", "offline", false, rotation.Dropped, ""},
		"the manifest was not applied":               {emergency, "new", "dispatch", false, rotation.Dropped, ""},
		"the manifest is gone":                       {emergency, "", "dispatch", false, rotation.Dropped, ""},
		"it was finished":                            {emergency, "", "dispatch-2", false, rotation.Idle, ""},
		"nobody can say":                             {emergency, "", "offline", false, 0, "replaced the dispatch key at once"},
		"the Secret cannot be read":                  {emergency, "", "", false, 0, "replaced the dispatch key at once"},
		"nobody can say, and another one is wanted":  {emergency, "", "offline", true, rotation.Idle, ""},
		"it was none, and nobody can say":            {planned, "", "offline", false, rotation.Idle, ""},
		"it was none, and the Secret cannot be read": {planned, "", "", false, rotation.Idle, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(c.dir, "manifests", "20-dispatch-key.secret.yaml")
			switch c.manifest {
			case "old":
				write(t, path, read(t, filepath.Join(c.dir, "old.yaml")))
			case "new":
				write(t, path, read(t, filepath.Join(c.dir, "online", "dispatch", "dispatch-2.secret.yaml")))
			default:
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			env := twoDaysOn()
			d, err := trustdir.Open(env, c.dir)
			if err != nil {
				t.Fatal(err)
			}
			set, err := documents.Read(d)
			if err != nil {
				t.Fatal(err)
			}
			r := &rotator{rotateOptions: &rotateOptions{role: roleDispatch, offline: c.cluster == "offline", again: c.again}, env: env, dir: d, set: set}
			if !r.offline {
				r.pool = &cluster.Pool{}
				if c.cluster != "" {
					r.pool.DispatchKey = read(t, d.PublicKey(c.cluster))
				}
			}
			state, err := r.read(t.Context())
			if c.wantErr != "" || err != nil {
				if err == nil || c.wantErr == "" || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("error %v, want %q", err, c.wantErr)
				}
				return
			}
			if state.Phase != c.want {
				t.Errorf("phase %d, want %d", state.Phase, c.want)
			}
		})
	}

	t.Run("to its end", func(t *testing.T) {
		path := filepath.Join(emergency, "manifests", "20-dispatch-key.secret.yaml")
		write(t, path, read(t, filepath.Join(emergency, "old.yaml")))
		o := &rotateOptions{role: roleDispatch, dir: emergency, offline: true, rootSigning: rootSigning{validDays: 365}}
		if err := o.run(t.Context(), twoDaysOn()); err != nil {
			t.Fatal(err)
		}
		if read(t, path) != read(t, filepath.Join(emergency, "online", "dispatch", "dispatch-2.secret.yaml")) {
			t.Error("the manifest does not hold the new key")
		}
		for _, further := range []string{"public/root.3.json", "public/dispatch-3.pub"} {
			if cli.Exists(filepath.Join(emergency, further)) {
				t.Errorf("%s was made", further)
			}
		}
	})
}
