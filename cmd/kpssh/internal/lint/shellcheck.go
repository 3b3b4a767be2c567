package lint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// shellcheckTime bounds one run: some scripts take it very long.
const shellcheckTime = time.Minute

// Shellcheck makes a tool of the program at path. It reads no configuration of its own, so that a folder cannot turn
// checks off; notes on style are left out.
func Shellcheck(ctx context.Context, path string) Tool {
	return func(text []byte) []Finding {
		findings, err := shellcheck(ctx, path, text)
		if err != nil {
			return []Finding{{Severity: Warning, Rule: "shellcheck", Message: fmt.Sprintf("shellcheck did not finish: %v", err)}}
		}
		return findings
	}
}

func shellcheck(ctx context.Context, path string, text []byte) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, shellcheckTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--norc", "--format=json1", "--shell=bash", "--severity=info", "-")
	cmd.Stdin = bytes.NewReader(text)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1 || ctx.Err() != nil) { // 1: it found something
		return nil, fmt.Errorf("%w %.200s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var report struct {
		Comments []struct {
			Line    uint   `json:"line"`
			Column  uint   `json:"column"`
			Level   string `json:"level"`
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"comments"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, fmt.Errorf("reading what it found: %w", err)
	}
	var findings []Finding
	for _, c := range report.Comments {
		f := Finding{Line: c.Line, Column: c.Column, Severity: Warning, Rule: fmt.Sprintf("shellcheck:SC%d", c.Code), Message: c.Message}
		if c.Level == "error" {
			f.Severity = Error
		}
		findings = append(findings, f)
	}
	return findings, nil
}
