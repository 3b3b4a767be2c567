package shim

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

// keptPosture is the doctor's last answer, good for as long as nothing that it looked at changed:
// asking sshd costs more than a whole session.
type keptPosture struct {
	Seen    string  `json:"seen"`
	Posture Posture `json:"posture"`
}

// posture is what a hello says of the host's hardening.
func posture(sys hostSystem) Posture {
	seen := sys.seen()
	file := filepath.Join(sys.paths.runtime, "doctor.json")
	if kept, err := readKept(file); err == nil && kept.Seen == seen {
		return kept.Posture
	}
	answered, run := true, sys.run
	sys.run = func(name string, args ...string) (string, error) {
		out, err := run(name, args...)
		answered = answered && isAnswer(name, err)
		return out, err
	}
	p := Posture{}
	p.ShimDigest, _ = fileDigest("/proc/self/exe")
	for _, f := range sys.examine() {
		p.Findings = append(p.Findings, f.Name)
	}
	slices.Sort(p.Findings)
	p.Findings = slices.Compact(p.Findings)
	if answered {
		keep(file, keptPosture{Seen: seen, Posture: p})
	}
	return p
}

// isAnswer tells whether a tool said something that holds until a file changes, which that it is not there does too. A
// tool that was killed at its time limit or could not be started has not, and sshd -T also fails for reasons that pass.
// That sudo ends with a failure for a user without a rule is its answer.
func isAnswer(name string, err error) bool {
	var exit *exec.ExitError
	said := name != "sshd" && errors.As(err, &exit) && exit.ExitCode() >= 0
	return err == nil || said || errors.Is(err, exec.ErrNotFound)
}

// seen stands for everything that the doctor looks at: a change of any of it shows.
func (s hostSystem) seen() string {
	files := []string{
		s.paths.shim, s.paths.config, s.paths.root, s.paths.keys, s.paths.socket, s.paths.home,
		s.paths.sudoers, s.paths.passwd, s.paths.group, s.paths.sshd, s.paths.sshdDropIns,
		strings.TrimSuffix(filepath.Dir(s.paths.sudoers), ".d"),
	}
	for _, name := range []string{"sshd", "sudo", "sudo-rs", "bash"} {
		if path, err := find(name); err == nil {
			files = append(files, path) // another version has other defaults
		}
	}
	files = append(files, walkSSHD(s.paths).files...)
	for _, pattern := range []string{s.paths.sshdDropIns + "/*", filepath.Dir(s.paths.sudoers) + "/*"} {
		more, _ := filepath.Glob(pattern)
		files = append(files, more...)
	}
	// By hand, as this is for every session.
	all := make([]byte, 0, 8<<10)
	state := func(path string, whole bool) {
		var st unix.Stat_t
		errno, _ := unix.Stat(path, &st).(unix.Errno) //nolint:errorlint // a system call wraps nothing
		device := uint64(st.Dev)                      //nolint:unconvert // 32 bits elsewhere
		numbers := []uint64{uint64(errno), device, st.Ino, uint64(st.Mode), uint64(st.Uid), uint64(st.Gid)}
		if whole {
			numbers = append(numbers, uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano()))
		}
		all = append(all, path...)
		for _, n := range numbers {
			all = strconv.AppendUint(append(all, ' '), n, 10)
		}
		all = append(all, '\n')
	}
	state("/proc/self/exe", true)
	above := map[string]bool{s.paths.state: true}
	for _, path := range files {
		state(path, true)
		for dir := filepath.Dir(path); !above[dir]; dir = filepath.Dir(dir) {
			above[dir] = true
		}
	}
	// What is in these changes all the time; only who may change it counts.
	for _, path := range slices.Sorted(maps.Keys(above)) {
		state(path, false)
	}
	return signing.Digest(all)
}

// readKept believes the file only when nobody else can have written it.
func readKept(path string) (kept keptPosture, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return kept, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return kept, err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return kept, os.ErrPermission
	}
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return kept, err
	}
	return kept, json.Unmarshal(data, &kept)
}

// keep is for speed only: where it cannot write, the doctor is asked again.
func keep(path string, kept keptPosture) {
	if guarded(filepath.Dir(path), os.Geteuid()) != nil {
		return
	}
	if data, err := json.Marshal(kept); err == nil {
		_, _ = put(path, data, 0o600)
	}
}
