package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// forward leads from a port of 127.0.0.1 to an address inside a lab and counts what is sent there: the bench is outside
// the lab's network.
type forward struct {
	listener net.Listener
	lab      *lab.Lab
	to       string
	sent     atomic.Int64
	conns    sync.WaitGroup
}

func newForward(l *lab.Lab, to string) (*forward, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("forwarding to %s: %w", to, err)
	}
	f := &forward{listener: listener, lab: l, to: to}
	f.conns.Go(f.accept)
	return f, nil
}

func (f *forward) address() (string, int) {
	a := f.listener.Addr().(*net.TCPAddr)
	return a.IP.String(), a.Port
}

func (f *forward) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		f.conns.Go(func() { f.pipe(conn) })
	}
}

func (f *forward) pipe(outside net.Conn) {
	defer func() { _ = outside.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	inside, err := f.lab.DialContext(ctx, "tcp", f.to)
	if err != nil {
		return
	}
	defer func() { _ = inside.Close() }()
	done := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(counted{inside, &f.sent}, outside)
		done <- struct{}{}
	}()
	go func() {
		_, _ = io.Copy(outside, inside)
		done <- struct{}{}
	}()
	<-done
}

// close ends the listener; connections end with their clients.
func (f *forward) close() {
	_ = f.listener.Close()
	f.conns.Wait()
}

type counted struct {
	io.Writer
	n *atomic.Int64
}

// Write implements io.Writer.
func (c counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}
