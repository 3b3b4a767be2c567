package shim

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

// Exit codes of the command.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitRefused is what env, timeout and docker run use for a failure of their own.
	exitRefused = 125
)

// Process is what the command gets from its main.
type Process struct {
	Args                  []string
	Stdin, Stdout, Stderr *os.File
	Version, Built        string // as the linker set them, may be empty
}

const usage = `kpssh-shim is the host's end of karpenter-provider-ssh.

usage:
  kpssh-shim install [--authorized-key LINE]… [--root FILE]   set this host up, as root
  kpssh-shim enroll [--json] [--reset-trust]                  give it an identity, and say who it is
  kpssh-shim doctor [--json]                                  check its hardening
  kpssh-shim receipts [--json | --export]                     list what ran, with the proof
  kpssh-shim uninstall [--purge]                              take away what install set up
  kpssh-shim version                                          print version and digest
  kpssh-shim COMMAND -h                                       more about one command

As login shell of user kpssh, as forced command, and without a command, it connects its input and
output with the root stage; nothing that an SSH client sends on its command line is looked at.

example, as root, with the root document that "kpssh init" made:
  ./kpssh-shim install --authorized-key "$(cat id_ed25519.pub)" --root root.json
  /usr/libexec/kpssh/kpssh-shim enroll --json
`

// Main runs the command and returns its exit code.
func Main(p Process) int {
	paths := hostPaths("")
	if isEntry(p) {
		return relay(p, paths)
	}
	build := buildOf(p)
	verbs := map[string]func(Process, hostSystem, Build, []string) int{
		"root-stage": rootStage, "enroll": enroll, "doctor": doctor, "install": install, "uninstall": uninstall,
		"receipts": receipts, "version": version,
	}
	if verb, ok := verbs[p.Args[1]]; ok {
		return verb(p, hostSystem{paths: paths, run: tool}, build, p.Args[2:])
	}
	switch p.Args[1] {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(p.Stdout, usage)
		return exitOK
	}
	fmt.Fprintf(p.Stderr, "kpssh-shim: error: unknown command %.40q\n\n%s", p.Args[1], usage)
	return exitUsage
}

// isEntry tells the entry of an SSH session from somebody at a shell. sshd starts a login shell
// with -c for a command, and with a name that begins with "-" without one; as forced command of
// another shell there is no argument at all.
func isEntry(p Process) bool {
	if len(p.Args) == 0 || strings.HasPrefix(p.Args[0], "-") {
		return true
	}
	if len(p.Args) == 1 {
		return true
	}
	return p.Args[1] == "-c"
}

func buildOf(p Process) Build {
	b := Build{Version: p.Version}
	if n, err := strconv.ParseInt(p.Built, 10, 64); err == nil {
		b.Time = time.Unix(n, 0)
	}
	if b.Version != "" && !b.Time.IsZero() {
		return b
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.Time.IsZero() {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				b.Time, _ = time.Parse(time.RFC3339, s.Value)
			}
		}
	}
	if b.Version == "" {
		b.Version = strings.Trim(info.Main.Version, "()")
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}

const versionUsage = "usage: kpssh-shim version\n\nPrints the version and the digest of this binary.\n\nexample:\n  kpssh-shim version\n"

func version(p Process, sys hostSystem, build Build, args []string) int {
	if len(args) > 0 {
		if args[0] == "-h" || args[0] == "--help" {
			fmt.Fprint(p.Stdout, versionUsage)
			return exitOK
		}
		fmt.Fprint(p.Stderr, versionUsage)
		return exitUsage
	}
	digest, err := fileDigest("/proc/self/exe")
	if err != nil {
		return fail(p.Stderr, err)
	}
	fmt.Fprintf(p.Stdout, "kpssh-shim %s %s\n", build.Version, digest)
	return exitOK
}

func fail(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "kpssh-shim: error: %v\n", err)
	return exitFailed
}

func fileDigest(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return signing.Digest(data), nil
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
