package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// TestMain lets the scripts of testdata run the real main.
func TestMain(m *testing.M) {
	leaveTerminal()
	testscript.Main(m, map[string]func(){"kpssh": main, "kubectl-kpssh": main})
}

// leaveTerminal gives up the terminal of whoever runs the tests, for this process and what it starts: kpssh asks there
// for a passphrase, and would wait for an answer in a test of what it says without a terminal.
func leaveTerminal() {
	if sid, err := unix.Getsid(0); err != nil || sid == os.Getpid() {
		return // for the leader of a session it would hang up on all the others
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return // there is none
	}
	defer func() { _ = tty.Close() }()
	if err := unix.IoctlSetInt(int(tty.Fd()), unix.TIOCNOTTY, 0); err != nil {
		panic("giving up the terminal: " + err.Error())
	}
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sshhost": startHost, "closedport": closedPort, "apiserver": startAPIServer, "pool": startPool, "hosts": setHosts, "makeorder": makeOrder,
			"makeaudit": makeAudit, "transit": startTransit, "cosignkey": makeCosignKey,
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
	})
}
