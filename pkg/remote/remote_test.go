package remote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
)

// waitFor waits until a condition holds that other goroutines bring about.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// noGoroutineLeft waits until nothing of this package or of x/crypto's client is running.
func noGoroutineLeft(t *testing.T) {
	t.Helper()
	var left string
	defer func() {
		if t.Failed() {
			t.Log(left)
		}
	}()
	waitFor(t, "all goroutines of the client to end", func() bool {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		left = ""
		for _, stack := range strings.Split(string(buf), "\n\n") {
			if strings.Contains(stack, "pkg/remote.(") || strings.Contains(stack, "pkg/remote.dial") || strings.Contains(stack, "crypto/ssh.") {
				left += stack + "\n\n"
			}
		}
		return left == ""
	})
}

func echo(s *remotetest.Session) int {
	_, _ = io.Copy(s.Stdout, s.Stdin)
	return 0
}

func run(ctx context.Context, conn *remote.Conn, command, stdin string) (string, error) {
	stream, err := conn.Start(ctx, command)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	if _, err := io.WriteString(stream, stdin); err != nil {
		return "", err
	}
	if err := stream.CloseWrite(); err != nil {
		return "", err
	}
	out, err := io.ReadAll(stream)
	if err != nil {
		return string(out), err
	}
	return string(out), stream.Wait()
}

func TestCommandRunsAndAnswers(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{Banner: "Authorised use only\n", Handler: echo})
	key := remotetest.Key(t)
	conn, err := remote.Dial(t.Context(), server.Target(key))
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB: more than a channel's window
	for _, input := range []string{"hello", "", big} {
		out, err := run(t.Context(), conn, "echo", input)
		if err != nil || out != input {
			t.Fatalf("got %d bytes, %v; sent %d", len(out), err, len(input))
		}
	}
	if conn.HostKeyFingerprint() != server.Fingerprint() {
		t.Errorf("host key %s, want %s", conn.HostKeyFingerprint(), server.Fingerprint())
	}
	if got := server.Commands(); len(got) != 3 || got[0] != "echo" {
		t.Errorf("server was asked to run %q", got)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	server.Close()
	noGoroutineLeft(t)
}

// Field report R12 (golang/go#15113, #21941, #26643, #19338, #5875; kubernetes#23835, #66609; teleport#1153).
func TestR12FailedHandshakesEndInTimeAndLeaveNothing(t *testing.T) {
	for name, test := range map[string]struct {
		fault  remotetest.Fault
		reason string
	}{
		// Each of these used to hang a client for ever.
		"a listener that accepts and says nothing": {remotetest.FaultSilent, remote.ReasonTimeout},
		"a listener that sends endless bytes":      {remotetest.FaultEndless, remote.ReasonHandshake},
		"a listener that sends endless lines":      {remotetest.FaultEndlessLines, remote.ReasonHandshake},
		"a peer that stalls before key exchange":   {remotetest.FaultStallInKex, remote.ReasonTimeout},
		"a peer that stalls after key exchange":    {remotetest.FaultStallInAuth, remote.ReasonTimeout},
		"a peer that hangs up":                     {remotetest.FaultHangUp, remote.ReasonHandshake},
		"a peer that keeps us out":                 {remotetest.FaultPenalty, remote.ReasonThrottled},
	} {
		t.Run(name, func(t *testing.T) {
			server := remotetest.New(t, remotetest.Config{})
			server.SetFault(test.fault)
			target := server.Target(remotetest.Key(t))
			target.HandshakeTimeout = 20 * time.Second
			if test.reason == remote.ReasonTimeout {
				target.HandshakeTimeout = 300 * time.Millisecond
			}
			start := time.Now()
			_, err := remote.Dial(t.Context(), target)
			var unreachable *remote.Unreachable
			if !errors.As(err, &unreachable) || unreachable.Reason != test.reason {
				t.Fatalf("got %v, want Unreachable with reason %q", err, test.reason)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			server.Close()
			noGoroutineLeft(t)
		})
	}
}

func TestCancelledDialEndsAtOnce(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	server.SetFault(remotetest.FaultSilent)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := remote.Dial(ctx, server.Target(remotetest.Key(t)))
		result <- err
	}()
	waitFor(t, "the dial to arrive", func() bool { return server.Connections() == 1 })
	cancel()
	err := <-result
	if !errors.Is(err, context.Canceled) || remote.Class(err) != remote.ClassUnreachable {
		t.Fatalf("got %v, want Unreachable by cancellation", err)
	}
	server.Close()
	noGoroutineLeft(t)
}

func TestNothingListensIsUnreachable(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	target := server.Target(remotetest.Key(t))
	server.Close()
	_, err := remote.Dial(t.Context(), target)
	var unreachable *remote.Unreachable
	if !errors.As(err, &unreachable) || unreachable.Reason != remote.ReasonDial {
		t.Fatalf("got %v, want Unreachable at dial", err)
	}
}

func TestMistakesInTheTargetHaveNoClassAndDialNothing(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	for name, spoil := range map[string]func(*remote.Target){
		"no address":      func(t *remote.Target) { t.Address = "" },
		"no user":         func(t *remote.Target) { t.User = "" },
		"no keys":         func(t *remote.Target) { t.Keys = nil },
		"no host key":     func(t *remote.Target) { t.HostKey = remote.HostKeyPolicy{} },
		"a foreign port":  func(t *remote.Target) { t.Port = 65536 },
		"too many keys":   func(t *remote.Target) { t.Keys = append(t.Keys, t.Keys[0], t.Keys[0], t.Keys[0], t.Keys[0], t.Keys[0]) },
		"a negative port": func(t *remote.Target) { t.Port = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			target := server.Target(remotetest.Key(t))
			spoil(&target)
			_, err := remote.Dial(t.Context(), target)
			if err == nil || remote.Class(err) != remote.ClassNone {
				t.Errorf("Dial: got %v", err)
			}
			_, _, err = remote.NewPool(remote.PoolOptions{}).Get(t.Context(), target)
			if err == nil || remote.Class(err) != remote.ClassNone {
				t.Errorf("Get: got %v", err)
			}
		})
	}
	if server.Connections() != 0 {
		t.Errorf("%d connections", server.Connections())
	}
}

func TestExitStatusAndStderr(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{Handler: func(s *remotetest.Session) int {
		_, _ = s.Stderr.Write(bytes.Repeat([]byte("x"), 1<<20))
		_, _ = io.WriteString(s.Stderr, "the end")
		return 3
	}})
	conn, err := remote.Dial(t.Context(), server.Target(remotetest.Key(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = run(t.Context(), conn, "false", "")
	var exit *remote.ExitError
	if !errors.As(err, &exit) || exit.Code != 3 || remote.Class(err) != remote.ClassExit {
		t.Fatalf("got %v", err)
	}
	if got := exit.Stderr(); len(got) != 16<<10 || !strings.HasSuffix(got, "the end") {
		t.Errorf("kept %d bytes of stderr", len(got))
	}
	if strings.Contains(err.Error(), "the end") {
		t.Errorf("the peer's text is in the message: %v", err)
	}
}

func TestLostConnectionIsInterruptedNotTheEndOfOutput(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{Handler: func(s *remotetest.Session) int {
		_, _ = io.WriteString(s.Stdout, "half")
		<-s.Done
		return 0
	}})
	conn, err := remote.Dial(t.Context(), server.Target(remotetest.Key(t)))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := conn.Start(t.Context(), "long")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	half := make([]byte, 4)
	if _, err := io.ReadFull(stream, half); err != nil {
		t.Fatal(err)
	}
	server.Cut()
	_, err = stream.Read(half)
	for name, err := range map[string]error{"Read": err, "Wait": stream.Wait()} {
		var unreachable *remote.Unreachable
		if !errors.As(err, &unreachable) || unreachable.Reason != remote.ReasonInterrupted {
			t.Errorf("%s: got %v, want Unreachable as interrupted", name, err)
		}
	}
	<-conn.Done()
	server.Close()
	noGoroutineLeft(t)
}

func TestCommandWithoutExitStatusIsNotSuccess(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{Handler: func(*remotetest.Session) int { return -1 }})
	conn, err := remote.Dial(t.Context(), server.Target(remotetest.Key(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := run(t.Context(), conn, "true", ""); remote.Class(err) != remote.ClassUnreachable {
		t.Fatalf("got %v", err)
	}
}

func TestStreamEndsWithItsContextThoughTheHostHangs(t *testing.T) {
	release := make(chan struct{})
	server := remotetest.New(t, remotetest.Config{Handler: func(s *remotetest.Session) int { <-release; return 0 }})
	conn, err := remote.Dial(t.Context(), server.Target(remotetest.Key(t)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := conn.Start(ctx, "hang")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: got %v", err)
	}
	if err := stream.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: got %v", err)
	}
	close(release)
	if _, err := run(t.Context(), conn, "other", ""); err != nil {
		t.Errorf("the connection is of no use any more: %v", err)
	}
	_ = conn.Close()
	server.Close()
	noGoroutineLeft(t)
}

// Field report R13 (golang/go#21941, kubernetes#66609 and others): three keepalives without an answer end a connection that NAT has
// dropped, as interrupted.
func TestR13DeafHostIsGivenUpAfterThreeKeepalives(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	server.SetFault(remotetest.FaultDeaf)
	target := server.Target(remotetest.Key(t))
	target.Keepalive = 50 * time.Millisecond
	conn, err := remote.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = conn.Start(t.Context(), "anything")
	var unreachable *remote.Unreachable
	if !errors.As(err, &unreachable) || unreachable.Reason != remote.ReasonInterrupted {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("given up after %v, before three intervals", took)
	}
	<-conn.Done()
	server.Close()
	noGoroutineLeft(t)
}

func TestAnsweredKeepalivesKeepTheConnection(t *testing.T) {
	t.Parallel()
	server := remotetest.New(t, remotetest.Config{Handler: func(s *remotetest.Session) int {
		select {
		case <-time.After(1500 * time.Millisecond): // a silent command, five keepalives long
		case <-s.Done:
		}
		return 0
	}})
	target := server.Target(remotetest.Key(t))
	target.Keepalive = 300 * time.Millisecond
	conn, err := remote.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := run(t.Context(), conn, "silent", ""); err != nil {
		t.Fatal(err)
	}
}

func TestStartOnADeafHostEndsWithItsContext(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	server.SetFault(remotetest.FaultDeaf)
	conn, err := remote.Dial(t.Context(), server.Target(remotetest.Key(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := conn.Start(ctx, "anything"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}

func TestHalfClosedConnectionIsInterrupted(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{Handler: echo})
	server.SetFault(remotetest.FaultHalfClosed)
	conn, err := remote.Dial(t.Context(), server.Target(remotetest.Key(t)))
	if err == nil { // the login's end may come before or after the connection's
		_, err = conn.Start(t.Context(), "echo")
		<-conn.Done()
	}
	if remote.Class(err) != remote.ClassUnreachable {
		t.Errorf("got %v", err)
	}
	server.Close()
	noGoroutineLeft(t)
}

func TestRefusedSessionIsUnreachable(t *testing.T) {
	server := remotetest.New(t, remotetest.Config{})
	server.SetFault(remotetest.FaultRejectSessions)
	conn, err := remote.Dial(t.Context(), server.Target(remotetest.Key(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.Start(t.Context(), "anything")
	var unreachable *remote.Unreachable
	if !errors.As(err, &unreachable) || unreachable.Reason != remote.ReasonSession {
		t.Fatalf("got %v", err)
	}
	if strings.Contains(err.Error(), "no sessions here") {
		t.Errorf("the peer's text is in the message: %v", err)
	}
}

// Field report R19 (t3code PR#8891, copr#3118, ansible#56113).
func TestR19UnreadOutputIsBoundedByTheWindow(t *testing.T) {
	// Whoever does not read must not pay for it.
	wrote := make(chan int64, 1)
	server := remotetest.New(t, remotetest.Config{Handler: func(s *remotetest.Session) int {
		n, _ := io.Copy(s.Stdout, io.LimitReader(zeros{}, 1<<30))
		wrote <- n
		return 0
	}})
	conn, err := remote.Dial(t.Context(), server.Target(remotetest.Key(t)))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := conn.Start(t.Context(), "flood")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stream, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if n := <-wrote; n > 8<<20 {
		t.Errorf("the host could send %d bytes that nobody read", n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
