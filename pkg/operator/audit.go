package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/operator/options"
)

// auditFarewell bounds the writing of what waits when the controller ends.
const auditFarewell = 5 * time.Second

// auditLog opens the stream of audit records that the options name. What is wrong with its file is told when something
// is to be written, again and again: it keeps no host from being joined.
func (o *Operator) auditLog(ctx context.Context, stdout io.Writer) (*dispatch.AuditLog, error) {
	if o.options.AuditLog == options.AuditLogOff {
		return nil, nil
	}
	logger := log.FromContext(ctx)
	out, torn := stdout, false
	if file := o.options.AuditLog; file != options.AuditLogStdout {
		out = &lumberjack.Logger{Filename: file, MaxSize: o.options.AuditLogMaxMiB, MaxBackups: o.options.AuditLogBackups}
		var err error
		if torn, err = endsWithinLine(file); err != nil {
			logger.Error(err, "looking at the audit log")
		}
	}
	l, err := dispatch.NewAuditLog(dispatch.AuditOptions{
		Out: out, Torn: torn, Registry: crmetrics.Registry,
		Trouble: func(err error) {
			logger.Error(err, "records are missing in the audit log; kpssh_audit_records_total counts them", "auditLog", o.options.AuditLog)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return l, nil
}

// endsWithinLine tells whether a file ends with a part of a line, which a process that died has left.
func endsWithinLine(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 || !info.Mode().IsRegular() {
		return false, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return false, err
	}
	return last[0] != '\n', nil
}

// closeAudit writes the records that wait.
func (o *Operator) closeAudit() error {
	ctx, cancel := context.WithTimeout(context.Background(), auditFarewell)
	defer cancel()
	return o.audit.Close(ctx)
}
