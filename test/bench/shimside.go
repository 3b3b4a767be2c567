package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/shim"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// shimSide is the built shim on an enrolled host, and the dispatcher that orders the same script again and again.
type shimSide struct {
	box      *sandbox
	program  string
	log      *os.File
	world    *dispatchtest.World
	list     string // digest
	hostID   string
	receipts signing.Key
	script   []byte
	fence    int64
}

const benchProfile = "bench"

func newShimSide(box *sandbox, program string, script []byte) (_ *shimSide, err error) {
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("finding the built shim: %w: run \"make build\"", err)
	}
	s := &shimSide{box: box, program: program, script: script}
	if s.log, err = os.Create(filepath.Join(box.dir, "shim.log")); err != nil {
		return nil, err
	}
	if s.world, err = newWorld(script, []byte("true\n")); err != nil {
		return nil, err
	}
	roots, list, err := s.world.Documents()
	if err != nil {
		return nil, err
	}
	if s.list, err = signing.PayloadDigest(list); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(box.runtime(), "kpssh"), 0o755); err != nil {
		return nil, err
	}
	state := filepath.Join(box.lib(), "kpssh")
	if err := shim.MakeIdentity(state, roots[1], false); err != nil {
		return nil, err
	}
	host, err := shim.Open(shim.Config{State: state})
	if err != nil {
		return nil, err
	}
	defer host.Close()
	s.hostID, s.receipts = host.ID(), host.ReceiptKey()
	return s, nil
}

// newWorld is a cluster that allows the scripts; join has parameters as a join has them.
func newWorld(join, leave []byte) (_ *dispatchtest.World, err error) {
	stop := &stopper{}
	defer stop.recover(&err)
	world := dispatchtest.NewWorld(stop)
	world.Allow(dispatchtest.Script(benchProfile, "1", signing.PhaseJoin, join,
		signing.Parameter{Name: "KPSSH_CLUSTER_ENDPOINT", Type: signing.ParamEndpoint},
		signing.Parameter{Name: "KPSSH_NODE_NAME", Type: signing.ParamNodeName},
		signing.Parameter{Name: "KPSSH_BOOTSTRAP_TOKEN", Type: signing.ParamToken, Secret: true},
	), dispatchtest.Script(benchProfile, "1", signing.PhaseLeave, leave))
	return world, nil
}

// stopper stands in for a test where a helper wants one.
type stopper struct{ err error }

func (*stopper) Helper()        {}
func (*stopper) Cleanup(func()) {}

// Fatal leaves the function that defers recover.
func (s *stopper) Fatal(args ...any) {
	s.err = errors.New(fmt.Sprint(args...))
	panic(s)
}

func (s *stopper) recover(err *error) {
	if p := recover(); p == any(s) {
		*err = s.err
	} else if p != nil {
		panic(p)
	}
}

// run starts the shim as sshd's side would, orders the script, checks the receipt and waits for the end.
func (s *shimSide) run() error {
	s.fence++
	return s.session(s.fence, func(r *signing.Receipt) bool { return r.Outcome == signing.OutcomeOK })
}

// verify has the shim make all of its checks and run nothing: the order is good but for its fence, which comes last.
func (s *shimSide) verify() error {
	return s.session(0, func(r *signing.Receipt) bool { return r.Reason == signing.ReasonStaleFence })
}

func (s *shimSide) session(fence int64, want func(*signing.Receipt) bool) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	cmd := exec.Command(s.program, "root-stage", "--socket")
	cmd.Env = scriptEnv() // as systemd starts it: with nothing that Go or sudo would read
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, s.log
	err = s.box.start(cmd)
	_ = theirs.Close()
	if err != nil {
		_ = ours.Close()
		return fmt.Errorf("starting the shim: %w", err)
	}
	receipt, err := s.talk(ours, fence)
	var exit *exec.ExitError // refusals have an exit code; the receipt says more
	if waited := cmd.Wait(); !errors.As(waited, &exit) {
		err = errors.Join(err, waited)
	}
	if err == nil && !want(receipt) {
		err = fmt.Errorf("the run ended as %s (%s)", receipt.Outcome, receipt.Reason)
	}
	return err
}

func (s *shimSide) talk(f *os.File, fence int64) (*signing.Receipt, error) {
	conn, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return s.converse(conn, fence)
}

// converse is the client's side of a session that orders the script.
func (s *shimSide) converse(conn io.ReadWriter, fence int64) (*signing.Receipt, error) {
	in := wire.NewReader(conn)
	var hello *signing.Hello
	err := in.Hello(func(envelope []byte) (err error) {
		hello, err = signing.OpenHello(envelope, s.receipts)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the shim's hello: %w; its log is %s", err, s.tail())
	}
	if err := s.order(conn, hello, fence); err != nil {
		return nil, err
	}
	for {
		kind, payload, err := in.Next()
		switch {
		case err != nil:
			return nil, fmt.Errorf("reading the shim's receipt: %w; its log is %s", err, s.tail())
		case kind != wire.Receipt:
			continue
		}
		return signing.OpenReceipt(payload, s.receipts)
	}
}

// order sends what the host lacks, which after the first run is the order alone.
func (s *shimSide) order(to io.Writer, hello *signing.Hello, fence int64) error {
	const name, token = "KPSSH_BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef"
	params, err := signing.EncodeParameters(map[string]string{
		"KPSSH_CLUSTER_ENDPOINT": "https://192.0.2.1:6443", "KPSSH_NODE_NAME": "pool-x7k2p",
	})
	if err != nil {
		return err
	}
	secrets, err := signing.EncodeParameters(map[string]string{name: token})
	if err != nil {
		return err
	}
	envelope, err := signing.Sign(context.Background(), &signing.Order{
		HostID: hello.HostID, Challenge: hello.Challenge, Allowlist: s.list, Profile: benchProfile, Version: "1",
		Phase: signing.PhaseJoin, Script: signing.Digest(s.script), Claim: "claim", Fence: fence,
		Parameters: signing.Digest(params), Secrets: map[string]string{name: signing.Commitment(hello.Challenge, name, token)},
		TimeoutSeconds: int64(time.Minute / time.Second),
	}, s.world.Signer())
	if err != nil {
		return err
	}
	type frame struct {
		kind    wire.Type
		payload []byte
	}
	frames := []frame{{wire.Order, envelope}, {wire.Parameters, params}}
	if hello.Allowlist.Digest != s.list {
		_, list, err := s.world.Documents()
		if err != nil {
			return err
		}
		frames = append([]frame{{wire.Allowlist, list}}, frames...)
	}
	if len(hello.Scripts) == 0 {
		frames = append(frames, frame{wire.Script, s.script})
	}
	var request bytes.Buffer // in one piece, as the dispatcher sends it
	for _, f := range append(frames, frame{wire.Secrets, secrets}) {
		if err := wire.Write(&request, f.kind, f.payload); err != nil {
			return err
		}
	}
	if _, err := to.Write(request.Bytes()); err != nil {
		return fmt.Errorf("writing to the shim: %w; its log is %s", err, s.tail())
	}
	return nil
}

// examinedOnce sees to it that a session was measured and not the doctor's tools, which a host asks again when a file changes.
func (s *shimSide) examinedOnce() error {
	if _, err := os.Stat(filepath.Join(s.box.runtime(), "kpssh", "doctor.json")); err != nil {
		return fmt.Errorf("every session asked sshd anew: make sshd -T work on this machine (ssh-keygen -A): %w", err)
	}
	return nil
}

// tail is the end of what the shim logged.
func (s *shimSide) tail() string {
	if s.log == nil {
		return "elsewhere"
	}
	log, err := os.ReadFile(s.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-400):])
}
