package main

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// startAPIServer is the script command "apiserver [ENDPOINT]": a TLS server that answers like an API
// server whose kube-public/cluster-info names ENDPOINT, and a kubeconfig for it in $KUBECONFIG. Without
// an endpoint it has no cluster-info.
func startAPIServer(ts *testscript.TestScript, _ bool, args []string) {
	var server *httptest.Server
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const path = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
		if r.URL.Path != path || len(args) == 0 || r.Header.Get("Authorization") != "Bearer admin" {
			http.NotFound(w, r)
			return
		}
		cm := corev1.ConfigMap{Data: map[string]string{"kubeconfig": kubeconfig(server, args[0], "")}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(cm) // a client that has gone is not this server's matter
	}))
	ts.Defer(server.Close)
	useKubeconfig(ts, server)
}

func useKubeconfig(ts *testscript.TestScript, server *httptest.Server) {
	path := ts.MkAbs("kubeconfig")
	ts.Check(os.WriteFile(path, []byte(kubeconfig(server, server.URL, "admin")), 0o600))
	ts.Setenv("KUBECONFIG", path)
}

// startPool is the script command "pool": an API server that has of ConfigMap kpssh-trust and Secret
// kpssh-dispatch-key what was copied to cluster/ as kubectl would apply it, and the hosts that "hosts" made. It gives
// nobody more of a Secret than its metadata. While file cluster/busy has lines, each answers one request: a status, "cut"
// for a connection that breaks, "ok" for what else is answered.
func startPool(ts *testscript.TestScript, _ bool, _ []string) {
	files := map[string]string{
		"/api/v1/namespaces/kpssh-controller/configmaps/kpssh-trust":                 "cluster/10-trust.yaml",
		"/api/v1/namespaces/kpssh-controller/secrets/kpssh-dispatch-key":             "cluster/20-dispatch-key.secret.yaml",
		"/apis/karpenter.dklesev.github.io/v1beta1/namespaces/kpssh-system/sshhosts": "cluster/hosts.yaml",
	}
	for path, file := range files {
		files[path] = ts.MkAbs(file)
	}
	var mu sync.Mutex
	busy := func() string {
		mu.Lock()
		defer mu.Unlock()
		text, err := os.ReadFile(ts.MkAbs("cluster/busy"))
		if err != nil {
			return "ok"
		}
		first, rest, _ := strings.Cut(string(text), "\n")
		if rest == "" {
			ts.Check(os.Remove(ts.MkAbs("cluster/busy")))
		} else {
			ts.Check(os.WriteFile(ts.MkAbs("cluster/busy"), []byte(rest), 0o600))
		}
		return first
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch say := busy(); say {
		case "ok":
		case "cut":
			panic(http.ErrAbortHandler)
		default:
			code, err := strconv.Atoi(say)
			if err != nil {
				panic(err)
			}
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(metav1.Status{Message: "storage is (re)initializing"})
			return
		}
		text, err := os.ReadFile(files[r.URL.Path])
		if err != nil || r.Header.Get("Authorization") != "Bearer admin" {
			http.NotFound(w, r)
			return
		}
		var object map[string]any
		if err := yaml.Unmarshal(text, &object); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if object["kind"] == "Secret" {
			if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
				http.Error(w, "asked for the data of a Secret", http.StatusInternalServerError)
				return
			}
			object = map[string]any{"metadata": object["metadata"]}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object) // a client that has gone is not this server's matter
	}))
	ts.Defer(server.Close)
	ts.Check(os.MkdirAll(ts.MkAbs("cluster"), 0o700))
	useKubeconfig(ts, server)
}

// setHosts is the script command "hosts [NAME:STATE:ROOT:ALLOWLIST:SHIM]...": the hosts of the pool, as the
// controller's status of them says it. "-" for ROOT is a host that was never heard of. A file after a version, as in
// 2=FILE, is the document whose digest the status has.
func setHosts(ts *testscript.TestScript, _ bool, args []string) {
	var list v1beta1.SSHHostList
	for _, arg := range args {
		parts := strings.Split(arg, ":")
		host := v1beta1.SSHHost{}
		host.Name, host.Status.State = parts[0], v1beta1.HostState(parts[1])
		if parts[2] != "-" {
			root, rootDigest := document(ts, parts[2])
			allowlist, listDigest := document(ts, parts[3])
			host.Status.Trust = &v1beta1.HostTrust{
				RootVersion: root, RootDigest: rootDigest, AllowlistVersion: allowlist, AllowlistDigest: listDigest, ShimVersion: parts[4], Findings: []string{"shell"},
				ObservedTime: &metav1.Time{Time: time.Now().Add(-5 * time.Minute)},
			}
		}
		list.Items = append(list.Items, host)
	}
	text, err := yaml.Marshal(list)
	ts.Check(err)
	ts.Check(os.MkdirAll(ts.MkAbs("cluster"), 0o700))
	ts.Check(os.WriteFile(ts.MkAbs("cluster/hosts.yaml"), text, 0o600))
}

// document reads VERSION or VERSION=FILE.
func document(ts *testscript.TestScript, text string) (version int64, digest string) {
	number, file, named := strings.Cut(text, "=")
	version, err := strconv.ParseInt(number, 10, 64)
	ts.Check(err)
	if named {
		envelope, err := os.ReadFile(ts.MkAbs(file))
		ts.Check(err)
		digest, err = signing.PayloadDigest(envelope)
		ts.Check(err)
	}
	return version, digest
}

func kubeconfig(server *httptest.Server, endpoint, token string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: ""
  cluster:
    server: %s
    certificate-authority-data: %s
`, endpoint, base64.StdEncoding.EncodeToString(ca))
	if token == "" {
		return text
	}
	return strings.Replace(text, `name: ""`, "name: here", 1) + fmt.Sprintf(`contexts:
- name: here
  context: {cluster: here, user: admin}
current-context: here
users:
- name: admin
  user: {token: %s}
`, token)
}
