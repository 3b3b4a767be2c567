// Package audit reads what an API server wrote to its audit log: who asked for what, and whether it was allowed. It
// shows which of the rights that someone was given are used.
package audit

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Policy is what the API server has to be given as its audit policy: everything, without bodies.
//
//go:embed policy.yaml
var Policy []byte

// Decisions of an authorizer.
const (
	Allow  = "allow"
	Forbid = "forbid"
)

// Event is one request.
type Event struct {
	// Time is when it came.
	Time time.Time
	// User is who asked, such as system:serviceaccount:NAMESPACE:NAME; whom it acted for, where it impersonated one.
	User string
	// Verb is the one that RBAC knows: get, list, watch, create …; a method in lower case where no resource is asked for.
	Verb string
	// Group and Resource are what was asked for, such as apps and deployments; Group is empty for the core group. Both are
	// empty for paths such as /healthz.
	Group, Resource, Subresource string
	// Namespace and Name are of the object; empty for many objects, for a cluster's own, and for names yet to be chosen.
	Namespace, Name string
	// Path is the request's path with its query.
	Path string
	// Decision is Allow or Forbid; empty if the user was not known, so that nothing was decided.
	Decision string
	// Code is the HTTP status of the answer.
	Code int
}

// record is what we read of an audit.k8s.io/v1 Event.
type record struct {
	AuditID                  string
	RequestURI, Verb         string
	RequestReceivedTimestamp time.Time
	User, ImpersonatedUser   struct{ Username string }
	ObjectRef                struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus           struct{ Code int }
	Annotations              map[string]string
}

// Read reads the log at path, which may still be written to, and returns the requests in the order in which they were
// answered. A watch counts from when it was answered first, though it goes on.
func Read(path string) ([]Event, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	defer func() { _ = f.Close() }()
	events, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("reading the audit log %q: %w", path, err)
	}
	return events, nil
}

func read(r io.Reader) ([]Event, error) {
	var events []Event
	seen := map[string]bool{} // a watch is logged when it begins and when it ends
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events, nil // half a line is still being written
		}
		if err != nil {
			return nil, err
		}
		var rec record
		if err := json.Unmarshal(line, &rec); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if seen[rec.AuditID] {
			continue
		}
		seen[rec.AuditID] = true
		events = append(events, rec.event())
	}
}

func (r record) event() Event {
	user := r.User.Username
	if r.ImpersonatedUser.Username != "" {
		user = r.ImpersonatedUser.Username
	}
	ref := r.ObjectRef
	return Event{
		Time: r.RequestReceivedTimestamp, User: user, Verb: r.Verb,
		Group: ref.APIGroup, Resource: ref.Resource, Subresource: ref.Subresource, Namespace: ref.Namespace, Name: ref.Name,
		Path: r.RequestURI, Decision: r.Annotations["authorization.k8s.io/decision"], Code: r.ResponseStatus.Code,
	}
}
