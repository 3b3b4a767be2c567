package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// farAway is for how long a byte is under way on a slow network: half of the 50 ms of a round trip in perf's second
// profile.
const farAway = 25 * time.Millisecond

// forward leads from a port of 127.0.0.1 to where dial leads, which may be inside a lab's network, counts what is sent
// there, and can be as slow as a long way: not all kernels have netem.
type forward struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	delay    time.Duration
	sent     atomic.Int64
	conns    sync.WaitGroup
}

// newForward starts one. Each byte takes delay on its way, and a connection one round trip more.
func newForward(delay time.Duration, dial func(context.Context) (net.Conn, error)) (*forward, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("forwarding a port: %w", err)
	}
	f := &forward{listener: listener, dial: dial, delay: delay}
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
	inside, err := f.dial(ctx)
	if err != nil {
		return
	}
	defer func() { _ = inside.Close() }()
	time.Sleep(2 * f.delay)
	done := make(chan struct{}, 2)
	go func() {
		f.carry(counted{inside, &f.sent}, outside)
		done <- struct{}{}
	}()
	go func() {
		f.carry(outside, inside)
		done <- struct{}{}
	}()
	<-done
}

// carry copies from src to dst until one of them ends, each byte delay after it came.
func (f *forward) carry(dst io.Writer, src io.Reader) {
	if f.delay == 0 {
		_, _ = io.Copy(dst, src)
		return
	}
	type piece struct {
		data []byte
		due  time.Time
	}
	underWay := make(chan piece, 1024)
	go func() {
		defer close(underWay)
		for {
			buffer := make([]byte, 32<<10)
			n, err := src.Read(buffer)
			if n > 0 {
				underWay <- piece{buffer[:n], time.Now().Add(f.delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	var lost error
	for p := range underWay { // to the end, or the reader would wait for ever
		time.Sleep(time.Until(p.due))
		if lost == nil {
			_, lost = dst.Write(p.data)
		}
	}
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
