package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/stage"
)

// roundDeadline bounds one way of a round; a cold one takes well under a minute on two idle cores.
const roundDeadline = 5 * time.Minute

type demo struct {
	hosts int
	keep  bool
	out   io.Writer
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

func (d *demo) play(ctx context.Context) (err error) {
	repo, err := os.Getwd()
	if err != nil {
		return err
	}
	d.say("A control plane and %d pool hosts, all real, in a network namespace of their own.", d.hosts)
	s, err := stage.Up(ctx, stage.Options{Repo: repo, Hosts: d.hosts, Log: func(format string, args ...any) {
		d.say("  "+format, args...)
	}})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			if kept := s.KeepLogs(); kept == nil {
				d.say("The logs of all processes are kept in %s", s.LogDir())
			}
		}
		d.say("Taking everything down.")
		if closeErr := s.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
			return
		}
		d.say("Done: no process, mount or namespace of it is left.")
	}()
	if err := d.showPool(ctx, s); err != nil {
		return err
	}
	if err := s.ApplyWorkload(ctx); err != nil {
		return err
	}
	rounds := []string{"Round 1, cold: the host has never been installed", "Round 2, warm: the host kept what install made"}
	var took []stage.Round
	for _, title := range rounds {
		r, err := d.round(ctx, s, title)
		if err != nil {
			return err
		}
		took = append(took, *r)
	}
	d.summary(took)
	if d.keep {
		return d.wait(ctx, s)
	}
	return nil
}

func (d *demo) showPool(ctx context.Context, s *stage.Stage) error {
	table, err := s.Kubectl(ctx, "-n", stage.PoolNamespace, "get", "sshhosts")
	if err != nil {
		return err
	}
	d.say("\n%s", table)
	return nil
}

func (d *demo) round(ctx context.Context, s *stage.Stage, title string) (*stage.Round, error) {
	r := &stage.Round{}
	report := func(m stage.Milestone) { d.say("  %6.1f s  %s", m.At.Seconds(), m.What) }
	d.say("%s\n  up: one pod is asked for", title)
	upCtx, cancel := context.WithTimeout(ctx, roundDeadline)
	defer cancel()
	if err := s.ScaleUp(upCtx, r, report); err != nil {
		return nil, err
	}
	d.say("  down: scaled to 0; karpenter first looks for about 25 s whether the node stays empty")
	downCtx, cancel := context.WithTimeout(ctx, roundDeadline)
	defer cancel()
	if err := s.ScaleDown(downCtx, r, report); err != nil {
		return nil, err
	}
	if err := s.CheckWarm(ctx, r.Host); err != nil {
		return nil, err
	}
	d.say("  checked on %s: kubelet and containerd are stopped and disabled\n", r.Host)
	return r, nil
}

// summary puts the rounds side by side.
func (d *demo) summary(rounds []stage.Round) {
	last := func(m []stage.Milestone) float64 { return m[len(m)-1].At.Seconds() }
	d.say("  %-8s%14s%14s", "", "pod running", "host back")
	for i, r := range rounds {
		d.say("  round %-2d%12.1f s%12.1f s", i+1, last(r.Up), last(r.Down))
	}
	d.say("")
}

func (d *demo) wait(ctx context.Context, s *stage.Stage) error {
	kubeconfig, err := s.ForwardedKubeconfig(ctx)
	if err != nil {
		return err
	}
	d.say(`The lab stays up until Ctrl-C. In another shell:

  export KUBECONFIG=%s PATH=%s:$PATH
  kubectl -n %s get sshhosts -w
  kubectl scale deployment %s --replicas=1   # a host joins; --replicas=0 gives it back

Logs: %s`, kubeconfig, s.BinDir(), stage.PoolNamespace, stage.Workload, s.LogDir())
	<-ctx.Done()
	return nil
}
