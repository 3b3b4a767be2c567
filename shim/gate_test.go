package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// gate is a FIFO that a script waits at until the test lets it go on.
type gate struct {
	t    testing.TB
	path string
}

func newGate(t testing.TB) *gate {
	t.Helper()
	g := &gate{t: t, path: filepath.Join(t.TempDir(), "gate")}
	if err := unix.Mkfifo(g.path, 0o600); err != nil {
		t.Fatal(err)
	}
	return g
}

// open waits for the script and lets it go on.
func (g *gate) open() {
	g.t.Helper()
	f, err := os.OpenFile(g.path, os.O_WRONLY, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := f.WriteString("go\n"); err != nil {
		g.t.Fatal(err)
	}
	_ = f.Close()
}
