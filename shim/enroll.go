package shim

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const enrollUsage = `usage: kpssh-shim enroll [--json] [--reset-trust]

Gives this host an identity, as root: a random host id, a receipt key that never leaves it, and
the root of trust in /etc/kpssh/root.json. Doing it again changes nothing. Then checks the host's
hardening and prints who it is, signed by the receipt key and by the SSH host keys.

  --json         print the statement as JSON
  --reset-trust  believe /etc/kpssh/root.json even though the host knows another root: the way
                 back when root keys are lost. The host forgets its allowlist, and keeps its claim.

example:
  /usr/libexec/kpssh/kpssh-shim enroll --json
`

func enroll(p Process, sys hostSystem, build Build, args []string) int {
	flags := flag.NewFlagSet("enroll", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	asJSON := flags.Bool("json", false, "")
	reset := flags.Bool("reset-trust", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return usageExit(p, err, enrollUsage)
	}
	if os.Geteuid() != 0 {
		return fail(p.Stderr, errors.New("enrolling a host takes root"))
	}
	st, err := enrolled(sys, build, *reset)
	if err != nil {
		return fail(p.Stderr, err)
	}
	if *asJSON {
		enc := json.NewEncoder(p.Stdout)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(st); err != nil {
			return fail(p.Stderr, err)
		}
		return exitOK
	}
	fmt.Fprintf(p.Stdout, "hostID:      %s\nreceiptKey:  %s\nroot:        version %d\nshim:        %s\nfindings:    %s\n",
		st.HostID, st.ReceiptKey, st.Root, st.ShimVersion, strings.Join(st.Findings, " "))
	return exitOK
}

// rootFrom says where a host gets its root of trust from.
const rootFrom = "put the newest public/root.N.json of the trust folder there ('" + wire.ShimPath + " install --root FILE'), or run 'kpssh host enroll' from where that folder is"

// enrolled makes what is missing and returns the host's statement.
func enrolled(sys hostSystem, build Build, reset bool) (*wire.Statement, error) {
	root, err := os.ReadFile(sys.paths.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no root of trust in %s: %s", sys.paths.root, rootFrom)
	}
	if err != nil {
		return nil, fmt.Errorf("reading root of trust: %w", err)
	}
	if err := MakeIdentity(sys.paths.state, root, reset); err != nil {
		if signing.ReasonOf(err) != "" {
			return nil, fmt.Errorf("root of trust in %s: %w; %s", sys.paths.root, err, rootFrom)
		}
		return nil, err
	}
	h, err := Open(Config{State: sys.paths.state, Build: build, Now: time.Now, BootID: BootID()})
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return h.statement(sys)
}

func (h *Host) statement(sys hostSystem) (*wire.Statement, error) {
	t, err := loadTrust(h.dir)
	if err != nil {
		return nil, err
	}
	challenge := make([]byte, signing.ChallengeSize)
	if _, err := rand.Read(challenge); err != nil {
		return nil, err
	}
	posture := posture(sys)
	hello, err := signing.Sign(context.Background(), &signing.Hello{
		Protocol: wire.Protocol, ShimVersion: h.cfg.Build.Version, ShimDigest: posture.ShimDigest,
		HostID: h.id, BootID: h.cfg.BootID, Challenge: challenge, Root: t.rootRef, Allowlist: t.listRef,
		Clock: h.cfg.Now(), ClockSynced: clockSynced(), Findings: posture.Findings,
	}, h.signer)
	if err != nil {
		return nil, fmt.Errorf("signing statement: %w", err)
	}
	st := &wire.Statement{
		HostID: h.id, ReceiptKey: h.ReceiptKey().String(), ShimVersion: h.cfg.Build.Version,
		Findings: append([]string{}, posture.Findings...), Root: t.root.Version, Hello: hello,
		HostKeys: []string{}, Signatures: []string{},
	}
	files, err := filepath.Glob(filepath.Join(sys.paths.hostKey, "ssh_host_*_key.pub"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		key, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading host key: %w", err)
		}
		st.HostKeys = append(st.HostKeys, strings.TrimSpace(string(key)))
		st.Signatures = append(st.Signatures, sshSign(strings.TrimSuffix(file, ".pub"), hello))
	}
	return st, nil
}

// sshSign has OpenSSH sign with a host key: it knows every kind of key that sshd takes, and
// enrolment is rare. An empty signature says that this key could not sign.
func sshSign(key string, message []byte) string {
	path, err := find("ssh-keygen")
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-Y", "sign", "-f", key, "-n", wire.StatementNamespace)
	cmd.Stdin, cmd.Env = bytes.NewReader(message), []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return string(out)
}
