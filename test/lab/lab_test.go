package lab

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQuoteKeepsArgumentsAsGiven(t *testing.T) {
	for name, words := range map[string][]string{
		"plain words":           {"a", "b"},
		"spaces and globs":      {"a b", "*", "$HOME", "`id`"},
		"single quotes":         {"it's", "'", "''"},
		"an empty word":         {"", "x", ""},
		"newlines, backslashes": {"a\nb", `\`, `\'`},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command("sh", "-c", "printf '%s\\0' "+quote(words)).Output()
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
			if diff := cmp.Diff(words, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInGroupsJoinsEveryGroupThenBecomesTheProgram(t *testing.T) {
	groups := []string{t.TempDir(), filepath.Join(t.TempDir())}
	argv := inGroups(groups, []string{"sh", "-c", `cat "$1"/cgroup.procs "$2"/cgroup.procs; echo $$`, "sh", groups[0], groups[1]})
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(string(out))
	if len(pids) != 3 || pids[0] != pids[2] || pids[1] != pids[2] {
		t.Errorf("the groups and the program say %v, want one process three times", pids)
	}
}

func TestInGroupsDoesNotRunAProgramOutsideItsGroup(t *testing.T) {
	argv := inGroups([]string{filepath.Join(t.TempDir(), "absent")}, []string{"echo", "ran"})
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 125 || len(out) > 0 {
		t.Errorf("got %q, %v, want exit code 125 and no output", out, err)
	}
}

func TestMissingPackagesNamesOnlyWhatIsMissing(t *testing.T) {
	got := missingPackages(hostTools(), func(name string) (string, error) {
		if name == "ip" || name == "debootstrap" {
			return "", exec.ErrNotFound
		}
		return "/bin/" + name, nil
	})
	if diff := cmp.Diff([]string{"iproute2", "debootstrap"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestUnionKeepsOrderAndDropsDoubles(t *testing.T) {
	if diff := cmp.Diff([]string{"a", "b", "c"}, union([]string{"a", "b"}, []string{"b", "c", "c"})); diff != "" {
		t.Error(diff)
	}
}

func TestAddHostRefusesNamesThatAreNoHostNames(t *testing.T) {
	for name, host := range map[string]string{
		"nothing": "", "upper case": "Host", "a path": "../x", "a leading dash": "-x", "too long": strings.Repeat("a", 64),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := (&Lab{}).AddHost(t.Context(), HostOptions{Name: host}); err == nil {
				t.Error("it was taken")
			}
		})
	}
}

func TestFirstProcessFindsTheMachineBelowItsLauncher(t *testing.T) {
	proc := t.TempDir()
	for pid, status := range map[string]string{
		"10": "PPid:\t1\nNSpid:\t10\n",           // the launcher
		"11": "PPid:\t10\nNSpid:\t11\n",          // something of its own
		"12": "PPid:\t11\nNSpid:\t12\t1\n",       // the machine
		"13": "PPid:\t12\nNSpid:\t13\t7\t1\n",    // a container in the machine
		"14": "PPid:\t12\nNSpid:\t14\t8\n",       // a service in the machine
		"20": "PPid:\t1\nNSpid:\t20\n",           // another launcher
		"21": "PPid:\t20\nNSpid:\t21\t1\n",       // and its machine
		"30": "PPid:\tnonsense\nNSpid:\t30\t1\n", // nobody's
	} {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "status"), []byte(status), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for ancestor, want := range map[int]int{10: 12, 20: 21} {
		if got, err := firstProcess(proc, ancestor); err != nil || got != want {
			t.Errorf("below %d: got %d, %v, want %d", ancestor, got, err, want)
		}
	}
	if got, err := firstProcess(proc, 12); err == nil {
		t.Errorf("below the machine itself: got %d", got)
	}
}
