package shim

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"golang.org/x/sys/unix"
)

// Finding is something about a host that its hardening asks to be otherwise. Names are wire's closed
// list; hellos carry them, and a controller's policy goes by them.
type Finding struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
	Fix    string `json:"fix"` // what to do about it
}

const doctorUsage = `usage: kpssh-shim doctor [--json]

Checks, as root, what stands between an SSH key and root on this host: what sshd will do for user
kpssh, who can change the shim, its keys and its state, and how the root stage is reached. Each
finding has a name, and a line on what to do about it. The host reports the names to the
controller in every session, which orders nothing but leave from a host with a finding that lets
somebody get around the shim (its flag --tolerated-findings says which do not).

example:
  /usr/libexec/kpssh/kpssh-shim doctor

exit: 0 nothing found, 1 findings, 2 usage
`

func doctor(p Process, sys hostSystem, build Build, args []string) int {
	flags := flag.NewFlagSet("doctor", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	asJSON := flags.Bool("json", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return usageExit(p, err, doctorUsage)
	}
	findings := sys.examine()
	if asJSON != nil && *asJSON {
		_ = json.NewEncoder(p.Stdout).Encode(findings)
	} else {
		for _, f := range findings {
			fmt.Fprintf(p.Stdout, "%-20s %s\n%-20s to mend it: %s\n", f.Name, f.Detail, "", f.Fix)
		}
		if len(findings) == 0 {
			fmt.Fprintln(p.Stdout, "nothing found")
		}
	}
	if len(findings) > 0 {
		return exitFailed
	}
	return exitOK
}

// usageExit prints usage to where it was asked for.
func usageExit(p Process, err error, text string) int {
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(p.Stdout, text)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(p.Stderr, "kpssh-shim: error: %v\n\n", err)
	}
	fmt.Fprint(p.Stderr, text)
	return exitUsage
}

// examine makes every check and returns the findings by name.
func (s hostSystem) examine() []Finding {
	found := []Finding{}
	note := func(name, format string, args ...any) {
		found = append(found, Finding{name, fmt.Sprintf(format, args...), wire.FindingOf(name).Fix})
	}
	s.examineUser(note)
	s.examineSSHD(note)
	s.examineKeys(note)
	s.examineFiles(note)
	s.examineEntry(note)
	s.examineSudo(note)
	if _, err := findShell(); err != nil {
		note(wire.FindingNoBash, "%v", err)
	}
	// Package sort, and not slices: a sort of its own for each type makes the program 20 KB larger.
	sort.SliceStable(found, func(i, j int) bool { return found[i].Name < found[j].Name })
	return found
}

type note func(name, format string, args ...any)

func (s hostSystem) examineUser(note note) {
	u, err := s.user()
	if err != nil {
		note(wire.FindingNoUser, "%v", err)
		return
	}
	if u.uid == 0 {
		note(wire.FindingPrivilegedUser, "user %s has uid 0", loginUser)
	}
	for _, group := range s.groupsOf(loginUser, u.gid) {
		if slices.Contains(rootGroups(), group) {
			note(wire.FindingPrivilegedUser, "user %s is in group %s, which leads to root", loginUser, group)
		}
	}
	if u.shell != s.paths.shim {
		note(wire.FindingLoginShell, "login shell is %q, not %q", u.shell, s.paths.shim)
	}
	if err := guarded(u.home, os.Geteuid()); err != nil {
		note(wire.FindingHome, "%v", err)
		return
	}
	names, err := os.ReadDir(u.home)
	if err != nil || len(names) > 0 {
		note(wire.FindingHome, "home %q is not empty", u.home)
	}
}

func (s hostSystem) examineSSHD(note note) {
	text, err := s.run("sshd", "-T", "-C", "user="+loginUser, "-C", "host=localhost", "-C", "addr=127.0.0.1")
	if err != nil {
		note(wire.FindingSSHDUnreadable, "%v", explain(err))
		return
	}
	examineSSHDConfig(text, s.paths, note)
	if earlier := walkSSHD(s.paths).conditional; len(earlier) > 0 {
		note(wire.FindingSSHDEarlierMatch, "read before the drop-in: %.400q", earlier)
	}
}

// examineSSHDConfig reads what sshd -T says that it will do for user kpssh.
func examineSSHDConfig(text string, paths paths, note note) {
	set := map[string][]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		set[key] = append(set[key], value)
	}
	is := func(key, want string) bool { return strings.Join(set[key], " ") == want }
	unless := func(ok bool, name string, keys ...string) {
		if ok {
			return
		}
		var now []string
		for _, k := range keys {
			now = append(now, k+" "+strings.Join(set[k], " "))
		}
		note(name, "sshd has %s", strings.Join(now, ", "))
	}
	unless(is("forcecommand", paths.shim), wire.FindingForceCommand, "forcecommand")
	unless(is("disableforwarding", "yes"), wire.FindingForwarding, "disableforwarding")
	unless(is("permittunnel", "no"), wire.FindingForwarding, "permittunnel")
	unless(is("permittty", "no"), wire.FindingTTY, "permittty")
	unless(is("permituserrc", "no"), wire.FindingUserRC, "permituserrc")
	unless(is("permituserenvironment", "no"), wire.FindingUserEnvironment, "permituserenvironment")
	unless(is("authorizedkeysfile", paths.keys), wire.FindingAuthorizedKeys, "authorizedkeysfile")
	for _, key := range []string{"authorizedkeyscommand", "trustedusercakeys"} {
		unless(len(set[key]) == 0 || is(key, "none"), wire.FindingOtherCredentials, key)
	}
	unless(is("authenticationmethods", "publickey"), wire.FindingPasswordLogin, "authenticationmethods")
	for _, value := range set["acceptenv"] {
		for name := range strings.FieldsSeq(value) {
			harmless := name == "KPSSH_ACCEPTS_NOTHING" || name == "LANG" || strings.HasPrefix(name, "LC_")
			unless(harmless, wire.FindingAcceptEnv, "acceptenv")
		}
	}
}

func (s hostSystem) examineKeys(note note) {
	data, err := os.ReadFile(s.paths.keys)
	if errors.Is(err, fs.ErrNotExist) {
		return // nobody gets in, which is no weakness
	}
	if err != nil {
		note(wire.FindingAuthorizedKeyMode, "%v", err)
		return
	}
	if err := guarded(s.paths.keys, os.Geteuid()); err != nil {
		note(wire.FindingAuthorizedKeyMode, "%v", err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		options, _, _ := strings.Cut(line, " ")
		if first, _, _ := strings.Cut(options, ","); first != "restrict" {
			note(wire.FindingUnrestrictedKey, "line %d of %q does not begin with restrict", n, s.paths.keys)
		}
	}
}

func (s hostSystem) examineFiles(note note) {
	uid := os.Geteuid()
	if err := guarded(s.paths.shim, uid); err != nil {
		note(wire.FindingShimMode, "%v", err)
	}
	for _, path := range []string{s.paths.config, s.paths.root} {
		if err := guarded(path, uid); err != nil && !errors.Is(err, fs.ErrNotExist) {
			note(wire.FindingConfigMode, "%v", err)
		}
	}
	d, err := openDir(s.paths.state, uid)
	if err == nil {
		d.close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		note(wire.FindingStateMode, "%v", err)
	}
}

func (s hostSystem) examineEntry(note note) {
	var st unix.Stat_t
	if unix.Lstat(s.paths.socket, &st) != nil {
		if _, err := os.Stat(s.paths.sudoers); err != nil {
			note(wire.FindingNoEntry, "neither %q nor %q is there", s.paths.socket, s.paths.sudoers)
		}
		return
	}
	u, err := s.user()
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() || st.Mode&0o7777 != 0o660 || err == nil && int(st.Gid) != u.gid {
		note(wire.FindingSocketMode, "%q has mode %#o, owner %d, group %d", s.paths.socket, st.Mode, st.Uid, st.Gid)
	}
}

// rootGroups are groups whose members become root without asking anybody.
func rootGroups() []string {
	return []string{"root", "sudo", "wheel", "admin", "docker", "lxd", "incus-admin", "libvirt", "disk", "shadow", "kmem"}
}

// examineSudo asks sudo what user kpssh may do, where there is one.
func (s hostSystem) examineSudo(note note) {
	if _, err := s.user(); err != nil {
		return
	}
	text, err := s.run("sudo", "-n", "-l", "-U", loginUser)
	if err != nil {
		return // no sudo, or one that lists nothing for whom it has no rule
	}
	_, rules, _ := strings.Cut(text, "may run the following commands")
	_, rules, _ = strings.Cut(rules, "\n") // the end of the heading
	for line := range strings.Lines(rules) {
		if !strings.HasPrefix(line, " ") {
			continue
		}
		rule := strings.Join(strings.Fields(line), " ")
		if rule != "" && rule != "(root) NOPASSWD: "+s.paths.shim+" root-stage" {
			note(wire.FindingSudoRule, "sudo lets user %s do %.200q", loginUser, rule)
		}
	}
}
