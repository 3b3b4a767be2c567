package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMatchBlocksThatAreReadBeforeTheDropIn(t *testing.T) {
	const include = "Include /etc/ssh/sshd_config.d/*.conf\n"
	for name, tc := range map[string]struct {
		main    string
		dropIns map[string]string
		want    int
	}{
		"none":                              {include + "Match Address 10.0.0.0/8\n PermitTTY yes\n", map[string]string{"99-later.conf": "Match Host x\n"}, 0},
		"by address, in the main file":      {"Match Address 10.0.0.0/8\n PermitTTY yes\nMatch all\n" + include, nil, 1},
		"by host and user":                  {"match user kpssh host *.example.org\n" + include, nil, 1},
		"with equals signs and quotes":      {"Match=LocalPort=22\nMatch \"User=*\" Exec=\"/bin/true\"\n" + include, nil, 2},
		"in a drop-in that sorts first":     {include, map[string]string{"00-aaa.conf": "Match Version x\n"}, 1},
		"in a file that a drop-in includes": {include, map[string]string{"00-aaa.conf": "Include /etc/ssh/more/*\n"}, 1},
		"relative Include":                  {"Include more/a.conf\n" + include, nil, 1},
		"for user kpssh whoever asks":       {"Match User kpssh\n PermitTTY yes\nMatch Group x\nMatch all\n" + include, nil, 0},
		"for somebody else":                 {"Match User git,backup Address 10.0.0.1\n" + include, nil, 0},
		"for all but somebody else":         {"Match User !git,* Address 10.0.0.1\n" + include, nil, 1},
		"in a comment":                      {"# Match Address 10.0.0.1\n" + include, nil, 0},
		"a drop-in that nothing includes":   {"Match Address 10.0.0.1\n", nil, 1},
		"a file that includes itself":       {"Include sshd_config\nMatch Address 10.0.0.1\n" + include, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			prefix := strings.TrimSuffix(h.paths.sshd, "/etc/ssh/sshd_config")
			put := func(path, text string) {
				h.file(prefix+path, strings.ReplaceAll(text, "/etc/ssh/", prefix+"/etc/ssh/"), 0o644)
			}
			put("/etc/ssh/sshd_config", tc.main)
			put("/etc/ssh/sshd_config.d/00-kpssh.conf", "Match User kpssh\n")
			put("/etc/ssh/more/a.conf", "Match RDomain x\n")
			for file, text := range tc.dropIns {
				put("/etc/ssh/sshd_config.d/"+file, text)
			}
			got := walkSSHD(h.paths)
			if len(got.conditional) != tc.want {
				t.Errorf("found %q, want %d", got.conditional, tc.want)
			}
			if tc.want > 0 {
				return
			}
			if last := got.files[len(got.files)-1]; !got.reached || last != h.paths.dropIn {
				t.Errorf("the walk ended at %q", last)
			}
		})
	}
}

func TestConfigurationThatCannotBeReadIsNoEarlierMatch(t *testing.T) {
	h := makeHost(t)
	if err := os.RemoveAll(filepath.Dir(h.paths.sshd)); err != nil {
		t.Fatal(err)
	}
	if w := walkSSHD(h.paths); w.reached || len(w.conditional) > 0 { // sshd -T fails, which is a finding
		t.Errorf("%+v", w)
	}
}
