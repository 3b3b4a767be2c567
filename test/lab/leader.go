package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// leader waits for and records process 1 of a machine that was just launched. It is what a power cut has to end: the
// machine outlives systemd-nspawn.
func (h *Host) leader(ctx context.Context, nspawn *Process) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var pid int
	err := until(ctx, "the first process of "+h.Name, func(context.Context) (err error) {
		pid, err = firstProcess("/proc", nspawn.PID)
		return err
	}, nspawn)
	if err != nil {
		return 0, err
	}
	return pid, h.lab.site.entry.AddProcess(pid)
}

// firstProcess finds the descendant of ancestor that is process 1 of a namespace of processes.
func firstProcess(proc string, ancestor int) (int, error) {
	statuses, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "status"))
	if err != nil {
		return 0, fmt.Errorf("listing processes: %w", err)
	}
	parents := map[int]int{}
	var candidates []int
	for _, path := range statuses {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		parent, inside := parseStatus(string(content))
		parents[pid] = parent
		if len(inside) == 2 && inside[1] == "1" { // as we see it, and as it sees itself
			candidates = append(candidates, pid)
		}
	}
	for _, pid := range candidates {
		for up := parents[pid]; up > 1; up = parents[up] {
			if up == ancestor {
				return pid, nil
			}
		}
	}
	return 0, errors.New("it has not started")
}

func parseStatus(status string) (parent int, inside []string) {
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "PPid":
			parent, _ = strconv.Atoi(strings.TrimSpace(value)) // 0, which is no ancestor, if malformed
		case "NSpid":
			inside = strings.Fields(value)
		}
	}
	return parent, inside
}
