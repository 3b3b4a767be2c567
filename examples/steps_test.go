package examples_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// What a script changes on a host is done by these, which only write down what they were told. Real
// runs are the lab's; here each step in turn is made to fail.
var fakes = map[string]string{
	"apt-get":    `for p in "$@"; do case $p in -*|*=*) ;; *) for c in $(provides "$p"); do tool "$c"; done ;; esac; done`,
	"dnf":        `for p in "$@"; do for c in $(provides "$p"); do tool "$c"; done; done`,
	"curl":       `while [[ $1 != -o ]]; do shift; done; printf '#!/bin/bash\necho "Kubernetes v1.35.4"\n' >"$2"`,
	"containerd": `echo "containerd 2"`,
	"kubelet":    `echo "Kubernetes v1.35.4"`,
	"uname":      `echo x86_64`,
	"modprobe":   ``, "sysctl": ``, "umount": `sed -i "\\# ${*: -1} #d" "$T/proc/self/mountinfo"`, "journalctl": `echo "kubelet: no"`,
	"nft": `case "$*" in "list tables") cat "$T/nft" ;; delete*) : >"$T/nft" ;; esac`, "swapon": ``, "swapoff": `sed -i 2,\$d "$T/proc/swaps"`,
	"runc": ``, "conntrack": ``, "iptables": ``, "ip6tables": ``, "tar": `mkdir -p "$T/opt/cni/bin"; loopback "$T/opt/cni/bin"`,
	"dpkg-query": ``, "rpm": `exit 1`, "sleep": ``,
	"ip":                `case "$*" in *address*) echo "2: eth0 inet 10.0.0.11/24" ;; *link\ show*) cat "$T/links" ;; *delete*) sed -i "/: $3:/d" "$T/links" ;; esac`,
	"iptables-save":     `cat "$T/rules"`,
	"ip6tables-save":    `exit 1`,
	"iptables-restore":  `cat >"$T/restored"; printf '*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n' >"$T/rules"`,
	"ip6tables-restore": `cat >/dev/null`,
	"ctr":               `case "$*" in *ls*) echo c1 ;; esac`,
	"crictl":            ``,
	"systemctl": `case "$*" in
  "start kubelet") mkdir -p "$T/var/lib/kubelet/pki"; echo cert >"$T/var/lib/kubelet/pki/kubelet-client-current.pem"; echo conf >"$T/etc/kubernetes/kpssh/kubelet.conf"; touch "$T/active.kubelet" ;;
  "start containerd") touch "$T/active.containerd" ;;
  "stop "*) rm -f "$T/active.$2" ;;
  "disable --now "*) rm -f "$T/active.$3" ;;
  *is-active*) [[ -e $T/active.${*: -1} ]] ;;
  *is-enabled*) echo disabled; exit 1 ;;
  *LoadState*) echo loaded ;;
  *NRestarts*) echo 0 ;;
esac`,
}

// real are tools that look or work on files: they do their work, unless their turn has come to fail.
var real = []string{
	"awk", "base64", "cat", "chmod", "cmp", "cp", "cut", "find", "grep", "head", "install", "ln", "md5sum", "mkdir",
	"mv", "rm", "rmdir", "sed", "sha256sum", "sort", "tail", "timeout", "tr",
}

// preamble of every fake and wrapper: writes the call down, and fails it when it is its turn.
const preamble = `#!/bin/bash
T=%[1]q
call="%[2]s $*"
call=${call//"$T"/}
printf '%%s\n' "${call//$'\n'/ }" >>"$T/calls"
if [[ ${call//$'\n'/ } == "${KPSSH_TEST_FAIL-}" ]]; then exit 1; fi
PATH=/usr/bin:/bin
loopback() { printf '#!/bin/bash\n' >"$1/loopback"; chmod 0755 "$1/loopback"; }
tool() { cp "$T/store/$1" "$T/bin/$1"; }
provides() { case $1 in containerd | runc | kubelet*) echo "${1%%[=-]*}" ;; conntrack*) echo conntrack ;;
  iptables) echo iptables ;; iproute*) echo ip ;; kmod) echo modprobe ;; procps*) echo sysctl ;;
  containernetworking-plugins) mkdir -p "$T/usr/lib/cni"; loopback "$T/usr/lib/cni" ;; esac; }
`

// mktemp with names that are the same in each run.
const fakeMktemp = `n=$(($(cat "$T/n" 2>/dev/null || echo 0) + 1)); echo "$n" >"$T/n"
for last in "$@"; do :; done
case $last in *XXXXXX) path=${last%%XXXXXX}$n ;; *) path=$T/tmp.$n ;; esac
case $1 in -d) mkdir -p "$path" ;; *) : >"$path" ;; esac
echo "$path"`

// sandbox is a directory that a script takes for the host.
type sandbox struct {
	dir, script string
	env         []string
}

var hostPaths = regexp.MustCompile(`(^|[\s"'=<>(:-])(/(?:etc|var/lib|run|sys|proc|opt|usr|lib)/)`)

func newSandbox(t *testing.T, phase profile.Phase, without []string) *sandbox {
	t.Helper()
	s := &sandbox{dir: t.TempDir()}
	write := func(path, content string, mode os.FileMode) {
		path = filepath.Join(s.dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, body := range fakes {
		body = fmt.Sprintf(preamble, s.dir, name) + body + "\n"
		write("store/"+name, body, 0o755)
		if !slices.Contains(without, name) {
			write("bin/"+name, body, 0o755)
		}
	}
	for _, name := range real {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		write("bin/"+name, fmt.Sprintf(preamble, s.dir, name)+"PATH=$T/bin:$PATH exec "+path+` "$@"`+"\n", 0o755)
	}
	write("bin/mktemp", fmt.Sprintf(preamble, s.dir, "mktemp")+fakeMktemp+"\n", 0o755)
	write("bin/bash", "#!/bin/sh\nexec /bin/bash \"$@\"\n", 0o755)

	write("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n", 0o644)
	write("proc/swaps", "Filename Type Size Used Priority\n", 0o644)
	write("nft", "table ip filter\n", 0o644)
	write("proc/filesystems", "nodev\toverlay\n", 0o644)
	write("links", "1: lo: <LOOPBACK>\n2: eth0: <UP>\n", 0o644)
	write("rules", "*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n", 0o644)
	for _, dir := range []string{"etc/systemd/system", "etc/cni/net.d", "var/lib/cni", "run/netns", "sys/fs/cgroup", "var/lib/kubelet/pods/a", "proc/sys"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	s.take(t, phase)
	s.env = []string{
		"PATH=" + s.dir + "/bin:" + s.dir + "/usr/local/bin", "HOME=/root", "LANG=C.UTF-8",
		"KPSSH_HOST_ADDRESS=10.0.0.11", "KPSSH_NODE_ADDRESS=10.0.0.11", "KPSSH_CLUSTER_ENDPOINT=https://api:6443",
		"KPSSH_CLUSTER_CA_B64=LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==", "KPSSH_NODE_NAME=node-a", "KPSSH_PROVIDER_ID=",
		"KPSSH_NODE_LABELS=a=b", "KPSSH_TAINTS=karpenter.sh/unregistered:NoExecute", "KPSSH_VAR_JOIN_WAIT=1",
		"KPSSH_BOOTSTRAP_TOKEN=abcdef.0123456789abcdef",
	}
	return s
}

// take makes the script of a phase the one that is run.
func (s *sandbox) take(t *testing.T, phase profile.Phase) {
	t.Helper()
	code := strings.SplitN(string(script(t, phase)), "\n", 2)[1]
	code = hostPaths.ReplaceAllString(code, "${1}"+s.dir+"${2}")
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.script = strings.ReplaceAll(code, "/dev/tcp/127.0.0.1/10248", "/dev/tcp/127.0.0.1/"+address.Port())
}

// run runs the script and gives its error, what it printed and the calls that it made. fail is the
// call that fails.
func (s *sandbox) run(t *testing.T, fail string) (calls []string, output string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/bash", "--noprofile", "--norc", "-p", "-s")
	cmd.Stdin = strings.NewReader(s.script)
	cmd.Env = append(s.env, "KPSSH_TEST_FAIL="+fail)
	out, err := cmd.CombinedOutput()
	log, logErr := os.ReadFile(filepath.Join(s.dir, "calls"))
	if logErr != nil {
		t.Fatalf("%v, and the script printed %s", logErr, out)
	}
	return strings.Split(strings.TrimSpace(string(log)), "\n"), string(out), err
}

func (s *sandbox) put(t *testing.T, path, content string) {
	t.Helper()
	path = filepath.Join(s.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// installed makes the sandbox a host on which install has run.
func installed(t *testing.T, s *sandbox) {
	s.put(t, "etc/systemd/system/kubelet.service.d/zz-kpssh.conf", "")
}

// member makes the sandbox a host that has joined and runs a pod.
func member(t *testing.T, s *sandbox) {
	for _, unit := range []string{"kubelet", "containerd"} {
		s.put(t, "active."+unit, "")
	}
	s.put(t, "etc/kubernetes/kpssh/kubelet.env", "")
	s.put(t, "etc/kubernetes/kpssh/before/mounts", "/\n")
	s.put(t, "etc/kubernetes/kpssh/before/links", "lo\neth0\n")
	s.put(t, "etc/kubernetes/kpssh/before/iptables", "POSTROUTING\n")
	s.put(t, "etc/kubernetes/kpssh/before/nft", "table ip filter\n")
	s.put(t, "etc/kubernetes/kpssh/before/swaps", "/dev/zram0 100\n/swap -2\n")
	s.put(t, "etc/kubernetes/kpssh/before/net.d/10-mine.conflist", "mine")
	s.put(t, "etc/cni/net.d/10-addon.conflist", "")
	s.put(t, "nft", "table ip filter\ntable ip kube-proxy\n")
	s.put(t, "links", "1: lo: <LOOPBACK>\n2: eth0: <UP>\n3: cni0: <UP>\n")
	s.put(t, "sys/class/net/cni0/address", "")
	s.put(t, "rules", "*nat\n:POSTROUTING ACCEPT [0:0]\n:CNI-1 - [0:0]\n-A POSTROUTING -j CNI-1\nCOMMIT\n")
	s.put(t, "proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / "+s.dir+"/var/lib/kubelet/pods/a/v rw - tmpfs x rw\n")
}

// scenario is a host on which a script runs to its end.
type scenario struct {
	phase   profile.Phase
	without []string
	env     []string
	prepare func(*testing.T, *sandbox)
	// tolerated are calls that the script can do without, by pattern, and why.
	tolerated map[string]string
}

func scenarios() map[string]scenario {
	bare := []string{"containerd", "runc", "conntrack", "iptables", "ip", "modprobe", "sysctl", "kubelet"}
	checksum := fmt.Sprintf("%x", sha256.Sum256([]byte("#!/bin/bash\necho \"Kubernetes v1.35.4\"\n")))
	install := map[string]string{
		`^modprobe -q overlay`:                     "a kernel may have it built in: /proc/filesystems says so here",
		`^systemctl -q is-active docker`:           "no is its answer here",
		`^(dpkg-query|rpm) `:                       "an unknown owner leaves the file as it is",
		`^grep -qF # Written by kpssh`:             "no is its answer here",
		`^(grep -qF  /etc/containerd|md5sum|grep)`: "an unknown owner leaves the file as it is",
		`^cmp `: "what cannot be compared is written anew",
	}
	return map[string]scenario{
		"install on a bare host with apt": {
			phase: profile.Install, without: append([]string{"dnf", "rpm", "curl"}, bare...), tolerated: install,
		},
		"install on a bare host with dnf": {
			phase: profile.Install, without: append([]string{"apt-get", "dpkg-query", "curl"}, bare...), tolerated: install,
		},
		"install of kubelet and plugins from a URL on a host with a configuration of its own": {
			phase: profile.Install, without: []string{"kubelet", "dnf", "rpm"},
			env: []string{
				"KPSSH_VAR_KUBELET_URL=https://example.org/ARCH/kubelet", "KPSSH_VAR_KUBELET_SHA256=" + checksum,
				"KPSSH_VAR_CNI_PLUGINS_URL=https://example.org/cni-ARCH.tgz", "KPSSH_VAR_CNI_PLUGINS_SHA256=" + checksum,
			},
			prepare:   func(t *testing.T, s *sandbox) { s.put(t, "etc/containerd/config.toml", "version = 2\n") },
			tolerated: install,
		},
		"join": {
			phase: profile.Join, prepare: installed,
			tolerated: map[string]string{
				`^cmp `:                       "what cannot be compared is written anew",
				`^systemctl reset-failed `:    "there is nothing to reset",
				`^(ip6?tables-save|nft list)`: "then nobody writes rules either",
			},
		},
		"join of a host that has joined": {
			phase: profile.Join,
			prepare: func(t *testing.T, s *sandbox) {
				installed(t, s)
				if _, output, err := s.run(t, ""); err != nil {
					t.Fatalf("the first join: %v\n%s", err, output)
				}
				if err := os.Remove(filepath.Join(s.dir, "calls")); err != nil {
					t.Fatal(err)
				}
			},
			tolerated: map[string]string{
				`^cmp `:                           "what cannot be compared is written anew",
				`^systemctl -q is-active kubelet`: "then it joins again",
			},
		},
		"leave": {
			phase: profile.Leave, prepare: member,
			tolerated: map[string]string{
				`^systemctl show -p LoadState`:                        "a unit is taken to be there",
				`^systemctl -q is-active (docker|kubelet|containerd)`: "no is its answer, or its pods are killed as processes",
				`^systemctl is-enabled`:                               "it says no on its output",
				`^(crictl|ctr) `:                                      "best effort: what stays is killed and unmounted as what it is",
				`^grep -vx 0`:                                         "no process is no match",
				`^grep -qxF`:                                          "what was not there before is the membership's",
				`^grep -qE`:                                           "no mount is no match",
				`^grep -qF -- /`:                                      "swap that is on already is turned on again",
			},
		},
		"uninstall": {
			phase: profile.Uninstall,
			prepare: func(t *testing.T, s *sandbox) {
				s.put(t, "etc/systemd/system/kubelet.service.d/zz-kpssh.conf", "")
				s.put(t, "etc/systemd/system/kubelet.service", "# Written by kpssh (tls-bootstrap).\n")
			},
			tolerated: map[string]string{`^grep -qF`: "a file that is not ours stays"},
		},
	}
}

// image-builder#2130, kubean#909, platform9/cluster-api-provider-bringyourownhost#97: a failed step that
// is swallowed is a success that is none.
func TestEachFailedStepFailsTheScript(t *testing.T) {
	for name, tt := range scenarios() {
		fresh := func(t *testing.T) *sandbox {
			s := newSandbox(t, tt.phase, tt.without)
			s.env = append(s.env, tt.env...)
			if tt.prepare != nil {
				tt.prepare(t, s)
			}
			return s
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls, output, err := fresh(t).run(t, "")
			if err != nil {
				t.Fatalf("with every step working: %v\n%s\n%s", err, output, strings.Join(calls, "\n"))
			}
			slices.Sort(calls)
			for _, call := range slices.Compact(calls) {
				if strings.HasPrefix(call, "sleep ") {
					continue // no step
				}
				tolerated := false
				for pattern := range tt.tolerated {
					tolerated = tolerated || regexp.MustCompile(pattern).MatchString(call)
				}
				_, output, err := fresh(t).run(t, call)
				if failed := err != nil; failed == tolerated {
					t.Errorf("%q fails, and the script: %v (tolerated: %v)\n%s", call, err, tolerated, output)
				}
			}
		})
	}
}
