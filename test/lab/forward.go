package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/pki"
)

// ForwardedKubeconfig is the path of an admin's kubeconfig for people and programs outside the lab. It points to a
// port of 127.0.0.1 from which this process forwards to the API server until Close.
func (l *Lab) ForwardedKubeconfig(context.Context) (string, error) {
	path := filepath.Join(l.site.dir, "kubeconfig")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return "", errors.New("forwarding to the API server: the lab is closed")
	}
	if l.forward != nil {
		return path, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("forwarding to the API server: %w", err)
	}
	config, err := pki.Kubeconfig("https://"+listener.Addr().String(), l.control.ca.Cert, l.control.admin)
	if err == nil {
		err = os.WriteFile(path, config, 0o600)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("forwarding to the API server: %w", err), listener.Close())
	}
	l.forward = listener
	l.forwards.Go(func() { l.acceptForwards(listener) })
	return path, nil
}

func (l *Lab) acceptForwards(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed
		}
		l.forwards.Go(func() { l.forwardOne(conn) })
	}
}

// forwardOne pipes until either side ends; the API server's side ends at the latest with the lab.
func (l *Lab) forwardOne(outside net.Conn) {
	defer func() { _ = outside.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	inside, err := l.DialContext(ctx, "tcp", net.JoinHostPort(l.control.address, fmt.Sprint(l.control.port)))
	if err != nil {
		return
	}
	defer func() { _ = inside.Close() }()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{inside, outside}, {outside, inside}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
}
