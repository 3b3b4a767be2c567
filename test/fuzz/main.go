// Command fuzz runs the fuzz targets of this repository, a few at a time, and says in one line each how
// it went. A target that fails leaves its input in testdata/fuzz of its package, where every go test
// runs it from then on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fuzz", flag.ContinueOnError)
	each := flags.Duration("time", time.Minute, "how long each target is fuzzed")
	jobs := flags.Int("jobs", max(1, runtime.NumCPU()), "how many targets run at once, with one worker each")
	only := flags.String("run", ".", "targets to run, a regular expression over `PACKAGE TARGET`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	all, err := targets(".", pattern)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("there is no such target")
	}
	rounds := (len(all) + *jobs - 1) / *jobs
	fmt.Fprintf(out, "fuzzing %d targets for %v each, %d at a time: %v and the time to build them\n",
		len(all), *each, min(*jobs, len(all)), time.Duration(rounds)**each)
	began := time.Now()
	failed := fuzzAll(ctx, out, all, *each, *jobs)
	fmt.Fprintf(out, "fuzzed %d targets in %v\n", len(all), time.Since(began).Round(time.Second))
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d targets failed: %s", len(failed), len(all), strings.Join(failed, ", "))
	}
	return nil
}

// target is a fuzz target and the folder of its package.
type target struct{ dir, name string }

func (t target) String() string { return t.dir + " " + t.name }

var declared = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// targets finds what is declared, in the order of the names, so that the list is the same each time.
func targets(root string, pattern *regexp.Regexp) (all []target, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "vendor"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range declared.FindAllSubmatch(text, -1) {
			if t := (target{filepath.ToSlash(filepath.Dir(path)), string(found[1])}); pattern.MatchString(t.String()) {
				all = append(all, t)
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b target) int { return strings.Compare(a.String(), b.String()) })
	return all, err
}

// fuzzAll returns which targets failed.
func fuzzAll(ctx context.Context, out io.Writer, all []target, each time.Duration, jobs int) (failed []string) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		slots = make(chan struct{}, jobs)
	)
	for _, t := range all {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			text, err := fuzz(ctx, t, each)
			if err == nil {
				err = idle(text)
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				fmt.Fprintf(out, "ok    %-45s %s\n", t, summary(text))
				return
			}
			failed = append(failed, t.String())
			fmt.Fprintf(out, "FAIL  %s: %v\n%s", t, err, text)
		})
	}
	group.Wait()
	return failed
}

// fuzz runs one target. Fuzzing is a mode of go test, so that it sees to building and to the corpus. It would
// spend up to a minute, with one worker all there is, on making one interesting input smaller.
func fuzz(ctx context.Context, t target, each time.Duration) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(),
		"-fuzzminimizetime", "100x", "-parallel", "1", "./"+t.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var progress = regexp.MustCompile(`execs: (\d+) .*new interesting: (\d+) \(total: (\d+)\)`)

var baseline = regexp.MustCompile(`gathering baseline coverage: \d+/(\d+) completed`)

// idle says that a target tried nothing but the inputs that are kept, which every go test does.
func idle(text string) error {
	kept, tried := 0, 0
	for _, found := range baseline.FindAllStringSubmatch(text, -1) {
		kept, _ = strconv.Atoi(found[1])
	}
	for _, found := range progress.FindAllStringSubmatch(text, -1) {
		tried, _ = strconv.Atoi(found[1])
	}
	if tried <= kept {
		return fmt.Errorf("tried %d inputs, of which %d were known: give it more time", tried, kept)
	}
	return nil
}

// summary is what the last line of progress says.
func summary(text string) string {
	lines := progress.FindAllStringSubmatch(text, -1)
	if len(lines) == 0 {
		return ""
	}
	last := lines[len(lines)-1]
	return fmt.Sprintf("%s inputs, %s kept (%s new)", last[1], last[3], last[2])
}
