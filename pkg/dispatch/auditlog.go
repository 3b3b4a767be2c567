package dispatch

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

const (
	// auditQueue is how many records wait for a slow disk before further ones are dropped.
	auditQueue = 1024
	// auditRemembered is how many orders are remembered so that a receipt which is collected again is not recorded again.
	auditRemembered = 4096
	// auditComplain is how often what keeps records from being written is said.
	auditComplain = time.Minute
)

// Results of a record, as the metric kpssh_audit_records_total tells them.
const (
	auditWritten = "written"
	auditFailed  = "failed"
	auditDropped = "dropped"
)

// AuditLog writes a line for each run and refusal to a stream, in the order in which they ended, and never makes
// anybody wait: a record that cannot be written is lost, counted and leaves a gap in the numbers of its stream. A nil
// *AuditLog writes nothing. It is safe for concurrent use.
type AuditLog struct {
	out     io.Writer
	stream  string
	trouble func(error)
	results *prometheus.CounterVec

	mu       sync.Mutex
	seq      uint64
	seen     map[string]struct{}
	order    []string // of seen, a ring
	oldest   int
	closed   bool
	queue    chan wire.Record
	finished chan struct{}

	complained atomic.Pointer[time.Time] // when what keeps records from being written was last said

	torn bool // the stream ends within a line; the writer's alone
}

// AuditOptions are what an AuditLog is made of.
type AuditOptions struct {
	// Out takes whole lines, one a call.
	Out io.Writer
	// Torn says that Out already holds something that does not end with a line.
	Torn bool
	// Trouble hears, once in a while, why records are not written, and of each that came after Close. It may be nil.
	Trouble func(error)
	// Registry takes the metric.
	Registry prometheus.Registerer
}

// NewAuditLog begins a stream.
func NewAuditLog(o AuditOptions) (*AuditLog, error) {
	l := &AuditLog{
		out: o.Out, torn: o.Torn, trouble: o.Trouble, stream: rand.Text(), seen: map[string]struct{}{},
		queue: make(chan wire.Record, auditQueue), finished: make(chan struct{}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpssh_audit_records_total",
			Help: "Records of the audit log, by result: written, failed (the log took no more), dropped (too many waited for it, or it was closed).",
		}, []string{"result"}),
	}
	if err := o.Registry.Register(l.results); err != nil {
		return nil, err
	}
	for _, result := range []string{auditWritten, auditFailed, auditDropped} {
		l.results.WithLabelValues(result) // so that an alert has a zero to rise from
	}
	go l.write()
	return l, nil
}

var (
	errAuditQueue  = errors.New("too many records wait for the audit log")
	errAuditClosed = errors.New("the audit log is closed")
)

// record takes a record. Its number is given here, so that one which is lost afterwards is missed.
func (l *AuditLog) record(r wire.Record) {
	if l == nil {
		return
	}
	err := l.enqueue(&r)
	if err == nil {
		return
	}
	l.results.WithLabelValues(auditDropped).Inc()
	// The line stands in for the record: where the stream ends, no later number tells that one is missing.
	l.complain(fmt.Errorf("dropping audit record %d, %s on host %q which ended %s: %w", r.Seq, r.Phase, r.Host, cmp.Or(r.Outcome, "unanswered"), err))
}

// enqueue numbers a record and has it wait for the writer, unless it is there already.
func (l *AuditLog) enqueue(r *wire.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.OrderDigest != "" && !l.isNew(fmt.Sprintf("%s %t", r.OrderDigest, r.Receipt != nil)) {
		return nil
	}
	l.seq++
	r.Source, r.Stream, r.Seq = wire.SourceController, l.stream, l.seq
	if l.closed {
		return errAuditClosed
	}
	select {
	case l.queue <- *r:
		return nil
	default:
		return errAuditQueue
	}
}

// complain says why a record is missing: once a minute, and after the end, when few come and none is written, each time.
func (l *AuditLog) complain(err error) {
	if l.trouble == nil {
		return
	}
	if !errors.Is(err, errAuditClosed) {
		now, last := time.Now(), l.complained.Load()
		if last != nil && now.Sub(*last) < auditComplain || !l.complained.CompareAndSwap(last, &now) {
			return
		}
	}
	l.trouble(err)
}

func (l *AuditLog) isNew(key string) bool {
	if _, known := l.seen[key]; known {
		return false
	}
	l.seen[key] = struct{}{}
	if len(l.order) < auditRemembered {
		l.order = append(l.order, key)
		return true
	}
	delete(l.seen, l.order[l.oldest])
	l.order[l.oldest] = key
	l.oldest = (l.oldest + 1) % auditRemembered
	return true
}

func (l *AuditLog) write() {
	defer close(l.finished)
	for r := range l.queue {
		err := l.writeOne(r)
		if err == nil {
			l.results.WithLabelValues(auditWritten).Inc()
			continue
		}
		l.results.WithLabelValues(auditFailed).Inc()
		l.complain(fmt.Errorf("writing audit record %d: %w", r.Seq, err))
	}
}

func (l *AuditLog) writeOne(r wire.Record) error {
	line, err := r.Encode()
	if err != nil {
		return err
	}
	if l.torn {
		line = append([]byte("\n"), line...)
	}
	n, err := l.out.Write(line)
	if n > 0 {
		l.torn = err != nil || n < len(line)
	}
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	return err
}

// Close writes what waits, until ctx ends. What comes afterwards is dropped: counted, and said.
func (l *AuditLog) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mu.Unlock()
	select {
	case <-l.finished:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("writing the last audit records, of which %d wait: %w", len(l.queue), ctx.Err())
	}
}
