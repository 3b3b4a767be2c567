package dispatch_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// rawHost is a host without a shim: commands run on this machine, as this user, with a sudo that is
// the given shell script.
func rawHost(t *testing.T, sudo string) dispatch.Host {
	t.Helper()
	bin := t.TempDir()
	for name, text := range map[string]string{
		"sudo": sudo,
		"id":   "echo 1000\n", // this machine's tests may run as root, the host's user is not
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	server := remotetest.New(t, remotetest.Config{Handler: func(s *remotetest.Session) int {
		cmd := exec.Command("sh", "-c", s.Command)
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "CANARY_ENV=1"}
		cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return 1
		}
		_, _ = io.WriteString(s.Stdout, "Welcome to this host\n")
		if err := cmd.Start(); err != nil {
			return 1
		}
		go func() {
			_, _ = io.Copy(stdin, s.Stdin)
			_ = stdin.Close()
		}()
		err = cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		return 0
	}})
	return dispatch.Host{Name: "raw", Target: server.Target(remotetest.Key(t)), Mode: dispatch.Raw}
}

const goodSudo = `[ "$1" = -n ] || exit 9; shift; exec "$@"` + "\n"

func rawDispatcher(t *testing.T) *dispatch.Dispatcher {
	return dispatchtest.NewWorld(t).Dispatcher(fast, func(o *dispatch.Options) { o.AllowRaw = true })
}

func rawRequest(script string) dispatch.Request {
	r := joinRequest()
	r.Script = []byte(script)
	return r
}

func TestRawRunsTheScriptWithItsEnvironment(t *testing.T) {
	host := rawHost(t, goodSudo)
	r := rawRequest("echo \"$KPSSH_NODE_NAME/$KPSSH_VAR_X/$CANARY_ENV\"\nread -r line || echo no-stdin\necho token ${#KPSSH_BOOTSTRAP_TOKEN} >&2\ntr '\\0' ' ' </proc/$$/cmdline\n")
	r.Parameters["KPSSH_VAR_X"] = `a'b"c$(id)` + "`"
	result, err := rawDispatcher(t).Run(t.Context(), host, r)
	if err != nil {
		t.Fatal(err)
	}
	want := `node-1/a'b"c$(id)` + "`" + `/1 | no-stdin | token 23 | bash --noprofile --norc /dev/fd/3`
	if result.Output != want || result.Receipt != nil {
		t.Errorf("got %q, want %q", result.Output, want)
	}
}

// k0sctl#437, R26: sudo's secure_path hides /usr/local/bin; a script finds what is there all the same, and so does a probe,
// which takes the same way. The shim has a PATH of its own too: shim.TestScriptSeesNothingButItsParameters.
func TestRawDoesNotGoBySecurePath(t *testing.T) {
	securePath := `[ "$1" = -n ] || exit 9; shift; PATH=/usr/bin:/bin; export PATH; exec "$@"` + "\n"
	host := rawHost(t, securePath)
	result, err := rawDispatcher(t).Run(t.Context(), host, rawRequest("echo $PATH\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"; result.Output != want {
		t.Errorf("PATH is %q, want %q", result.Output, want)
	}
}

// k0smotron#964, R23: the script itself runs under sudo, and nothing is uploaded that an unprivileged user would have to
// put somewhere. deckhouse#8502, deckhouse PR#10655, R25: a probe takes that same way, so that what bars a phase bars it.
func TestRawTakesOneWayToRoot(t *testing.T) {
	log := filepath.Join(t.TempDir(), "sudo")
	host := rawHost(t, `printf '%s\n' "$*" >>`+log+"\n"+goodSudo)
	d := rawDispatcher(t)
	if _, err := d.Run(t.Context(), host, rawRequest("true\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Probe(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(got)), "\n")
	if len(lines) != 2 {
		t.Fatalf("sudo was called with %q", lines)
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "-n timeout -k 10 ") || !strings.HasSuffix(line, " bash --noprofile --norc -s") {
			t.Errorf("sudo was called with %q", line)
		}
	}
	barred := rawHost(t, "echo 'sudo: PAM account management error: Permission denied' >&2; exit 1\n")
	_, err = d.Probe(t.Context(), barred)
	fails(t, err, dispatch.Refused, dispatch.ReasonSudoNotPermitted)
}

func TestRawIsRefusedUnlessAllowed(t *testing.T) {
	host := rawHost(t, goodSudo)
	d := dispatchtest.NewWorld(t).Dispatcher(fast)
	_, err := d.Run(t.Context(), host, rawRequest("echo hello"))
	fails(t, err, dispatch.Config, dispatch.ReasonRawNotAllowed)
	_, err = d.Probe(t.Context(), host)
	fails(t, err, dispatch.Config, dispatch.ReasonRawNotAllowed)
}

func TestRawFailures(t *testing.T) {
	for name, test := range map[string]struct {
		sudo, script string
		class        dispatch.Class
		reason       string
	}{
		"exit status": {goodSudo, "echo broken; exit 3", dispatch.ScriptFailed, dispatch.ReasonExit},
		"deadline":    {goodSudo, "echo begun; sleep 60", dispatch.Timeout, dispatch.ReasonDeadline},
		// Field reports R21 (k3sup#100, k0sctl#517, skypilot#4795, skypilot#5030) and R22 (neonKUBE#504, supermarket#1314, cloudstack PR#288).
		"a password is asked for":    {"echo 'sudo: a password is required' >&2; exit 1\n", "true", dispatch.Refused, dispatch.ReasonSudoPassword},
		"the same, by sudo-rs":       {"echo 'sudo: interactive authentication is required' >&2; exit 1\n", "true", dispatch.Refused, dispatch.ReasonSudoPassword},
		"a terminal is asked for":    {"echo 'sudo: sorry, you must have a tty to run sudo' >&2; exit 1\n", "true", dispatch.Refused, dispatch.ReasonSudoRequiresTTY},
		"sudo is not for this user":  {"echo 'sudo: user is not in the sudoers file.' >&2; exit 1\n", "true", dispatch.Refused, dispatch.ReasonSudoNotPermitted},
		"no sudo":                    {"exit 127\n", "true", dispatch.Refused, dispatch.ReasonSudoUnavailable},
		"a sudo that does nothing":   {"exit 0\n", "true", dispatch.Untrusted, dispatch.ReasonNoHello},
		"a NUL byte in the script":   {goodSudo, "echo \x00", dispatch.Config, dispatch.ReasonRequest},
		"a sudo that never stops":    {"while :; do echo noise; done\n", "true", dispatch.Untrusted, dispatch.ReasonProtocol},
		"a script that floods":       {goodSudo, "yes | head -c 3000000; exit 4", dispatch.ScriptFailed, dispatch.ReasonExit},
		"a script that kills itself": {goodSudo, "kill -KILL $$", dispatch.ScriptFailed, dispatch.ReasonExit},
	} {
		t.Run(name, func(t *testing.T) {
			r := rawRequest(test.script)
			r.Timeout = time.Second
			_, err := rawDispatcher(t).Run(t.Context(), rawHost(t, test.sudo), r)
			e := failure(t, err, test.class, test.reason)
			if len(e.Output) > 8<<10 {
				t.Errorf("%d bytes of output", len(e.Output))
			}
			if test.class == dispatch.ScriptFailed && test.reason == dispatch.ReasonExit && e.ExitCode == 0 {
				t.Error("no exit code")
			}
		})
	}
}

func TestRawNamesOfParametersAreNotCode(t *testing.T) {
	r := rawRequest("true")
	r.Parameters["KPSSH_X=1; touch /tmp/x #"] = "1"
	_, err := rawDispatcher(t).Run(t.Context(), rawHost(t, goodSudo), r)
	fails(t, err, dispatch.Config, dispatch.ReasonRequest)
}

func TestRawSecretsAreInNoText(t *testing.T) {
	for _, exit := range []int{0, 1} {
		r := rawRequest(fmt.Sprintf("set -x\necho \"$KPSSH_BOOTSTRAP_TOKEN\" | base64\n: \"$KPSSH_BOOTSTRAP_TOKEN\"\nexit %d\n", exit))
		result, err := rawDispatcher(t).Run(t.Context(), rawHost(t, goodSudo), r)
		text := ""
		if result != nil {
			text = result.Output
		}
		if err != nil {
			text = err.Error()
			var e *dispatch.Error
			if errors.As(err, &e) {
				text += e.Output
			}
		}
		if !strings.Contains(text, "redacted") || strings.Contains(text, "0123456789abcdef") || strings.Contains(text, "YWJjZGVm") {
			t.Errorf("got %q", text)
		}
	}
}

func TestRawProbeTellsOfThisMachine(t *testing.T) {
	probe, err := rawDispatcher(t).Probe(t.Context(), rawHost(t, goodSudo))
	if err != nil {
		t.Fatal(err)
	}
	f := probe.Facts
	if f.CPUs < 1 || f.MemoryBytes < 1<<20 || f.Arch == "" || f.KernelArch == "" || f.BootID == "" || f.Kernel == "" ||
		f.PageSize < 4096 || f.DiskFreeBytes < 1 || f.Hostname == "" || f.KubeletState == "" || f.Cgroup == "" || time.Since(f.Clock).Abs() > time.Minute {
		t.Errorf("got %+v", f)
	}
	if probe.Hello != nil || probe.HostKeyFingerprint == "" {
		t.Errorf("got %+v", probe)
	}
	_, err = rawDispatcher(t).Probe(t.Context(), rawHost(t, "echo 'sudo: a password is required' >&2; exit 1\n"))
	fails(t, err, dispatch.Refused, dispatch.ReasonSudoPassword)
}

// k0smotron#1596, R58: what is left of a membership shows without a shim too.
func TestRawProbeNamesLeftovers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho\nread -r _\n"), 0o700); err != nil { //nolint:gosec // is run
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // it has its name by now
		t.Fatal(err)
	}
	want := fmt.Sprintf("process:kubelet[%d]", cmd.Process.Pid)
	for _, there := range []bool{true, false} {
		probe, err := rawDispatcher(t).Probe(t.Context(), rawHost(t, goodSudo))
		if err != nil {
			t.Fatal(err)
		}
		if probe.Facts.Leftovers == nil || slices.Contains(probe.Facts.Leftovers, want) != there {
			t.Errorf("leftovers are %#v, %q among them is %v", probe.Facts.Leftovers, want, there)
		}
		_ = in.Close()
		_ = cmd.Wait()
	}
}

func TestRawHostThatGoesAwayIsInterrupted(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	server.SetHandler(func(s *remotetest.Session) int { server.Cut(); <-s.Done; return -1 })
	host := dispatch.Host{Name: "raw", Target: server.Target(remotetest.Key(t)), Mode: dispatch.Raw}
	_, err := rawDispatcher(t).Run(t.Context(), host, rawRequest("true"))
	fails(t, err, dispatch.Unreachable, dispatch.ReasonInterrupted)
	r := rawRequest("true")
	r.Phase = signing.PhaseLeave
	if e := failure(t, err, dispatch.Unreachable, dispatch.ReasonInterrupted); e.IsConfiguration() {
		t.Error("configuration is to blame")
	}
}
