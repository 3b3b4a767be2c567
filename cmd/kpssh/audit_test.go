package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

// publicDocuments are those of the trust folder, as the controller has them from its ConfigMap.
type publicDocuments struct{ root, allowlist []byte }

// Documents implements dispatch.Trust.
func (d publicDocuments) Documents() (map[int64][]byte, []byte, error) {
	return map[int64][]byte{1: d.root}, d.allowlist, nil
}

// makeAudit is the script command "makeaudit": the controller's dispatcher has the real shim run install, join and leave
// of profile demo on host-a, over SSH, under the documents of trust/. It leaves the controller's audit log in
// controller.jsonl, the host's in host.jsonl, and the SSHHost in hosts.yaml.
func makeAudit(ts *testscript.TestScript, _ bool, _ []string) {
	read := func(path string) []byte {
		data, err := os.ReadFile(ts.MkAbs(path))
		ts.Check(err)
		return data
	}
	docs := publicDocuments{read("trust/public/root.1.json"), read("trust/public/allowlist.json")}
	secret, err := manifest.ReadSecret(read("trust/manifests/20-dispatch-key.secret.yaml"))
	ts.Check(err)
	signer, err := keys.FromSecret(secret)
	ts.Check(err)
	config := shim.Config{
		State: ts.MkAbs("shim-state"), Build: shim.Build{Version: "v1.0.0"}, Log: io.Discard, Now: time.Now, BootID: "boot-1",
		Posture: func() shim.Posture { return shim.Posture{} },
	}
	ts.Check(shim.MakeIdentity(config.State, docs.root, false))
	identity, err := shim.Open(config)
	ts.Check(err)
	defer identity.Close()
	target, stop := serveShim(ts, config)
	defer stop()

	var log bytes.Buffer
	trail, err := dispatch.NewAuditLog(dispatch.AuditOptions{Out: &log, Registry: prometheus.NewRegistry()})
	ts.Check(err)
	connections := remote.NewPool(remote.PoolOptions{})
	defer func() { _ = connections.Close() }()
	d := dispatch.New(dispatch.Options{Trust: docs, Signer: signer, Pool: connections, Audit: trail})
	for _, phase := range []profile.Phase{profile.Install, profile.Join, profile.Leave} {
		params, secrets, err := profile.Environment(profile.Input{
			Phase: phase, ClusterEndpoint: "https://10.0.0.1:6443", ClusterCA: read("ca.crt"), BootstrapToken: "canary.0123456789abcdef",
			NodeName: "pool-1", ProviderID: "kpssh://kpssh-system/host-a", HostAddress: "10.0.0.2", NodeAddress: "10.0.0.2",
		})
		ts.Check(err)
		_, err = d.Run(context.Background(), dispatch.Host{
			Name: "host-a", Target: target, Mode: dispatch.Verified, HostID: identity.ID(), ReceiptKey: identity.ReceiptKey(),
		}, dispatch.Request{
			Phase: signing.Phase(phase), Profile: "demo", Version: "1", Script: []byte("true"), Claim: "uid-1", ClaimName: "pool-1", Fence: 1,
			Parameters: params, Secrets: secrets, Timeout: 20 * time.Second,
		})
		ts.Check(err)
	}
	ts.Check(trail.Close(context.Background()))
	var kept bytes.Buffer
	ts.Check(identity.Export(context.Background(), &kept))
	hosts, err := manifest.Host("kpssh-system", "host-a", nil, v1beta1.SSHHostSpec{
		Address: "10.0.0.2", Shim: &v1beta1.ShimIdentity{HostID: identity.ID(), ReceiptKey: identity.ReceiptKey().String()},
	})
	ts.Check(err)
	for name, data := range map[string][]byte{"controller.jsonl": log.Bytes(), "host.jsonl": kept.Bytes(), "hosts.yaml": hosts} {
		ts.Check(os.WriteFile(ts.MkAbs(name), data, 0o600))
	}
	ts.Setenv("RECEIPTKEY", identity.ReceiptKey().String())
}

// serveShim connects SSH sessions with root stages, as sshd, relay and systemd do.
func serveShim(ts *testscript.TestScript, config shim.Config) (remote.Target, func()) {
	key, err := remotetest.GenerateKey()
	ts.Check(err)
	server, err := remotetest.Start(remotetest.Config{HostKeys: []ssh.Signer{key}, Handler: func(s *remotetest.Session) int {
		code, err := holdSession(s, config)
		if err != nil {
			fmt.Fprintln(s.Stderr, err)
		}
		return code
	}})
	ts.Check(err)
	client, err := remotetest.GenerateKey()
	ts.Check(err)
	return server.Target(client), server.Close
}

func holdSession(s *remotetest.Session, config shim.Config) (int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 1, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	relay, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return 1, err
	}
	go func() {
		_, _ = io.Copy(relay, s.Stdin)
		_ = relay.(*net.UnixConn).CloseWrite()
	}()
	code := make(chan int, 1)
	go func() {
		code <- shim.Session(config, theirs, theirs, true)
		_ = theirs.Close()
	}()
	_, _ = io.Copy(s.Stdout, relay)
	_ = relay.Close()
	return <-code, nil
}
