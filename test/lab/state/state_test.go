package state

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func registry(t *testing.T) Registry {
	t.Helper()
	r, err := NewRegistry(filepath.Join(t.TempDir(), "labs"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sleeper starts a process that lasts longer than the test.
func sleeper(t *testing.T) (*exec.Cmd, Process) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, p
}

// record puts a lab with a directory into the registry.
func record(t *testing.T, r Registry, id string, change func(*Record)) Record {
	t.Helper()
	dir := filepath.Join(t.TempDir(), id)
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	e, err := r.Create(id, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Update(change); err != nil {
		t.Fatal(err)
	}
	return e.record
}

func TestCollectRemovesALabWhoseOwnerIsDead(t *testing.T) {
	for name, owner := range map[string]func(Process) Process{
		"its id is free":                 func(p Process) Process { p.PID = 1 << 30; return p },
		"its id belongs to another now":  func(p Process) Process { p.Start++; return p },
		"the machine was booted between": func(p Process) Process { p.Boot = "another"; return p },
	} {
		t.Run(name, func(t *testing.T) {
			r := registry(t)
			child, process := sleeper(t)
			rec := record(t, r, "dead1", func(rec *Record) {
				rec.Owner = owner(rec.Owner)
				rec.Processes = []Process{process}
			})
			got, err := r.Collect()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"dead1"}, got); diff != "" {
				t.Error(diff)
			}
			if _, err := os.Stat(rec.Dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its directory is still there: %v", err)
			}
			if err := child.Wait(); err == nil {
				t.Error("its process ended by itself")
			}
			if records, err := r.Records(); err != nil || len(records) != 0 {
				t.Errorf("records: %v, %v", records, err)
			}
			if got, err := r.Collect(); err != nil || len(got) != 0 {
				t.Errorf("a second time: %v, %v", got, err)
			}
		})
	}
}

func TestCollectLeavesALabWhoseOwnerLives(t *testing.T) {
	r := registry(t)
	_, process := sleeper(t)
	rec := record(t, r, "alive", func(rec *Record) { rec.Processes = []Process{process} })
	got, err := r.Collect()
	if err != nil || len(got) != 0 {
		t.Fatalf("collected %v, %v", got, err)
	}
	if !process.Alive() {
		t.Error("its process was killed")
	}
	if _, err := os.Stat(rec.Dir); err != nil {
		t.Error(err)
	}
}

func TestCollectKillsNoProcessThatOnlyHasTheSameID(t *testing.T) {
	r := registry(t)
	_, process := sleeper(t)
	record(t, r, "dead2", func(rec *Record) {
		rec.Owner.Start++
		other := process
		other.Start--
		rec.Processes = []Process{other}
	})
	if _, err := r.Collect(); err != nil {
		t.Fatal(err)
	}
	if !process.Alive() {
		t.Error("killed a process that the lab did not start")
	}
}

func TestKeepLogsLeavesTheLogsAndNothingElse(t *testing.T) {
	r := registry(t)
	rec := record(t, r, "kept1", func(rec *Record) { rec.Owner.Start++; rec.KeepLogs = true })
	if err := os.Mkdir(filepath.Join(rec.Dir, "hosts"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Collect(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(rec.Dir, "logs")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(rec.Dir, "hosts")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("more than the logs was kept: %v", err)
	}
}

func TestADamagedRecordIsReportedAndNothingIsTouched(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"a directory that is not the lab's": func(r *Record) { r.Dir = "/etc" },
		"a relative directory":              func(r *Record) { r.Dir = "bad1" },
		"a path that is not the lab's":      func(r *Record) { r.Paths = []string{"/run"} },
		"a control group of another":        func(r *Record) { r.Cgroups = []string{"/sys/fs/cgroup/cpu/system.slice"} },
		"a namespace of another":            func(r *Record) { r.Netns = "other" },
		"no owner":                          func(r *Record) { r.Owner = Process{} },
		"another's name":                    func(r *Record) { r.Owner.Start++; r.ID = "bad2" },
	} {
		t.Run(name, func(t *testing.T) {
			r := registry(t)
			rec := Record{ID: "bad1", Dir: filepath.Join(t.TempDir(), "bad1"), Owner: Process{PID: 1 << 30, Boot: "x"}}
			if err := os.Mkdir(rec.Dir, 0o755); err != nil {
				t.Fatal(err)
			}
			dir := rec.Dir
			change(&rec)
			e := &Entry{registry: r, record: rec}
			if err := e.Update(func(*Record) {}); err != nil {
				t.Fatal(err)
			}
			if rec.ID != "bad1" {
				if err := os.Rename(r.path(rec.ID), r.path("bad1")); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := r.Collect(); err == nil || len(got) != 0 {
				t.Errorf("collected %v, %v", got, err)
			}
			if _, err := os.Stat(dir); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHalfARecordIsReported(t *testing.T) {
	r := registry(t)
	if err := os.WriteFile(r.path("half1"), []byte(`{"id":"half1",`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Collect(); err == nil || !strings.Contains(err.Error(), "half1") {
		t.Errorf("got %v", err)
	}
}

func TestTwoLabsCannotShareARecord(t *testing.T) {
	r := registry(t)
	record(t, r, "same1", func(*Record) {})
	if _, err := r.Create("same1", "/x/same1"); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
}

func TestAliveIsFalseForAProcessThatEnded(t *testing.T) {
	cmd := exec.Command("cat") // ends when its input does
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() {
		t.Error("it runs and is called dead")
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if p.Alive() {
		t.Error("it ended and is called alive")
	}
	if err := p.Kill(time.Second); err != nil {
		t.Errorf("killing what is gone: %v", err)
	}
}

func TestMountsBelowListsTheDeepestFirst(t *testing.T) {
	const mountinfo = "1 0 8:1 / / rw - ext4 /dev/a rw\n" +
		"2 1 0:30 / /lab/x rw - overlay overlay rw\n" +
		"3 2 0:31 / /lab/x/h\\0401/root rw - overlay overlay rw\n" +
		"4 1 0:32 / /lab/xy rw - tmpfs tmpfs rw\n"
	if diff := cmp.Diff([]string{"/lab/x/h 1/root", "/lab/x"}, mountsBelow(mountinfo, "/lab/x")); diff != "" {
		t.Error(diff)
	}
}
