package shim

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// build builds the command once for the tests of this package.
func build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kpssh-shim")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v9.9.9 -X main.built=1700000000", "-o", path, "../cmd/kpssh-shim")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	return path
}

func TestCommand(t *testing.T) {
	shim := build(t)
	for name, tc := range map[string]struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		"version":                {[]string{"version"}, 0, "kpssh-shim v9.9.9 sha256:", ""},
		"help":                   {[]string{"-h"}, 0, "usage:\n", ""},
		"help of install":        {[]string{"install", "-h"}, 0, "example:\n  ./kpssh-shim install", ""},
		"help of enroll":         {[]string{"enroll", "-h"}, 0, "example:\n  /usr/libexec/kpssh/kpssh-shim enroll", ""},
		"help of doctor":         {[]string{"doctor", "--help"}, 0, "example:\n  /usr/libexec/kpssh/kpssh-shim doctor", ""},
		"an unknown command":     {[]string{"frobnicate"}, 2, "", "kpssh-shim: error: unknown command \"frobnicate\""},
		"an unknown flag":        {[]string{"enroll", "--frob"}, 2, "", "kpssh-shim: error: flag provided but not defined"},
		"a bad key":              {[]string{"install", "--authorized-key", "nonsense"}, 2, "", "not a public key line"},
		"an argument too many":   {[]string{"doctor", "x"}, 2, "", "usage:"},
		"a root stage with more": {[]string{"root-stage", "x"}, 2, "", "usage:"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			cmd := exec.Command(shim, tc.args...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != tc.code {
				t.Errorf("exit %d, want %d", code, tc.code)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || tc.stdout == "" && stdout.Len() > 0 {
				t.Errorf("stdout %q", &stdout)
			}
			if !strings.Contains(stderr.String(), tc.stderr) || tc.stderr == "" && stderr.Len() > 0 {
				t.Errorf("stderr %q", &stderr)
			}
		})
	}
}

// The root stage is for root; who is root already is tested as somebody else.
func TestRootStageIsForRoot(t *testing.T) {
	shim := build(t)
	cmd := exec.Command(shim, "root-stage")
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		// The binary is in a directory of root's.
		if err := os.Chmod(filepath.Dir(shim), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Dir(filepath.Dir(shim)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	_ = cmd.Run()
	if cmd.ProcessState.ExitCode() != 125 || !strings.HasPrefix(stderr.String(), "kpssh-shim: refused: not-root: ") {
		t.Errorf("exit %d, %q", cmd.ProcessState.ExitCode(), &stderr)
	}
}

func TestEveryWayOfSSHDIsTheEntry(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want bool
	}{
		"login shell with a command":     {[]string{"kpssh-shim", "-c", "/usr/libexec/kpssh/kpssh-shim"}, true},
		"login shell with a client's":    {[]string{"kpssh-shim", "-c", "install --authorized-key x"}, true},
		"login shell without a command":  {[]string{"-kpssh-shim"}, true},
		"forced command of other shells": {[]string{"/usr/libexec/kpssh/kpssh-shim"}, true},
		"nothing at all":                 {nil, true},
		"somebody at a shell":            {[]string{"kpssh-shim", "version"}, false},
	} {
		if got := isEntry(Process{Args: tc.args}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// relayed runs the relay against a root stage of the test's.
func relayed(t *testing.T, serve func(net.Conn), input string) (code int, stdout, stderr string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kpssh") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			serve(conn)
			_ = conn.Close()
		}
	}()
	files := map[string]*os.File{}
	for name, content := range map[string]string{"in": input, "out": "", "err": ""} {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		files[name] = f
	}
	paths := hostPaths("")
	paths.socket = filepath.Join(dir, "s")
	code = relay(Process{Stdin: files["in"], Stdout: files["out"], Stderr: files["err"]}, paths)
	read := func(name string) string {
		data, err := os.ReadFile(files[name].Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	return code, read("out"), read("err")
}

func TestRelay(t *testing.T) {
	echo := func(conn net.Conn) {
		_, _ = conn.Write([]byte("\nKPSSH/1\n"))
		_, _ = io.Copy(conn, conn)
	}
	big := strings.Repeat("0123456789", 50<<10)
	if code, out, errs := relayed(t, echo, big); code != 0 || out != "\nKPSSH/1\n"+big || errs != "" {
		t.Errorf("a session: exit %d, %d bytes, %q", code, len(out), errs)
	}
	refuse := func(conn net.Conn) { _ = refuseText(conn, signing.ReasonNotEnrolled, "no host.json") }
	if code, out, errs := relayed(t, refuse, ""); code != 125 || out != "" || errs != "kpssh-shim: refused: not-enrolled: \"no host.json\"\n" {
		t.Errorf("a text: exit %d, %q, %q", code, out, errs)
	}
	silent := func(net.Conn) {}
	if code, out, errs := relayed(t, silent, ""); code != 125 || out != "" || !strings.HasPrefix(errs, "kpssh-shim: refused: not-root: ") {
		t.Errorf("silence: exit %d, %q, %q", code, out, errs)
	}
}

func TestUnenrolledHostSaysSoInOneLine(t *testing.T) {
	w := newWorld(t)
	if err := os.Remove(filepath.Join(w.cfg.State, hostFile)); err != nil {
		t.Fatal(err)
	}
	c := w.child()
	text, err := io.ReadAll(c.conn)
	if err != nil {
		t.Fatal(err)
	}
	if code := c.wait(); code != 125 {
		t.Errorf("exit %d", code)
	}
	for where, got := range map[string]string{"the stream": string(text), "the log": c.logged()} {
		if strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "kpssh-shim: refused: not-enrolled: ") {
			t.Errorf("%s: %q", where, got)
		}
	}
}

func TestOnlyRootAndTheLoginUserMayAsk(t *testing.T) {
	a, b, err := socketpair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	h := makeHost(t)
	uid := os.Getuid()
	if uid != 0 {
		h.file(h.paths.passwd, h.passwd("/", "/", uid), 0o644)
	}
	if err := checkPeer(int(a.Fd()), h.hostSystem); err != nil {
		t.Errorf("uid %d: %v", uid, err)
	}
	if uid != 0 {
		h.file(h.paths.passwd, h.passwd("/", "/", uid+1), 0o644)
		if err := checkPeer(int(a.Fd()), h.hostSystem); err == nil {
			t.Errorf("uid %d was let in as user kpssh of another uid", uid)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := checkPeer(int(null.Fd()), h.hostSystem); err != nil {
		t.Errorf("no socket: %v", err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	conn, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f, err := conn.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := checkPeer(int(f.Fd()), h.hostSystem); err == nil {
		t.Error("a peer across the network was let in")
	}
}
