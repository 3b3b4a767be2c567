package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/rootfs"
)

// sshd is OpenSSH's, as it is without a configuration, on a port of 127.0.0.1, in the root file system of lab hosts.
type sshd struct {
	box     *sandbox
	upper   string // what lies over that file system
	cmd     *exec.Cmd
	port    int
	hostKey ssh.PublicKey
}

// newSSHD starts one that lets key in as root, with options before it in authorized_keys. prepare may put files under
// upper before it starts.
func newSSHD(ctx context.Context, b *bench, key ssh.PublicKey, options string, prepare func(upper string) error) (_ *sshd, err error) {
	cache, err := cachedir.Default()
	if err != nil {
		return nil, err
	}
	root, err := rootfs.Maker{CacheDir: cache, Mirror: os.Getenv(rootfs.EnvMirror), Log: b.detail}.Ensure(ctx, lab.DefaultSuite)
	if err != nil {
		return nil, err
	}
	s := &sshd{}
	if s.box, err = newSandbox(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.upper = filepath.Join(s.box.dir, "upper")
	merged, work := filepath.Join(s.box.dir, "root"), filepath.Join(s.box.dir, "work")
	for _, dir := range []string{s.upper, merged, work, filepath.Join(s.upper, "etc/ssh"), filepath.Join(s.upper, "run/sshd")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	if err := s.configure(key, options); err != nil {
		return nil, err
	}
	if err := prepare(s.upper); err != nil {
		return nil, err
	}
	mounted := make(chan error)
	s.box.requests <- func() {
		overlay := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", root, s.upper, work)
		err := unix.Mount("overlay", merged, "overlay", 0, overlay)
		for _, path := range []string{"dev", "proc"} {
			if err == nil {
				err = unix.Mount("/"+path, filepath.Join(merged, path), "", unix.MS_BIND|unix.MS_REC, "")
			}
		}
		mounted <- err
	}
	if err := <-mounted; err != nil {
		return nil, fmt.Errorf("mounting the root file system of a host: %w", err)
	}
	// What the shim's doctor asks of a host: otherwise each session asks sshd anew.
	identity := exec.Command("/bin/sh", "-c", "ssh-keygen -A >/dev/null && useradd --system --shell /usr/libexec/kpssh/kpssh-shim kpssh && usermod --shell /bin/sh root")
	identity.Dir, identity.Env = "/", scriptEnv()
	identity.SysProcAttr = &syscall.SysProcAttr{Chroot: merged}
	if err := s.box.run(identity); err != nil {
		return nil, fmt.Errorf("giving the host keys and a user: %w", err)
	}
	s.cmd = exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/bench")
	s.cmd.Dir = "/"
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: merged, Pdeathsig: syscall.SIGKILL}
	if err := s.box.start(s.cmd); err != nil {
		return nil, fmt.Errorf("starting sshd: %w", err)
	}
	return s, s.listening(ctx)
}

func (s *sshd) configure(key ssh.PublicKey, options string) error {
	private, signer, err := newKey()
	if err != nil {
		return err
	}
	s.hostKey = signer.PublicKey()
	config := fmt.Sprintf("ListenAddress 127.0.0.1\nPort %d\nPidFile none\nHostKey /etc/ssh/bench-host\nAuthorizedKeysFile /etc/ssh/bench-keys\n", s.port)
	for name, text := range map[string]string{
		"bench": config, "bench-host": string(private),
		"bench-keys": strings.TrimSpace(options+" "+strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))) + "\n",
	} {
		if err := os.WriteFile(filepath.Join(s.upper, "etc/ssh", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *sshd) listening(ctx context.Context) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", s.hostPort())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for sshd: %w", err)
		}
	}
}

func (s *sshd) hostPort() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// target is how to log in there.
func (s *sshd) target(keys ...ssh.Signer) (remote.Target, error) {
	policy, err := remote.Pin(ssh.FingerprintSHA256(s.hostKey))
	return remote.Target{Address: "127.0.0.1", Port: s.port, User: "root", Keys: keys, HostKey: policy}, err
}

// close ends the sshd. Its sessions end with their clients.
func (s *sshd) close() error {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_, _ = s.cmd.Process.Wait()
	}
	return s.box.close()
}

// newKey is a private key as a file has it, and what it signs with.
func newKey() ([]byte, ssh.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "kpssh bench")
	if err != nil {
		return nil, nil, err
	}
	signer, err := ssh.NewSignerFromKey(private)
	return pem.EncodeToMemory(block), signer, err
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}
