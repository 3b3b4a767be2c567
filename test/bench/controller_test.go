package main

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func TestUsageIsThatOfTheProcess(t *testing.T) {
	self := &controller{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}
	before, resident, err := self.usage()
	if err != nil {
		t.Fatal(err)
	}
	if resident < mebibyte || resident > 16<<30 {
		t.Errorf("%d bytes are resident", resident)
	}
	bySystem, err := used()
	if err != nil {
		t.Fatal(err)
	}
	for until := bySystem + 5*tick; bySystem < until; {
		if bySystem, err = used(); err != nil {
			t.Fatal(err)
		}
	}
	after, _, err := self.usage()
	if err != nil {
		t.Fatal(err)
	}
	if spent := after - before; spent < 3*tick || (after-bySystem).Abs() > 5*tick {
		t.Errorf("%s were spent of 50 ms, %s in all; getrusage says %s", spent, after, bySystem)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (&controller{cmd: gone}).usage(); err == nil {
		t.Error("a process that ended has used something")
	}
}

func TestAFigureOfAnotherPaceIsRefused(t *testing.T) {
	c := &cluster{bench: &bench{log: t.Output()}, hosts: map[string]*dispatchtest.Host{"a": nil, "b": nil, "c": nil, "d": nil}}
	interval := 105 * probeInterval / 100
	for probes, good := range map[int]bool{0: false, 20: false, 40: true, 80: false} {
		if err := c.probedAsMeant(probes, 10*interval); (err == nil) != good {
			t.Errorf("%d probes of 40: %v", probes, err)
		}
	}
}

func TestTheFirstSessionAfterAMomentCounts(t *testing.T) {
	moment := time.Now()
	times := &sessionTimes{all: []time.Time{moment.Add(-time.Second), moment, moment.Add(time.Second), moment.Add(time.Minute)}}
	if at, ok := times.after(moment); !ok || !at.Equal(moment.Add(time.Second)) {
		t.Errorf("got %s, %v", at, ok)
	}
	if _, ok := times.after(moment.Add(time.Hour)); ok {
		t.Error("there was none")
	}
}

func TestOnlyJoinsWaitAtAGate(t *testing.T) {
	g := newGate()
	order := func(phase signing.Phase) dispatchtest.Order {
		return dispatchtest.Order{Order: signing.Order{Phase: phase}}
	}
	g.join(order(signing.PhaseInstall))
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.join(order(signing.PhaseJoin))
	}()
	if err := g.entered(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
		t.Error("the join did not wait")
	default:
	}
	g.open()
	g.open() // twice is as good
	<-done
}
