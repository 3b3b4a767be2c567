//go:build e2e

package hosts

import (
	"strings"
	"testing"
	"time"
)

// deadServer mounts a FUSE file system whose server takes each request and answers none but the first, which says what
// both can do. Whoever asks waits and cannot be killed, as with a dead NFS server. Its argument is where.
const deadServer = `use POSIX;
open(my $fuse, "+<", "/dev/fuse") or die "fuse: $!";
my ($source, $path, $type) = ("dead", $ARGV[0], "fuse");
my $options = sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fileno($fuse));
syscall(165, $source, $path, $type, 0, $options) == 0 or die "mount: $!";
print "mounted\n"; close(STDOUT);
while (sysread($fuse, my $request, 1 << 18)) {
  my (undef, $opcode, $unique) = unpack("LLQ", $request);
  syswrite($fuse, pack("LlQ", 80, 0, $unique) . pack("LLLLSSLLSSLL7", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0, (0) x 7)) if $opcode == 26;
}`

// kubeadm#2980, kubernetes#72048, R53: leave ends within its time-out, and says what it could not take away, for as long
// as it cannot.
func TestAVolumeWhoseServerIsDead(t *testing.T) {
	const volume = "/var/lib/kubelet/pods/dead/volumes/kubernetes.io~nfs/"
	mustRun(t, scripts.Install)
	mustRun(t, scripts.Join)
	dead := `pkill -KILL -f '^perl /root/dead.pl' || true; rm -f /root/dead.*`
	t.Cleanup(func() { sh(t, dead) })
	sh(t, `[ -e /dev/fuse ] || mknod /dev/fuse c 10 229
cat >/root/dead.pl <<'PERL'
`+deadServer+`
PERL
for i in 1 2 3 4; do
  mkdir -p `+volume+`$i
  perl /root/dead.pl `+volume+`$i </dev/null >/root/dead.$i 2>&1 &
  for n in {1..50}; do grep -q mounted /root/dead.$i && break; sleep 0.1; done
  grep -q mounted /root/dead.$i || { cat /root/dead.$i; exit 1; }
done
for i in 1 2 3 4; do
  (echo $BASHPID >/sys/fs/cgroup/pids/kubepods/cgroup.procs && exec ls `+volume+`$i) </dev/null >/dev/null 2>&1 &
done
sleep 1; [ "$(pgrep -c -x ls)" -eq 4 ] || exit 1; pkill -KILL -x ls; sleep 0.5; [ "$(pgrep -c -x ls)" -eq 4 ]`)
	for _, want := range []string{"mount, now detached: " + volume + "4", "processes of pods: "} {
		began := time.Now()
		out, err := phase(t, cluster, scripts.Leave)
		took := time.Since(began)
		t.Logf("leave took %s: %v\n%s", took.Round(time.Second), err, out)
		if err == nil || !strings.Contains(out, "left behind: "+want) || took > 2*time.Minute {
			t.Errorf("it was to say %q", want)
		}
	}
	if mounts := sh(t, "grep -c "+volume+" /proc/self/mountinfo || true"); mounts != "0" {
		t.Errorf("%s mounts are there still", mounts)
	}
	sh(t, dead)
	sh(t, `for i in {1..50}; do pgrep -x ls >/dev/null || exit 0; sleep 0.1; done; exit 1`)
	mustRun(t, scripts.Leave)
	clean(t, "once the server is gone")
}

// A mount that somebody uses is detached, named, and makes leave fail: whoever uses it has it still.
func TestAVolumeInUse(t *testing.T) {
	const volume = "/var/lib/kubelet/pods/busy/volume"
	mustRun(t, scripts.Install)
	mustRun(t, scripts.Join)
	sh(t, `mkdir -p `+volume+`; mount -t tmpfs busy `+volume+`; echo theirs >`+volume+`/file
cd `+volume+`; sleep 600 </dev/null >/dev/null 2>&1 & echo $! >/root/busy`)
	t.Cleanup(func() { sh(t, `kill "$(cat /root/busy)"`) })
	out, err := phase(t, cluster, scripts.Leave)
	if err == nil || !strings.Contains(out, "leave: left behind: mount, now detached: "+volume) {
		t.Errorf("%v\n%s", err, out)
	}
	if kept := sh(t, `cat /proc/$(cat /root/busy)/cwd/file`); kept != "theirs" {
		t.Errorf("the volume holds %q", kept)
	}
	mustRun(t, scripts.Leave)
	clean(t, "after the second leave")
}
