//go:build e2e

package threats

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// entryTraps are what may stand in the place of a path of the state.
var entryTraps = map[string]string{
	"a symbolic link":  `mv "$1" "$1.good"; ln -s "$1.good" "$1"`,
	"a dead link":      `mv "$1" "$1.good"; ln -s /tmp/evil-target "$1"`,
	"a FIFO":           `mv "$1" "$1.good"; mkfifo -m 0600 "$1"`,
	"another kind":     `mv "$1" "$1.good"; if [ -d "$1.good" ]; then touch "$1"; chmod 0600 "$1"; else mkdir -m 0700 "$1"; fi`,
	"one of another":   `chown nobody "$1"`,
	"one for everyone": `chmod a+rwX "$1"`,
	"one for a group":  `chmod g+w "$1"`,
	"a hard link":      `[ ! -d "$1" ] && ln "$1" "$1.good" || chmod 0777 "$1"`,
}

// entryLook shows a trap; entryUntrap undoes any of them.
const (
	entryLook   = `stat -c '%A %U %h %N' "$1"`
	entryUntrap = `if [ -e "$1.good" ]; then rm -rf "$1"; mv "$1.good" "$1"; fi
chown root:root "$1"; if [ -d "$1" ]; then chmod 0700 "$1"; else chmod 0600 "$1"; fi; rm -f /tmp/evil*`
)

// Row C9: what somebody put in the place of a file of the state is neither read nor written, and nothing runs.
func TestC9_TrapsInTheStateAreNotSteppedInto(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	script := "echo ran >>" + entryRan + " # C9"
	e.allow(script)
	e.open(t).run(entryOrder{script: script}) // so that every file is there
	e.do(t, "rm -f "+entryRan)
	names := strings.Fields(e.do(t, "cd /var/lib/kpssh; ls -A"))
	for _, known := range []string{"host.json", "receipt.key", "root.json", "allowlist.json", "state", "spool", "scripts", "run.lock", "trust.lock"} {
		if !slices.Contains(names, known) {
			t.Errorf("the state has no %s: %q", known, names)
		}
	}
	client := e.login(t)
	for _, name := range append([]string{""}, names...) {
		path := strings.TrimSuffix("/var/lib/kpssh/"+name, "/")
		for trap, plant := range entryTraps {
			t.Run(fmt.Sprintf("%s instead of %s", trap, path), func(t *testing.T) {
				e.world.Change(func(*signing.Allowlist) {}) // a newer list has every file touched
				trapped := true
				t.Cleanup(func() {
					if trapped {
						e.do(t, entryUntrap, path)
					}
				})
				before := e.do(t, plant+"\n"+entryLook, path)
				reason := e.attempt(t, client, script)
				after, ran, _ := strings.Cut(e.do(t, entryLook+"\necho ---; cat "+entryRan+" 2>/dev/null || true; ls -d /tmp/evil* 2>/dev/null || true; rm -f "+entryRan+"\n"+entryUntrap, path), "---\n")
				trapped = false
				// Kept scripts only save sending them again, and the trail of runs holds nothing up.
				if (name == "scripts" || name == "receipts") && reason == "" && ran == "ran\n" {
					return
				}
				if reason != string(signing.ReasonStateUnwritable) && reason != string(signing.ReasonNotEnrolled) || ran != "" {
					t.Errorf("reason %q, it left %q", reason, ran)
				}
				if after != before {
					t.Errorf("the trap was %s and is %s", before, after)
				}
			})
		}
	}
	e.do(t, "rm -f "+entryRan)
	s := e.open(t) // the host is whole again
	s.run(entryOrder{script: script})
}

// attempt orders a script and returns why it was refused, or nothing when it ran.
func (e *entry) attempt(t *testing.T, client *ssh.Client, script string) string {
	t.Helper()
	session, err := client.NewSession()
	entryMust(t, err)
	defer func() { _ = session.Close() }()
	var errs bytes.Buffer
	session.Stderr = &errs
	in, err := session.StdinPipe()
	entryMust(t, err)
	out, err := session.StdoutPipe()
	entryMust(t, err)
	entryMust(t, session.Start("kpssh"))
	s := &entrySession{e: e, t: t, out: in, in: wire.NewReader(out)}
	err = s.in.Hello(func(envelope []byte) (err error) {
		s.hello, err = signing.OpenHello(envelope, e.key)
		return err
	})
	if err != nil {
		_ = session.Wait()
		_, reason, ok := strings.Cut(errs.String(), "kpssh-shim: refused: ")
		if !ok {
			t.Fatalf("%v: %q", err, errs.String())
		}
		reason, _, _ = strings.Cut(reason, ":")
		return reason
	}
	s.submit(entryOrder{script: script})
	r, _ := s.answer()
	return string(r.Reason)
}

// entryRuns is how often a host is asked to run a script that it keeps while somebody swaps what is kept.
const entryRuns = 1000

// Row C9: however a script is swapped while it is being run, only the bytes that the order names are executed.
func TestC9_ASwappedScriptIsNeverExecuted(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	script := "echo ran >>" + entryRan + " # C9"
	e.allow(script)
	e.write(t, "/root/evil", "0600", []byte("touch /tmp/evil-swapped; echo evil\n"))
	client := e.login(t)
	e.openOn(t, client).run(entryOrder{script: script})
	e.do(t, `touch /root/swapping
setsid sh -c 'cd /var/lib/kpssh/scripts; while [ -e /root/swapping ]; do for f in *; do
  cp /root/evil "$f"; cp /root/evil .e; mv .e "$f"; ln -sf /root/evil "$f"; rm -f "$f"; done; done' >/dev/null 2>&1 </dev/null &`)
	t.Cleanup(func() { e.do(t, "rm -f /root/swapping /root/evil; rm -f /var/lib/kpssh/scripts/*") })
	kept, ran, refused := 0, 1, 0
	for range entryRuns {
		s := e.openOn(t, client)
		has := slices.Contains(s.hello.Scripts, signing.Digest([]byte(script)))
		s.submit(entryOrder{script: script, keep: has})
		r, out := s.answer()
		switch {
		case r.Outcome == signing.OutcomeOK && out == "":
			ran++
		case r.Outcome == signing.OutcomeRefused && has:
			refused++
		default:
			t.Fatalf("%s %s: %q", r.Outcome, r.Reason, out)
		}
		if has {
			kept++
		}
	}
	if lines := strings.Count(e.do(t, "cat "+entryRan), "ran"); lines != ran {
		t.Errorf("%d runs by receipts, %d by what they left", ran, lines)
	}
	if out, code := e.try(t, "ls -d /tmp/evil*"); code == 0 {
		t.Errorf("foreign bytes ran: %s", out)
	}
	t.Logf("%d sessions: %d runs, %d refused; in %d the host offered its own copy", entryRuns, ran-1, refused, kept)
}

// Row C10: what was hashed is what runs, and nobody can change it any more.
func TestC10_TheRunningScriptIsSealedAndIsTheOrdersOwn(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	e.do(t, "mkfifo -m 0600 /root/gate; rm -f /root/pid")
	t.Cleanup(func() { e.do(t, "rm -f /root/gate /root/pid") })
	script := `for fd in 3 255; do sha256sum </proc/$$/fd/$fd | cut -c1-64; readlink /proc/$$/fd/$fd; done
for fd in 3 255; do (echo "touch /tmp/evil" >>/proc/$$/fd/$fd); (: >/proc/$$/fd/$fd); truncate -s 0 /proc/$$/fd/$fd; truncate -s 9999 /proc/$$/fd/$fd; done
echo $$ >/root/pid
read -r _ </root/gate
sha256sum </proc/$$/fd/255 | cut -c1-64
`
	e.allow(script)
	e.ways(t, func(t *testing.T) {
		s := e.open(t)
		s.submit(entryOrder{script: script})
		e.do(t, "until [ -s /root/pid ]; do sleep 0.1; done")
		// Others of the host, while it runs: root by another process, and user kpssh.
		const others = `pid=$(cat /root/pid); for p in $pid $(awk '/^PPid/ {print $2}' /proc/$pid/status); do
  for f in fd/3 fd/255; do [ -e /proc/$p/$f ] && sh -c 'echo "touch /tmp/evil" >>"$1"' sh /proc/$p/$f; done
  for f in environ mem fd/3 maps; do setpriv --reuid kpssh --regid kpssh --clear-groups head -c1 /proc/$p/$f && echo READ $f; done
done; true`
		if out, _ := e.try(t, others); strings.Contains(out, "READ") {
			t.Errorf("user kpssh reads the run: %s", out)
		}
		e.do(t, "echo go >/root/gate; rm -f /root/pid")
		r, out := s.answer()
		digest := strings.TrimPrefix(signing.Digest([]byte(script)), "sha256:")
		if r.Outcome != signing.OutcomeOK || r.Script != "sha256:"+digest {
			t.Errorf("%s of %s", r.Outcome, r.Script)
		}
		if n := strings.Count(out, digest+"\n"); n != 3 {
			t.Errorf("%d of 3 looks at the script found the order's digest: %s", n, out)
		}
		if n := strings.Count(out, "memfd:kpssh-script"); n != 2 {
			t.Errorf("%d of 2 descriptors are the memory file: %s", n, out)
		}
		if n := strings.Count(out, "Operation not permitted"); n != 8 {
			t.Errorf("%d of 8 writes failed: %s", n, out)
		}
		e.nothingRan(t)
	})
}

// entryCanary is a secret that looks different in each spelling.
const entryCanary = "c4n4ry+v/lue=~%&0123456789abcdef"

// entrySpellings are those that are looked for.
func entrySpellings() []string {
	b64 := base64.StdEncoding.EncodeToString([]byte(entryCanary))
	return []string{
		entryCanary, url.QueryEscape(entryCanary), url.PathEscape(entryCanary),
		strings.TrimRight(b64, "=")[:40], strings.TrimRight(base64.URLEncoding.EncodeToString([]byte(entryCanary)), "=")[:40],
		base64.StdEncoding.EncodeToString([]byte("x" + entryCanary))[2:40], base64.StdEncoding.EncodeToString([]byte("xx" + entryCanary))[4:40],
		fmt.Sprintf("%x", entryCanary),
	}
}

// entrySearch looks for lines of its input everywhere but in the processes of a session, $1: in what processes were
// called with and have in their environment, in the journal and in every file, in memory or not.
const entrySearch = `spellings=$(cat); own=$1
hit() { { printf '%s\n' "$spellings" | grep -aqFf - /dev/fd/3; } 3<&0 && echo "$1"; }
for p in /proc/[0-9]*; do
  [ "$(cut -d' ' -f6 $p/stat 2>/dev/null)" = "$own" ] && continue
  for f in cmdline environ; do tr '\0' '\n' 2>/dev/null <$p/$f | hit "$p/$f $(cat $p/comm 2>/dev/null)"; done
done
journalctl --no-pager -o export 2>/dev/null | hit journal
for d in / /run /tmp /dev/shm /var/tmp; do
  printf '%s\n' "$spellings" | grep -rlaFf - -D skip --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev "$d" 2>/dev/null
done; true`

func (e *entry) search(t *testing.T, session string) string {
	t.Helper()
	in := strings.NewReader(strings.Join(entrySpellings(), "\n") + "\n")
	out, err := e.ExecInput(entryWithin(t), in, "sh", "-c", entrySearch, "sh", session)
	entryMust(t, err)
	return out
}

// Row C12: a secret is where its script runs and nowhere else, then or afterwards.
func TestC12_ASecretIsNowhereButInItsScript(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	e.do(t, "mkfifo -m 0600 /root/gate; rm -f /root/pid")
	t.Cleanup(func() { e.do(t, "rm -f /root/gate /root/pid") })
	waits := `echo $$ >/root/pid
s=$KPSSH_BOOTSTRAP_TOKEN
echo "$s"; printf %s "$s" | base64 -w0; echo; printf 'x%s' "$s" | base64 -w0; echo
printf %s "${s%??????????}"; sleep 0.2; echo "${s#"${s%??????????}"}"
url=; for ((i=0; i<${#s}; i++)); do c=${s:i:1}; case $c in [a-zA-Z0-9.~_-]) url+=$c;; *) printf -v c %%%02X "'$c"; url+=$c;; esac; done; echo "$url"
echo "$s" >&2
read -r _ </root/gate
sed -n 's/  */ /g; s/^Max core file size //p' /proc/$$/limits
`
	crashes := "cd /root; kill -SEGV $$\n"
	e.allow(waits)
	e.allow(crashes)
	secrets := map[string]string{entrySecret: entryCanary}
	e.ways(t, func(t *testing.T) {
		s := e.open(t)
		s.submit(entryOrder{script: waits, secrets: secrets})
		pid := strings.TrimSpace(e.do(t, "until [ -s /root/pid ]; do sleep 0.1; done; cat /root/pid"))
		if own := e.search(t, "0"); !strings.Contains(own, "/proc/"+pid+"/environ") {
			t.Fatalf("the search does not find what there is to find: %q", own)
		}
		if hits := e.search(t, pid); hits != "" {
			t.Errorf("while it runs: %s", hits)
		}
		e.do(t, "echo go >/root/gate; rm -f /root/pid")
		r, out := s.answer()
		if r.Outcome != signing.OutcomeOK || strings.Count(out, "[redacted]") < 6 {
			t.Errorf("%s: %s", r.Outcome, out)
		}
		for _, spelling := range entrySpellings() {
			if strings.Contains(out, spelling) {
				t.Errorf("the output has %q", spelling)
			}
		}
		// One byte is too little for a core, and keeps the kernel from piping one to a program. sudo leaves a hard limit
		// of 0, which root of a host can raise and root of a lab cannot: it lacks CAP_SYS_RESOURCE.
		sudo := strings.HasSuffix(t.Name(), "sudo")
		if !strings.Contains(out, "1 1 bytes") && (!sudo || !strings.Contains(out, "0 0 bytes")) {
			t.Errorf("the limit of core files: %s", out)
		}
		s = e.open(t)
		s.submit(entryOrder{script: crashes, secrets: secrets})
		if r, _ := s.answer(); r.Signal != "SIGSEGV" {
			t.Errorf("a script that crashes: %s, signal %q", r.Outcome, r.Signal)
		}
		if hits := e.search(t, "0"); hits != "" {
			t.Errorf("afterwards: %s", hits)
		}
	})
}
