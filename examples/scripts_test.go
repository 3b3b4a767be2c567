package examples_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// get reads a file of the sandbox.
func (s *sandbox) get(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// mustRun runs the script of a phase with variables and gives the calls that it made.
func (s *sandbox) mustRun(t *testing.T, phase profile.Phase, vars ...string) []string {
	t.Helper()
	s.take(t, phase)
	before := s.env
	s.env = append(slices.Clone(before), vars...)
	defer func() { s.env = before }()
	_ = os.Remove(filepath.Join(s.dir, "calls"))
	calls, output, err := s.run(t, "")
	if err != nil {
		t.Fatalf("%s: %v\n%s", phase, err, output)
	}
	return calls
}

// matching are the calls that a pattern has.
func matching(calls []string, pattern string) []string {
	return slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return !regexp.MustCompile(pattern).MatchString(c) })
}

// karpenter-aws#4629, R47: swap, that of zram too, is a matter of policy, and what join turned off leave turns on again.
func TestSwapIsAMatterOfPolicy(t *testing.T) {
	const swaps = "Filename Type Size Used Priority\n/dev/zram0 partition 100 0 100\n/my\\040swap file 100 0 -2\n"
	fresh := func(t *testing.T) *sandbox {
		s := newSandbox(t, profile.Join, nil)
		installed(t, s)
		s.put(t, "proc/swaps", swaps)
		return s
	}
	t.Run("fail", func(t *testing.T) {
		s := fresh(t)
		s.env = append(s.env, "KPSSH_VAR_SWAP=fail")
		calls, output, err := s.run(t, "")
		if err == nil || !strings.Contains(output, "swap is on: /dev/zram0") || len(matching(calls, "^swapoff|^systemctl start")) > 0 {
			t.Errorf("%v: %s", err, output)
		}
	})
	t.Run("allow", func(t *testing.T) {
		s := fresh(t)
		if calls := s.mustRun(t, profile.Join, "KPSSH_VAR_SWAP=allow"); len(matching(calls, "^swapoff")) > 0 {
			t.Errorf("%q", calls)
		}
		if config := s.get(t, "etc/kubernetes/kpssh/kubelet.yaml"); !strings.Contains(config, "\nfailSwapOn: false\n") {
			t.Error(config)
		}
	})
	t.Run("off", func(t *testing.T) {
		s := fresh(t)
		if calls := s.mustRun(t, profile.Join, "KPSSH_VAR_SWAP=off"); len(matching(calls, "^swapoff -a$")) != 1 {
			t.Errorf("%q", calls)
		}
		s.mustRun(t, profile.Join, "KPSSH_VAR_SWAP=off") // it does not forget what was on
		calls := matching(s.mustRun(t, profile.Leave), "^swapon")
		if want := []string{"swapon -p 100 -- /dev/zram0", "swapon -- /my swap"}; !slices.Equal(calls, want) {
			t.Errorf("got %q, want %q", calls, want)
		}
	})
	t.Run("left alone", func(t *testing.T) {
		s := fresh(t)
		calls := append(s.mustRun(t, profile.Join), s.mustRun(t, profile.Leave)...)
		if touched := matching(calls, "^swap"); len(touched) > 0 {
			t.Errorf("%q", touched)
		}
	})
}

// karpenter#1049, #1635, R40: the kubelet registers with the taints of the NodeClaim, the one that core waits for among them.
func TestTheKubeletRegistersWithItsTaints(t *testing.T) {
	s := newSandbox(t, profile.Join, nil)
	installed(t, s)
	s.mustRun(t, profile.Join, "KPSSH_TAINTS=karpenter.sh/unregistered:NoExecute,example.org/a=v:NoSchedule")
	var config struct {
		RegisterWithTaints []struct{ Key, Value, Effect string }
	}
	if err := yaml.Unmarshal([]byte(s.get(t, "etc/kubernetes/kpssh/kubelet.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	want := []struct{ Key, Value, Effect string }{{"karpenter.sh/unregistered", "", "NoExecute"}, {"example.org/a", "v", "NoSchedule"}}
	if !slices.Equal(config.RegisterWithTaints, want) {
		t.Errorf("got %q, want %q", config.RegisterWithTaints, want)
	}
}

// rke2#4924, metalk8s#2052, kubeone#88, R48: one block reaches package manager, containerd and kubelet, what is in
// the cluster goes past it, and it is gone after leave.
func TestAProxyReachesAllThatFetch(t *testing.T) {
	vars := []string{
		"KPSSH_VAR_HTTP_PROXY=http://proxy:3128", "KPSSH_VAR_HTTPS_PROXY=http://proxy:3129", "KPSSH_VAR_NO_PROXY=.corp,10.9.0.0/16",
		"KPSSH_VAR_CLUSTER_CIDRS=10.244.0.0/16,10.96.0.0/12",
	}
	s := newSandbox(t, profile.Install, []string{"kubelet", "dnf", "rpm"})
	apt := s.get(t, "bin/apt-get")
	s.put(t, "bin/apt-get", strings.Replace(apt, "\nPATH=", "\necho \"$http_proxy $HTTPS_PROXY $no_proxy\" >>\"$T/proxies\"\nPATH=", 1))
	s.mustRun(t, profile.Install, vars...)
	if got := s.get(t, "proxies"); !strings.HasPrefix(got, "http://proxy:3128 http://proxy:3129 .corp,10.9.0.0/16\n") {
		t.Errorf("the package manager has %q", got)
	}
	if unit := s.get(t, "etc/systemd/system/containerd.service.d/zz-kpssh.conf"); !strings.Contains(unit, "EnvironmentFile=-") || !strings.Contains(unit, "/etc/kubernetes/kpssh/proxy.env") {
		t.Error(unit)
	}
	s.mustRun(t, profile.Join, append(vars, "KPSSH_CLUSTER_ENDPOINT=https://[2001:db8::1]:6443")...)
	for _, file := range []string{"kubelet.env", "proxy.env"} {
		got := s.get(t, "etc/kubernetes/kpssh/"+file)
		for _, want := range []string{
			"HTTP_PROXY=\"http://proxy:3128\"\n", "HTTPS_PROXY=\"http://proxy:3129\"\n",
			"NO_PROXY=\"localhost,127.0.0.1,10.0.0.11,2001:db8::1,.svc,.cluster.local,10.244.0.0/16,10.96.0.0/12,.corp,10.9.0.0/16\"\n",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s lacks %q:\n%s", file, want, got)
			}
		}
	}
	s.mustRun(t, profile.Leave)
	if _, err := os.Stat(filepath.Join(s.dir, "etc/kubernetes/kpssh")); !os.IsNotExist(err) {
		t.Errorf("after leave: %v", err)
	}
	s.mustRun(t, profile.Join)
	if env := s.get(t, "etc/kubernetes/kpssh/proxy.env"); strings.TrimSpace(env) != "" {
		t.Errorf("without a proxy: %q", env)
	}
}

// platform9 BYOH PR#97, kubean#909, R29: the lock of unattended upgrades is waited for, with a bound.
func TestAptWaitsForItsLock(t *testing.T) {
	for name, tt := range map[string]struct {
		times string
		ok    bool
	}{"that is let go": {"2", true}, "that is not": {"1000000", false}} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t, profile.Install, []string{"containerd", "dnf", "rpm"})
			s.put(t, "bin/apt-get", `#!/bin/bash
n=$(($(cat `+s.dir+`/tries 2>/dev/null || echo 0) + 1)); echo "$n" >`+s.dir+`/tries
if ((n <= `+tt.times+`)); then echo 'E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1' >&2; exit 100; fi
exec `+s.dir+`/store/apt-get "$@"
`)
			if err := os.Chmod(filepath.Join(s.dir, "bin/apt-get"), 0o755); err != nil { //nolint:gosec // is run
				t.Fatal(err)
			}
			s.script = strings.Replace(s.script, "lock_wait=240", "lock_wait=3", 1)
			_, output, err := s.run(t, "")
			if (err == nil) != tt.ok || !strings.Contains(output, "waiting for another package manager") || !tt.ok && !strings.Contains(output, "Could not get lock") {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}

// k0smotron#1247, R28: a host in use, where nothing is new, is left as it is. k0smotron#529, R67: what is new is seen by
// the binary, and by no note.
func TestInstallGoesByWhatIsThere(t *testing.T) {
	binary := func(version string) (text, sum string) {
		text = fmt.Sprintf("#!/bin/bash\necho \"Kubernetes %s\"\n", version)
		return text, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	}
	_, sum := binary("v1.35.4") // what curl brings
	vars := []string{"KPSSH_VAR_KUBELET_URL=https://example.org/kubelet", "KPSSH_VAR_KUBELET_SHA256=" + sum}
	s := newSandbox(t, profile.Install, []string{"kubelet", "dnf", "rpm"})
	if calls := s.mustRun(t, profile.Install, vars...); len(matching(calls, "^curl ")) != 1 || len(matching(calls, "^systemctl disable --now kubelet")) != 1 {
		t.Errorf("the first time: %q", calls)
	}
	s.put(t, "etc/kubernetes/kpssh/kubelet.env", "")
	changes := `^(curl|apt-get|mv|install) |^systemctl (disable|stop|daemon-reload)`
	if calls := matching(s.mustRun(t, profile.Install, vars...), changes); len(calls) > 0 {
		t.Errorf("in use, and nothing new: %q", calls)
	}
	old, _ := binary("v1.34.0")
	s.put(t, "usr/local/bin/kubelet", old)
	calls := matching(s.mustRun(t, profile.Install, vars...), changes)
	if len(matching(calls, "^curl ")) != 1 || len(matching(calls, "^mv -f .*/.kubelet.new")) != 1 || len(matching(calls, "^systemctl")) > 0 {
		t.Errorf("another binary under the same name: %q", calls)
	}
	if got := s.get(t, "usr/local/bin/kubelet"); !strings.Contains(got, "v1.35.4") {
		t.Errorf("kubelet is %q", got)
	}
	s.put(t, "usr/local/bin/kubelet", old)
	s.take(t, profile.Join)
	s.env = append(s.env, vars...)
	if _, output, err := s.run(t, ""); err == nil || !strings.Contains(output, "raise the profile's version") {
		t.Errorf("join with another binary: %v\n%s", err, output)
	}
}

func TestAKubeletOfAnotherVersionIsNotTaken(t *testing.T) {
	for version, ok := range map[string]bool{"1.35": true, "1.35.4": true, "1.3": false, "1.36": false} {
		s := newSandbox(t, profile.Install, []string{"dnf", "rpm"})
		s.env = append(s.env, "KPSSH_VAR_KUBELET_VERSION="+version)
		_, output, err := s.run(t, "")
		if (err == nil) != ok || !ok && !strings.Contains(output, "is not of version "+version) {
			t.Errorf("%s: %v\n%s", version, err, output)
		}
	}
}
