package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// shimPairs is how often each side of P2 and P3 runs; warmUp rounds before are not counted.
const (
	shimPairs = 120
	warmUp    = 5
)

// noOp is a script of 16 KiB that does nothing.
func noOp(size int) []byte {
	line := "# " + strings.Repeat("x", 61) + "\n"
	script := "true\n" + strings.Repeat(line, size/len(line)+1)
	return []byte(script[:size-1] + "\n")
}

const scriptSize = 16 << 10

// shimRuns measures one run of the same script as a process, from its start to its end:
//
//	the built shim: hello, roots and list checked, order, schema, durable started, script, durable receipt
//	a shim in shell that does the same with the host's tools
//	bash alone
//
// and beside it all checks of the shim without a run, and one check of a signature by ssh-keygen.
func (b *bench) shimRuns(ctx context.Context) ([]Result, error) {
	box, err := newSandbox()
	if err != nil {
		return nil, err
	}
	defer func() { _ = box.close() }()
	script := noOp(scriptSize)
	verified, err := newShimSide(box, b.shim(), script)
	if err != nil {
		return nil, err
	}
	shell, err := newShellSide(box, script)
	if err != nil {
		return nil, err
	}
	bare := bareSide(box, script)
	keygen, err := newKeygenSide(shell, script)
	if err != nil {
		return nil, err
	}
	start, err := b.startSide(box, bare)
	if err != nil {
		return nil, err
	}
	var p1, p2, p3, floor sides
	for i := range warmUp + shimPairs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var took [6]time.Duration
		// Every other round the other way round, so that none always runs in the wake of the same one.
		runs := []func() error{verified.run, shell.run, bare, verified.verify, keygen, start}
		for j := range runs {
			if i%2 == 1 {
				j = len(runs) - 1 - j
			}
			if took[j], err = timed(runs[j]); err != nil {
				return nil, err
			}
		}
		if i >= warmUp {
			p2.add(took[0], took[1])
			p3.add(took[0], took[2])
			p1.add(took[3], took[4])
			floor.add(took[5], took[2])
		}
		b.progress("rounds of six sides", i+1, warmUp+shimPairs)
	}
	if err := verified.examinedOnce(); err != nil {
		return nil, err
	}
	return []Result{
		goal{figure: "P1", what: "shim that checks an order and refuses it last / ssh-keygen -Y verify", most: 0.85, required: true, quantile: 0.5, unit: "s"}.judge(&p1),
		goal{figure: "P2", what: "verified run / the same as a shell script", most: 0.30, required: true, quantile: 0.5, unit: "s"}.judge(&p2),
		goal{figure: "P3", what: "verified run / bare bash -p", most: 5, asked: 3.5, required: true, quantile: 0.5, unit: "s"}.judge(&p3),
		goal{figure: "P3 floor", what: "a Go program that does nothing, then bash -p / bare bash -p", most: 3.5, quantile: 0.5, unit: "s"}.judge(&floor),
	}, nil
}

// shim is the built shim of this machine's architecture.
func (b *bench) shim() string { return filepath.Join(b.repo, "bin", "kpssh-shim-linux-"+stage.Arch) }

func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

// progress says, five times in all, how far something is.
func (b *bench) progress(what string, done, all int) {
	if done*5/all != (done-1)*5/all {
		b.say("  %d of %d %s", done, all, what)
	}
}

// scriptEnv is what scripts of the other two sides get; bash alone must load the same locale.
func scriptEnv() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
}

func bareSide(box *sandbox, script []byte) func() error {
	path := filepath.Join(box.dir, "script")
	err := os.WriteFile(path, script, 0o600)
	return func() error {
		if err != nil {
			return err
		}
		cmd := exec.Command("/bin/bash", "--noprofile", "--norc", "-p", path)
		cmd.Env = scriptEnv()
		return box.run(cmd)
	}
}

// startSide is what any shim in Go costs at least, whatever it checks: its start, and then the script.
func (b *bench) startSide(box *sandbox, script func() error) (func() error, error) {
	source, program := filepath.Join(box.dir, "nothing.go"), filepath.Join(box.dir, "nothing")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return nil, err
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building a program that does nothing: %v: %s", err, out)
	}
	return func() error {
		if err := box.run(exec.Command(program)); err != nil {
			return err
		}
		return script()
	}, nil
}

// shellSide is the shim in shell with its keys, and the request that it is sent every time.
type shellSide struct {
	box     *sandbox
	program string
	state   string
	request []byte
}

func (s *shellSide) run() error {
	cmd := exec.Command("/bin/bash", s.program, s.state)
	cmd.Stdin = bytes.NewReader(s.request)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := s.box.run(cmd); err != nil {
		return fmt.Errorf("running the shell shim: %v: %s", err, &stderr)
	}
	if !strings.Contains(stdout.String(), "BEGIN SSH SIGNATURE") {
		return fmt.Errorf("the shell shim answered %q", &stdout)
	}
	return nil
}
