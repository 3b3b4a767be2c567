//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// on is the stage that all tests of this package play on, one after the other. Each leaves it as it found it: the
// controller up, all hosts Available, no NodeClaims.
var on *stage.Stage

// deadline bounds one wait for something that takes seconds on an idle machine.
const deadline = 4 * time.Minute

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx := context.Background()
	repo, err := filepath.Abs("../..")
	if err == nil {
		// Often killed, it would each time wait for the lease of its predecessor.
		args := []string{"--probe-interval", "10s", "--disable-leader-election"}
		on, err = stage.Up(ctx, stage.Options{Repo: repo, Hosts: 2, ControllerArgs: args, Log: func(format string, args ...any) {
			fmt.Printf("  "+format+"\n", args...)
		}})
	}
	if err != nil {
		fmt.Printf("setting the stage: %v\n", err)
		return 1
	}
	code := m.Run()
	if code != 0 {
		if err := on.KeepLogs(); err == nil {
			fmt.Printf("The logs of all processes are kept in %s\n", on.LogDir())
		}
	}
	if err := on.Close(); err != nil {
		fmt.Printf("taking the stage down: %v\n", err)
		return 1
	}
	return code
}

// within returns a context that ends at the deadline; clean-up needs one too, when the test's own has ended.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// must fails the test at once.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition and fails the test when it does not come.
func until(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	must(t, on.Until(within(t), what, check))
}

// settled waits until the pool is as each test wants to find it.
func settled(t *testing.T) {
	t.Helper()
	until(t, "an idle pool", on.Idle)
}
