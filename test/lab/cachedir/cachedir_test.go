package cachedir

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func write(name string) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600)
	}
}

func TestFillMakesAnEntryOnce(t *testing.T) {
	root, calls := t.TempDir(), atomic.Int32{}
	fill := func(ctx context.Context, dir string) error {
		calls.Add(1)
		return write("f")(ctx, dir)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := Fill(t.Context(), root, "a/b", nil, fill)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(path, "f")); err != nil {
				t.Errorf("an entry was handed out before it was whole: %v", err)
			}
		})
	}
	wg.Wait()
	if got := calls.Load(); got != 1 {
		t.Errorf("filled %d times, want once", got)
	}
}

func TestFillLeavesNothingWhenItFails(t *testing.T) {
	root, broken := t.TempDir(), errors.New("broken")
	_, err := Fill(t.Context(), root, "a", nil, func(ctx context.Context, dir string) error {
		return errors.Join(write("half")(ctx, dir), broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v, want the fill's own error", err)
	}
	left, err := filepath.Glob(filepath.Join(root, ".a.fill-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if exists(filepath.Join(root, "a")) {
		t.Error("a failed fill became an entry")
	}
}

func TestFillRemovesWhatADeadFillLeft(t *testing.T) {
	root := t.TempDir()
	dead := filepath.Join(root, ".a.fill-123")
	if err := os.MkdirAll(dead, 0o755); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(root, ".ab.fill-123") // another entry's fill may be alive
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Fill(t.Context(), root, "a", nil, write("f")); err != nil {
		t.Fatal(err)
	}
	if exists(dead) {
		t.Error("a dead fill is still there")
	}
	if !exists(other) {
		t.Error("another entry's fill was removed")
	}
}

func TestLockWaitsNoLongerThanItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	unlock, err := Lock(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
	unlock()
	unlock2, err := Lock(t.Context(), path, nil)
	if err != nil {
		t.Fatalf("a lock that was given up cannot be taken: %v", err)
	}
	unlock2()
}

func TestKillTogetherEndsWhatTheCommandStarted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "sleep 600 & echo started; wait")
	KillTogether(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(out); err != nil { // ends only when nobody holds the pipe any more
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a killed command ended well")
	}
}
