//go:build e2e

package transport

import (
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func receiptKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.KeyOf(public)
	if err != nil {
		t.Fatal(err)
	}
	return key.String()
}

// answer has the shim of a host, which is in this process, answer at a socket of the place: sshd runs socat for it.
func answer(t *testing.T, place string, host *dispatchtest.Host) (socket string) {
	t.Helper()
	socket = "/run/shim.sock"
	listener, err := net.Listen("unix", filepath.Join(place, socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	if err := os.Chmod(filepath.Join(place, socket), 0o666); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				host.Serve(&remotetest.Session{Stdin: conn, Stdout: conn})
				_ = conn.Close()
			}()
		}
	}()
	return socket
}

// What a banner, a message of the day, a profile and a .bashrc print comes before what is asked for, and does no harm, in
// both modes.
func TestNoiseBeforeTheProtocolIsTolerated(t *testing.T) {
	key := newKey(t, "-t", "ed25519")
	world := dispatchtest.NewWorld(t)
	host := world.NewHost("host-a")
	socket := answer(t, places[oldSuite], host)
	forced := `command="socat - UNIX-CONNECT:` + socket + `" ` + key.public(t)
	d := start(t, spec{
		namespace: gate, address: gateAddress, port: 2701, options: []string{"Banner /etc/issue.net", "PrintMotd yes"},
		authorized: map[string][]string{"noisy": {forced}, "root": {key.public(t)}},
	})
	const noise = "KPSSH/0\nWelcome, this is no protocol: \x1b[2J\x00\xff\nKPSSH-RAW-none\n"
	for _, home := range []string{"home/noisy", "root"} {
		for _, file := range []string{".bashrc", ".bash_profile", ".profile", ".ssh/rc"} {
			path := filepath.Join(places[oldSuite], home, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("cat /etc/noise; cat /etc/noise >&2\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.write(t, "../../noise", 0o644, noise)
	d.write(t, "../../issue.net", 0o644, "Authorised use only. Exceeded MaxStartups\nNot allowed at this time\n")
	d.write(t, "../../motd", 0o644, noise)

	conn, err := remote.Dial(t.Context(), d.target(t, "root", key))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if out, err := ask(t.Context(), conn, "true"); err != nil || !strings.Contains(out, noise) {
		t.Fatalf("nothing is noisy here: %q, %v", out, err)
	}
	dispatcher := dispatch.New(dispatch.Options{Trust: world, Signer: world.Signer(), Pool: newPool(t, remote.PoolOptions{}), AllowRaw: true})
	verified := host.Dispatch()
	verified.Target = d.target(t, "noisy", key)
	raw := dispatch.Host{Name: "host-b", Mode: dispatch.Raw, Target: d.target(t, "root", key)}
	for name, host := range map[string]dispatch.Host{"Verified": verified, "Raw": raw} {
		probe, err := dispatcher.Probe(t.Context(), host)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if probe.Facts.CPUs == 0 || probe.HostKeyFingerprint != d.hostKeys[0].fingerprint(t) {
			t.Errorf("%s: got %+v", name, probe)
		}
	}
	result, err := dispatcher.Run(t.Context(), raw, dispatch.Request{Phase: signing.PhaseLeave, Script: []byte("echo left\n"), Timeout: time.Minute})
	if err != nil || strings.TrimSpace(result.Output) != "left" {
		t.Errorf("got %+v, %v", result, err)
	}
}

// Field report R19 (t3code PR#8891, copr#3118, ansible#56113): 1 GiB of output costs no memory, its end is kept, and that
// something was left out is said.
func TestR19AGibibyteOfOutputKeepsMemoryFlat(t *testing.T) {
	key := newKey(t, "-t", "ed25519")
	d := start(t, spec{namespace: gate, address: gateAddress, port: 2711, authorized: map[string][]string{"root": {key.public(t)}}})
	dispatcher := dispatch.New(dispatch.Options{Pool: newPool(t, remote.PoolOptions{}), AllowRaw: true})
	host := dispatch.Host{Name: "host-a", Mode: dispatch.Raw, Target: d.target(t, "root", key)}
	const script = "yes \"$(printf '%01000d' 7)\" | head -c 1G\necho; echo the end\n"
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop, most := make(chan struct{}), make(chan uint64)
	go func() {
		var top uint64
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				runtime.ReadMemStats(&now)
				top = max(top, now.HeapInuse)
			case <-stop:
				most <- top
				return
			}
		}
	}()
	result, err := dispatcher.Run(t.Context(), host, dispatch.Request{Phase: signing.PhaseLeave, Script: []byte(script), Timeout: 2 * time.Minute})
	close(stop)
	if top := <-most; top > before.HeapInuse+32<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before.HeapInuse, top)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Output) > 1<<20 || !strings.HasSuffix(strings.TrimSpace(result.Output), "the end") {
		t.Errorf("kept %d bytes, ending %q", len(result.Output), result.Output[max(0, len(result.Output)-40):])
	}
	if !strings.Contains(result.Output, "left out") {
		t.Errorf("it is not said that something was left out: it begins %q", result.Output[:min(80, len(result.Output))])
	}
}
