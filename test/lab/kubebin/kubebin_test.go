package kubebin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// release serves files in the layout of the official ones. wrap, if not nil, may answer instead.
func release(t *testing.T, wrap func(w http.ResponseWriter, r *http.Request, content string) bool) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, isSum := strings.CutSuffix(filepath.Base(r.URL.Path), ".sha256")
		if !strings.HasPrefix(r.URL.Path, "/release/v1.2.3/bin/linux/amd64/") {
			http.NotFound(w, r)
			return
		}
		content := strings.Repeat(name+"\n", 1000)
		if isSum {
			sum := sha256.Sum256([]byte(content))
			content = hex.EncodeToString(sum[:])
		}
		if wrap != nil && wrap(w, r, content) {
			return
		}
		http.ServeContent(w, r, name, time.Time{}, strings.NewReader(content))
	}))
	t.Cleanup(server.Close)
	return server
}

func finder(t *testing.T, url string) Finder {
	t.Helper()
	return Finder{
		CacheDir: t.TempDir(), ReleaseURL: url + "/release", Client: newClient(), Log: t.Logf,
		Version: "v1.2.3", Arch: "amd64",
	}
}

// giveEtcd puts an executable etcd into the finder's cache so that only Kubernetes' own files are looked for.
func giveEtcd(t *testing.T, f Finder) {
	t.Helper()
	dir := filepath.Join(f.CacheDir, "etcd", f.Arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeProgram(t, dir, "etcd")
}

func writeProgram(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestReleaseFilesAreDownloadedOnceAndExecutable(t *testing.T) {
	var requests atomic.Int64
	server := release(t, func(http.ResponseWriter, *http.Request, string) bool { requests.Add(1); return false })
	f := finder(t, server.URL)
	giveEtcd(t, f)
	for range 2 {
		found, err := f.Cluster(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range Components() {
			content, err := os.ReadFile(found.Path(name))
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.Repeat(name+"\n", 1000); string(content) != want {
				t.Errorf("%s holds %d bytes, want %d", name, len(content), len(want))
			}
		}
		if err := missing(found.Dir(), Components()); err != nil {
			t.Error(err)
		}
	}
	if got, want := requests.Load(), int64(2*len(Components())); got != want {
		t.Errorf("%d requests, want %d", got, want)
	}
}

func TestAFileWithAnotherChecksumIsRefused(t *testing.T) {
	server := release(t, func(w http.ResponseWriter, r *http.Request, content string) bool {
		if strings.HasSuffix(r.URL.Path, "/kubelet") {
			_, _ = w.Write([]byte(strings.ToUpper(content)))
			return true
		}
		return false
	})
	f := finder(t, server.URL)
	giveEtcd(t, f)
	_, err := f.Cluster(t.Context())
	if err == nil || !strings.Contains(err.Error(), "refusing") || !strings.Contains(err.Error(), "kubelet") {
		t.Errorf("got %v, want a refusal that names the file", err)
	}
	assertNoEntry(t, f)
}

func TestABrokenDownloadIsResumed(t *testing.T) {
	for name, test := range map[string]struct{ canResume bool }{
		"where the server knows ranges":   {canResume: true},
		"where the server ignores ranges": {canResume: false},
	} {
		t.Run(name, func(t *testing.T) {
			var broken atomic.Int64
			server := release(t, func(w http.ResponseWriter, r *http.Request, content string) bool {
				if !strings.HasSuffix(r.URL.Path, "/kubelet") {
					return false
				}
				if !test.canResume {
					r.Header.Del("Range")
				}
				if broken.Add(1) > 1 {
					return false
				}
				w.Header().Set("Content-Length", strconv.Itoa(len(content)))
				_, _ = w.Write([]byte(content[:len(content)/2]))
				panic(http.ErrAbortHandler)
			})
			f := finder(t, server.URL)
			giveEtcd(t, f)
			found, err := f.Cluster(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(found.Path("kubelet"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Repeat("kubelet\n", 1000), string(got)); diff != "" {
				t.Error(diff)
			}
			if broken.Load() != 2 {
				t.Errorf("%d requests for the file, want 2", broken.Load())
			}
		})
	}
}

func TestADownloadThatKeepsBreakingLeavesNoEntry(t *testing.T) {
	server := release(t, func(w http.ResponseWriter, r *http.Request, content string) bool {
		if strings.HasSuffix(r.URL.Path, "/kubectl") {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			_, _ = w.Write([]byte(content[:1]))
			panic(http.ErrAbortHandler)
		}
		return false
	})
	f := finder(t, server.URL)
	if _, err := f.Cluster(t.Context()); err == nil {
		t.Fatal("half a file was taken for a whole one")
	}
	assertNoEntry(t, f)
}

func assertNoEntry(t *testing.T, f Finder) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(f.CacheDir, "kubernetes"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".lock") {
			t.Errorf("left %s", e.Name())
		}
	}
}

func TestAServerOutOfReachMeansBuild(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + nobody.Addr().String()
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(proxy.Close)
	for name, url := range map[string]string{
		"nobody listens":               closed,
		"a proxy answers for everyone": proxy.URL,
		"the name does not resolve":    "http://release.invalid",
	} {
		t.Run(name, func(t *testing.T) {
			f := finder(t, url)
			began := time.Now()
			if err := f.download(t.Context(), t.TempDir()); err == nil || !strings.HasPrefix(err.Error(), errUnreachable.Error()) {
				t.Errorf("got %v, want unreachable", err)
			}
			if took := time.Since(began); took > 3*reachable {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestACancelledDownloadDoesNotTurnIntoABuild(t *testing.T) {
	server := release(t, nil)
	f := finder(t, server.URL)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Cluster(ctx); err == nil {
		t.Error("a cancelled search found something")
	}
	assertNoEntry(t, f)
}

func TestADirectoryOfTheUserComesFirstAndMustBeWhole(t *testing.T) {
	dir := t.TempDir()
	f := finder(t, "http://release.invalid")
	f.BinDir = dir
	for _, name := range Components() {
		if _, err := f.Cluster(t.Context()); err == nil || !strings.Contains(err.Error(), EnvBinDir) {
			t.Fatalf("without %s: got %v, want an error that names %s", name, err, EnvBinDir)
		}
		writeProgram(t, dir, name)
	}
	writeProgram(t, dir, "etcd")
	found, err := f.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := found.Path("etcd"), filepath.Join(dir, "etcd"); got != want {
		t.Errorf("etcd is %q, want %q", got, want)
	}
}

func TestAPIServerTakesEnvtestAssets(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		writeProgram(t, dir, name)
	}
	f := finder(t, "http://release.invalid")
	f.Assets = dir
	found, err := f.APIServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := found.Dir(); got != dir {
		t.Errorf("got %q, want %q", got, dir)
	}
}

func TestRenderModuleReplacesStagingDirectories(t *testing.T) {
	theirs := "module k8s.io/kubernetes\n\nrequire k8s.io/api v0.0.0\n\nreplace (\n" +
		"\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/client-go => ./staging/src/k8s.io/client-go\n)\n"
	got, err := renderModule([]byte(theirs), "v1.35.4")
	if err != nil {
		t.Fatal(err)
	}
	want := `module kpssh.invalid/kubernetes

go 1.25.0

godebug default=go1.25

require (
	k8s.io/kubernetes v1.35.4
	go.etcd.io/etcd/server/v3 v3.6.5
)

replace (
	k8s.io/api => k8s.io/api v0.35.4
	k8s.io/client-go => k8s.io/client-go v0.35.4
)
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if _, err := renderModule([]byte("module k8s.io/kubernetes\n"), "v1.35.4"); err == nil {
		t.Error("a go.mod without staging modules was taken")
	}
}
