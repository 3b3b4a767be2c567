package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	loadHosts = 5000
	idleHosts = 1000
	// probeInterval is the controller's own.
	probeInterval = 2 * time.Minute
	// settling is what a controller that has just started is given before it is looked at.
	settling = 20 * time.Second
	// sampleTime is for how long processor time is counted at a time, and samples how often.
	sampleTime = 10 * time.Second
	samples    = 6
	mebibyte   = 1 << 20

	loadCores  = 0.5
	loadMemory = 500
	idleMemory = 150
)

// load measures the controller with 5 000 free hosts that it probes every 2 minutes.
func (b *bench) load(ctx context.Context) ([]Result, error) {
	cores, memory, err := b.steady(ctx, "Q6", loadHosts)
	if err != nil {
		return nil, err
	}
	return []Result{
		goal{figure: "Q6", what: fmt.Sprintf("cores, %d hosts probed every %s / %.1f", loadHosts, probeInterval, loadCores), most: 1, quantile: 0.5, unit: "cores"}.judge(against(cores, loadCores)),
		goal{figure: "Q6 memory", what: fmt.Sprintf("most that the controller holds / %d MiB", loadMemory), most: 1, quantile: 1, unit: "MiB"}.judge(against(memory, loadMemory)),
	}, nil
}

// idle measures what the controller holds with 1 000 free hosts.
func (b *bench) idle(ctx context.Context) ([]Result, error) {
	_, memory, err := b.steady(ctx, "Q10", idleHosts)
	if err != nil {
		return nil, err
	}
	return []Result{
		goal{figure: "Q10", what: fmt.Sprintf("most that the controller holds, %d free hosts / %d MiB", idleHosts, idleMemory), most: 1, quantile: 1, unit: "MiB"}.judge(against(memory, idleMemory)),
	}, nil
}

// against are the two sides of a figure whose other side is a number.
func against(ours []float64, number float64) *sides {
	s := &sides{ours: ours}
	for range ours {
		s.other = append(s.other, number)
	}
	return s
}

// steady runs a controller on a pool of free hosts as it is after hours, each with a pinned key and a Secret of its own and all
// probes spread over the interval, and samples the cores that it uses and the memory that it holds.
func (b *bench) steady(ctx context.Context, figure string, hosts int) (cores, memory []float64, err error) {
	c, err := newCluster(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.addPool(ctx, "pool"); err != nil {
		return nil, nil, err
	}
	began := time.Now()
	if err := errors.Join(c.addHosts(ctx, "pool", hosts), c.age(ctx, probeInterval)); err != nil {
		return nil, nil, err
	}
	b.say("  %d hosts were made in %.0f s", hosts, time.Since(began).Seconds())
	controller, err := c.start(ctx, "--disable-leader-election=true", "--log-level", "error")
	if err != nil {
		return nil, nil, err
	}
	if err := pause(ctx, settling); err != nil {
		return nil, nil, err
	}
	before := c.sessions()
	from := time.Now()
	used, _, err := controller.usage()
	if err != nil {
		return nil, nil, err
	}
	for range samples {
		at := time.Now()
		if err := pause(ctx, sampleTime); err != nil {
			return nil, nil, err
		}
		now, resident, err := controller.usage()
		if err != nil {
			return nil, nil, err
		}
		cores, memory = append(cores, (now-used).Seconds()/time.Since(at).Seconds()), append(memory, float64(resident)/mebibyte)
		b.say("  %.2f cores, %.0f MiB", cores[len(cores)-1], memory[len(memory)-1])
		used = now
	}
	if err := c.probedAsMeant(c.sessions()-before, time.Since(from)); err != nil || b.profiles == "" {
		return cores, memory, err
	}
	return cores, memory, c.profile(ctx, controller, figure, 3*sampleTime)
}

// probedAsMeant is an error when the hosts were not probed at the pace that the figure is of.
func (c *cluster) probedAsMeant(sessions int, took time.Duration) error {
	// A host waits up to a tenth longer than the interval.
	want := float64(len(c.hosts)) * took.Seconds() / (1.05 * probeInterval.Seconds())
	c.say("  %d probes in %.0f s, %.0f were to be", sessions, took.Seconds(), want)
	if off := float64(sessions) / want; off < 0.7 || off > 1.4 {
		return fmt.Errorf("%d probes in %s, where %.0f were to be%s", sessions, took, want, c.tails())
	}
	return nil
}

// sessions is how many there were on all hosts.
func (c *cluster) sessions() (n int) {
	for _, host := range c.hosts {
		n += host.Sessions()
	}
	return n
}

// pause is for how long something is measured.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
