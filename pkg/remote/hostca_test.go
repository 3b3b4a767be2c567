package remote_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
)

// hostCALines are the lines of a host CA that a host is met with, and whether its certificate counts. The source is
// ssh(1) itself (sshconnect.c: the line is looked up as [NAME]:PORT and then without the port, the certificate is asked
// for the plain name), which TestHostCALinesMeanWhatTheyMeanToOpenSSH asks.
var hostCALines = map[string]struct {
	hosts, address string
	port           int
	names          []string
	accepted       bool
	// ours says why OpenSSH comes to another verdict.
	ours string
}{
	"a name":                                 {hosts: "a.example", address: "a.example", port: 22, names: []string{"a.example"}, accepted: true},
	"a name, on another port":                {hosts: "a.example", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"a name with the port":                   {hosts: "[a.example]:2222", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"a name with another port":               {hosts: "[a.example]:2222", address: "a.example", port: 2223, names: []string{"a.example"}},
	"a name with a port, and the host on 22": {hosts: "[a.example]:2222", address: "a.example", port: 22, names: []string{"a.example"}},
	"a certificate that names the port":      {hosts: "[a.example]:2222", address: "a.example", port: 2222, names: []string{"[a.example]:2222"}},
	"a name in another case":                 {hosts: "[A.Example]:2222", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"one of several":                         {hosts: "b.example,[a.example]:2222", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"another host's certificate":             {hosts: "[a.example]:2222", address: "a.example", port: 2222, names: []string{"b.example"}},
	"an IPv6 address":                        {hosts: "2001:db8::1", address: "2001:db8::1", port: 22, names: []string{"2001:db8::1"}, accepted: true},
	"an IPv6 address, on another port":       {hosts: "2001:db8::1", address: "2001:db8::1", port: 2222, names: []string{"2001:db8::1"}, accepted: true},
	"an IPv6 address with the port":          {hosts: "[2001:db8::1]:2222", address: "2001:db8::1", port: 2222, names: []string{"2001:db8::1"}, accepted: true},
	"an IPv6 address with another port":      {hosts: "[2001:db8::1]:2222", address: "2001:db8::1", port: 2223, names: []string{"2001:db8::1"}},
	"everything":                             {hosts: "*", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"a pattern":                              {hosts: "*.example", address: "a.example", port: 22, names: []string{"a.example"}, accepted: true},
	"a pattern, on another port":             {hosts: "*.example", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"a pattern with the port":                {hosts: "[?.example]:2222", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"a pattern with any port":                {hosts: "[*.example]:*", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"a pattern with another port":            {hosts: "[*.example]:2222", address: "a.example", port: 2223, names: []string{"a.example"}},
	"a pattern of other hosts":               {hosts: "*.example", address: "a.other", port: 2222, names: []string{"a.other"}},
	"a pattern of IPv6 addresses":            {hosts: "[2001:db8::*]:2222", address: "2001:db8::1", port: 2222, names: []string{"2001:db8::1"}, accepted: true},
	"all but this host":                      {hosts: "*,!a.example", address: "a.example", port: 22, names: []string{"a.example"}},
	"all but another":                        {hosts: "*,!b.example", address: "a.example", port: 2222, names: []string{"a.example"}, accepted: true},
	"the name, negated as a pattern":         {hosts: "a.example,!*.example", address: "a.example", port: 2222, names: []string{"a.example"}},
	"all but another port":                   {hosts: "*,![a.example]:2222", address: "a.example", port: 22, names: []string{"a.example"}, accepted: true},
	"nothing but a negation":                 {hosts: "!b.example", address: "a.example", port: 22, names: []string{"a.example"}},
	"a CA that is for a name of the host": {hosts: "a.example", address: "192.0.2.1", port: 22, names: []string{"a.example"}, accepted: true,
		ours: "the line is the host's own, so that its names are names of the host"},
	"a CA that is for a name of the host, with its port": {hosts: "[a.example]:2222", address: "192.0.2.1", port: 2222, names: []string{"a.example"}, accepted: true,
		ours: "as above"},
	"a CA that is for a name of the host, with another port": {hosts: "[a.example]:2222", address: "192.0.2.1", port: 22, names: []string{"a.example"}},
	"all but this host's port": {hosts: "*,![a.example]:2222", address: "a.example", port: 2222, names: []string{"a.example"},
		ours: "OpenSSH looks once more without the port, and finds *: what a line excludes it excludes here"},
}

func TestHostCALines(t *testing.T) {
	ca, key := remotetest.Key(t), remotetest.Key(t)
	for name, tt := range hostCALines {
		t.Run(name, func(t *testing.T) {
			policy, err := remote.Pin("@cert-authority " + tt.hosts + " " + authorizedLine(ca.PublicKey()))
			if err != nil {
				t.Fatal(err)
			}
			for _, address := range []string{tt.address, "[" + tt.address + "]"} {
				err := policy.Check(remote.Target{Address: address, Port: tt.port}, certified(t, key, ca, ssh.HostCert, nil, tt.names...).PublicKey())
				if accepted := err == nil; accepted != tt.accepted || !accepted && remote.Class(err) != remote.ClassHostKeyMismatch {
					t.Errorf("%s: %v", address, err)
				}
			}
		})
	}
}

// A line that is not for the host says so, and what it is for.
func TestAHostCALineForAnotherPortSaysSo(t *testing.T) {
	ca := remotetest.Key(t)
	policy, err := remote.Pin("@cert-authority [a.example]:2222 " + authorizedLine(ca.PublicKey()))
	if err != nil {
		t.Fatal(err)
	}
	err = policy.Check(remote.Target{Address: "a.example", Port: 2223}, certified(t, remotetest.Key(t), ca, ssh.HostCert, nil, "a.example").PublicKey())
	if err == nil || !strings.Contains(err.Error(), "is not for a.example:2223") || !strings.Contains(err.Error(), "[a.example]:2222") {
		t.Errorf("got %v", err)
	}
}

// A host on another port than 22, dialled.
func TestAHostCAOfAHostOnAnotherPort(t *testing.T) {
	ca := remotetest.Key(t)
	server := remotetest.New(t, remotetest.Config{HostKeys: []ssh.Signer{certified(t, remotetest.Key(t), ca, ssh.HostCert, nil, "127.0.0.1")}, Handler: echo})
	target := server.Target(remotetest.Key(t))
	for hosts, accepted := range map[string]bool{
		fmt.Sprintf("[127.0.0.1]:%d", target.Port):   true,
		fmt.Sprintf("[127.0.0.*]:%d", target.Port):   true,
		fmt.Sprintf("[127.0.0.1]:%d", target.Port-1): false,
	} {
		target.HostKey, _ = remote.Pin("@cert-authority " + hosts + " " + authorizedLine(ca.PublicKey()))
		conn, err := remote.Dial(t.Context(), target)
		if (err == nil) != accepted {
			t.Errorf("%s: %v", hosts, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// proxyTo makes this test's program the ProxyCommand of an ssh, so that a server on a free port is any host on any port.
const proxyTo = "KPSSH_TEST_PROXY_TO"

func TestMain(m *testing.M) {
	if address := os.Getenv(proxyTo); address != "" {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			os.Exit(1)
		}
		go func() { _, _ = io.Copy(conn, os.Stdin); _ = conn.Close() }()
		_, _ = io.Copy(os.Stdout, conn)
		return
	}
	os.Exit(m.Run())
}

func TestHostCALinesMeanWhatTheyMeanToOpenSSH(t *testing.T) {
	client, err := exec.LookPath("ssh")
	if err != nil {
		t.Skip("no OpenSSH client on this machine")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ca, key := remotetest.Key(t), remotetest.Key(t)
	text, _ := remotetest.LoginKey(t, "")
	for name, tt := range hostCALines {
		t.Run(name, func(t *testing.T) {
			server := remotetest.New(t, remotetest.Config{HostKeys: []ssh.Signer{certified(t, key, ca, ssh.HostCert, nil, tt.names...)}})
			dir := t.TempDir()
			known, login := filepath.Join(dir, "known_hosts"), filepath.Join(dir, "id")
			for path, data := range map[string][]byte{known: []byte("@cert-authority " + tt.hosts + " " + authorizedLine(ca.PublicKey()) + "\n"), login: text} {
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, client, "-F", "none", "-T", "-n", "-p", strconv.Itoa(tt.port), "-i", login, "-l", "kpssh",
				"-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile="+known, "-o", "GlobalKnownHostsFile=none",
				"-o", "IdentitiesOnly=yes", "-o", "UpdateHostKeys=no", "-o", "ProxyCommand="+self, tt.address, "true")
			cmd.Env, cmd.WaitDelay = append(os.Environ(), proxyTo+"="+server.HostPort()), time.Second
			out, err := cmd.CombinedOutput()
			accepted := err == nil
			if !accepted && !strings.Contains(string(out), "Host key verification failed") {
				t.Fatalf("%v: %s", err, out)
			}
			if want := tt.accepted != (tt.ours != ""); accepted != want {
				t.Errorf("ssh accepts it: %t\n%s", accepted, out)
			}
		})
	}
}
