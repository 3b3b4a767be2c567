package audit

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// As kube-apiserver v1.35.4 writes them.
const (
	watchBegan = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a","stage":"ResponseStarted","requestURI":"/api/v1/namespaces/x/pods?watch=true","verb":"watch","user":{"username":"system:serviceaccount:x:y","groups":["system:authenticated"]},"sourceIPs":["10.77.0.10"],"userAgent":"z","objectRef":{"resource":"pods","namespace":"x","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:05.000006Z","stageTimestamp":"2026-01-02T03:04:05.000007Z","annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":""}}
`
	watchEnded = `{"auditID":"a","stage":"ResponseComplete","verb":"watch","responseStatus":{"code":200}}
`
	forbidden = `{"auditID":"b","stage":"ResponseComplete","requestURI":"/apis/apps/v1/namespaces/x/deployments/d/scale","verb":"get","user":{"username":"admin"},"impersonatedUser":{"username":"me"},"objectRef":{"resource":"deployments","namespace":"x","name":"d","apiGroup":"apps","apiVersion":"v1","subresource":"scale"},"responseStatus":{"code":403},"annotations":{"authorization.k8s.io/decision":"forbid"}}
`
)

func TestEachRequestIsReadOnce(t *testing.T) {
	got, err := read(strings.NewReader(watchBegan + forbidden + watchEnded + forbidden[:40]))
	if err != nil {
		t.Fatal(err)
	}
	want := []Event{
		{
			Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), User: "system:serviceaccount:x:y", Verb: "watch",
			Resource: "pods", Namespace: "x", Path: "/api/v1/namespaces/x/pods?watch=true", Decision: Allow, Code: 200,
		},
		{
			User: "me", Verb: "get", Group: "apps", Resource: "deployments", Subresource: "scale", Namespace: "x", Name: "d",
			Path: "/apis/apps/v1/namespaces/x/deployments/d/scale", Decision: Forbid, Code: 403,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestADamagedLineIsNamed(t *testing.T) {
	if _, err := read(strings.NewReader(watchBegan + "x\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v, want an error that names line 2", err)
	}
}
