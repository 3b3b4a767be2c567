package main

import (
	"context"
	"fmt"
	"io"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

func doctor(_ context.Context, args []string, stdout, stderr io.Writer) error {
	if err := parse("doctor", args, stderr, nil); err != nil {
		return err
	}
	bad := 0
	for _, f := range lab.Examine() {
		mark := "ok  "
		switch f.Severity {
		case lab.Fatal:
			mark, bad = "FAIL", bad+1
		case lab.Note:
			mark = "note"
		case lab.Fine:
		}
		fmt.Fprintf(stdout, "%s  %-22s %s\n", mark, f.Subject, f.Detail)
	}
	if bad > 0 {
		return fmt.Errorf("%d things keep a lab from starting here", bad)
	}
	return nil
}
