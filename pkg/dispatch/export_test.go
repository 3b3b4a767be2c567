package dispatch

import "github.com/kpssh/karpenter-provider-ssh/shim/wire"

// AuditQueue is how many records may wait.
const AuditQueue = auditQueue

// RecordAudit lets tests record what no host has run.
func RecordAudit(l *AuditLog, r wire.Record) { l.record(r) }

// AuditWaiting is how many records wait.
func AuditWaiting(l *AuditLog) int { return len(l.queue) }
