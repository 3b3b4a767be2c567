package shim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxSSHDFiles bounds how many files of sshd's configuration are read; sshd itself stops at a depth of 16.
const maxSSHDFiles = 256

// sshdWalk reads sshd's configuration in the order in which sshd does.
type sshdWalk struct {
	base, dropIn string // where relative Includes begin, and the file to stop at
	files        []string
	reached      bool
	// conditional are the Match lines before the drop-in that `sshd -T` cannot answer for: whether they hold depends
	// on who connects, and of several blocks that set an option the first counts.
	conditional []string
}

// walkSSHD reads the configuration up to the drop-in, or to its end where the drop-in is not included.
func walkSSHD(paths paths) *sshdWalk {
	w := &sshdWalk{base: filepath.Dir(paths.sshd), dropIn: paths.dropIn}
	w.file(paths.sshd)
	return w
}

func (w *sshdWalk) file(path string) {
	if path == w.dropIn {
		w.reached = true
		w.files = append(w.files, path)
		return
	}
	if slices.Contains(w.files, path) || len(w.files) == maxSSHDFiles {
		return
	}
	w.files = append(w.files, path)
	data, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		words := sshdWords(line)
		if len(words) < 2 {
			continue
		}
		switch strings.ToLower(words[0]) {
		case "include":
			w.include(words[1:])
		case "match":
			if conditional(words[1:]) {
				w.conditional = append(w.conditional, path+": "+strings.TrimSpace(line))
			}
		}
		if w.reached {
			return
		}
	}
}

func (w *sshdWalk) include(patterns []string) {
	for _, pattern := range patterns {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(w.base, pattern)
		}
		names, _ := filepath.Glob(pattern) // sorted, as sshd has it
		for _, name := range names {
			if w.file(name); w.reached {
				return
			}
		}
	}
}

// sshdWords splits a line as sshd does: a keyword may be joined to its first argument by "=", arguments may be quoted.
func sshdWords(line string) []string {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return nil
	}
	end := strings.IndexAny(line, " \t=")
	if end < 0 {
		return []string{line}
	}
	rest := strings.TrimLeft(line[end:], " \t=")
	words := strings.Fields(strings.ReplaceAll(rest, `"`, ""))
	return append([]string{line[:end]}, words...)
}

// conditional tells whether a Match line asks for more than who logs in, and may hold for user kpssh.
func conditional(criteria []string) bool {
	more := false
	for i := 0; i < len(criteria); i++ {
		name, value, joined := strings.Cut(strings.ToLower(criteria[i]), "=")
		if !joined && i+1 < len(criteria) && !alone(name) {
			i++
			value = criteria[i]
		}
		switch {
		case name == "user" && othersOnly(value):
			return false
		case name == "user", name == "group", alone(name):
		default:
			more = true
		}
	}
	return more
}

// alone are the criteria without a value.
func alone(name string) bool {
	return name == "all" || name == "canonical" || name == "final" || name == "invalid-user"
}

// othersOnly tells whether a list of user names has no pattern in it that user kpssh could match.
func othersOnly(list string) bool {
	return !strings.ContainsAny(list, "*?!") && !slices.Contains(strings.Split(list, ","), loginUser)
}
