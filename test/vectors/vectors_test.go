// Package vectors publishes documents with the verdict that every implementation must come to, one
// folder a case, and holds this one to it: the kpssh binary and package signing here, the shim in
// its own package. README.md says how they are read.
package vectors

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

var update = flag.Bool("update", false, "write the vectors, and the examples of docs/protocol.md, instead of comparing them")

// kpssh is the binary, built once.
var kpssh string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kpssh-vectors-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	kpssh = filepath.Join(dir, "kpssh")
	build := exec.Command("go", "build", "-o", kpssh, "./cmd/kpssh")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building kpssh: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// The binary is no part of this package, so that go test would go on showing a result of before a
// change of it: it looks at what tests look at.
func lookAtSources(t *testing.T) {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.Dir}}{{end}}", "../../cmd/kpssh").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for dir := range strings.Lines(string(out)) {
		dir = strings.TrimSpace(dir)
		if !strings.HasPrefix(dir, root+"/") {
			continue
		}
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, file := range files {
			if _, err := os.Stat(file); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// made are all vectors, as this program makes them.
func made(t testing.TB) []*vector {
	t.Helper()
	m := newMaker(t)
	for _, add := range []func(){
		m.rootRotations, m.rootVersions, m.malformedRoots, m.rootPayloads, m.rootSignatures, m.rootExpiry,
		m.listRotations, m.lists, m.malformedLists, m.walks,
		m.goodOrders, m.orderSignatures, m.orderExpiry, m.differentials, m.orderEnvelopes, m.malformedOrders,
		m.pins, m.parameters, m.beside, m.confusions, m.hellos, m.receipts,
	} {
		add()
	}
	return m.all
}

// given are the files that a case of orders or allowlists takes when it has none of its own.
func given(t testing.TB) map[string][]byte {
	m := newMaker(t)
	return map[string][]byte{
		"given/root.1.json": m.rootEnvelope, "given/allowlist.json": m.listEnvelope,
		"given/parameters.json": m.parametersFrame, "given/secrets.json": m.secretsFrame, "given/script": []byte(scripts[signing.PhaseJoin]),
	}
}

func files(t testing.TB) map[string][]byte {
	t.Helper()
	all := given(t)
	all["admission.json"] = admissions(t)
	for _, v := range made(t) {
		about, err := json.MarshalIndent(v.about, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := all[v.folder()+"/case.json"]; twice {
			t.Fatalf("two cases are called %s", v.folder())
		}
		all[v.folder()+"/case.json"] = append(about, '\n')
		for name, content := range v.files {
			all[v.folder()+"/"+name] = content
		}
	}
	return all
}

var kinds = []string{"root", "allowlist", "walk", "order", "hello", "receipt", "given"}

// The files are those that this program makes, byte for byte: nobody edits a vector by hand, and none
// is left over.
func TestTheVectorsAreThoseThatAreMade(t *testing.T) {
	writeOnce(t)
	want := files(t)
	found := map[string]bool{}
	for _, kind := range kinds {
		err := filepath.WalkDir(kind, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				found[filepath.ToSlash(path)] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range want {
		got, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s is not what is made (%v): go test ./test/vectors -update", name, err)
		}
		delete(found, name)
	}
	for name := range found {
		t.Errorf("%s is not made any more", name)
	}
}

var written sync.Once

// writeOnce writes what is made, when that is asked for, before any test reads it.
func writeOnce(t testing.TB) {
	if *update {
		written.Do(func() { write(t, files(t)) })
	}
}

func write(t testing.TB, all map[string][]byte) {
	for _, kind := range kinds {
		if err := os.RemoveAll(kind); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range all {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Every reason that a document alone can be refused for has a case, and every kind one that is taken.
func TestEveryReasonHasAVector(t *testing.T) {
	seen := map[string]int{}
	for _, c := range cases(t) {
		seen[c.kind+" "+c.verdict]++
		seen[c.verdict]++
	}
	for _, reason := range []signing.Reason{
		signing.ReasonMalformed, signing.ReasonTooLarge, signing.ReasonUntrusted, signing.ReasonWrongType, signing.ReasonWrongHost,
		signing.ReasonStaleChallenge, signing.ReasonRollback, signing.ReasonExpired, signing.ReasonNotAllowed, signing.ReasonParam,
		signing.ReasonPin, signing.ReasonSecretMismatch, signing.ReasonUnsupportedProto, dispatch.ReasonReceiptMismatch,
	} {
		if seen["refused "+string(reason)] == 0 {
			t.Errorf("no case is refused with %s", reason)
		}
	}
	for _, kind := range kinds[:len(kinds)-1] {
		if seen[kind+" ok"] == 0 {
			t.Errorf("no %s is taken", kind)
		}
	}
}

// vectorCase is a folder as anybody reads it.
type vectorCase struct {
	path, kind string
	// verdict is what the folder's name says: "ok" or "refused REASON".
	verdict string
	settings
}

var folderName = regexp.MustCompile(`^(.+)_(ok|refused_[a-z-]+)$`)

func cases(t testing.TB) []vectorCase {
	t.Helper()
	writeOnce(t)
	var all []vectorCase
	for _, kind := range kinds[:len(kinds)-1] {
		folders, err := os.ReadDir(kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range folders {
			c := vectorCase{path: filepath.Join(kind, f.Name()), kind: kind}
			parts := folderName.FindStringSubmatch(f.Name())
			if parts == nil {
				t.Fatalf("%s says no verdict", c.path)
			}
			c.verdict = strings.Replace(parts[2], "_", " ", 1)
			text, err := os.ReadFile(filepath.Join(c.path, "case.json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &c.settings); err != nil {
				t.Fatalf("%s: %v", c.path, err)
			}
			all = append(all, c)
		}
	}
	return all
}

// file is the path of a file of a case, or of the given one; "" when there is neither.
func (c *vectorCase) file(name string) string {
	for _, path := range []string{filepath.Join(c.path, name), filepath.Join("given", name)} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// roots are the roots of a case, oldest first.
func (c *vectorCase) roots(t *testing.T) []string {
	t.Helper()
	own, err := filepath.Glob(filepath.Join(c.path, "root.*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(own) == 0 {
		return []string{"given/root.1.json"}
	}
	slices.Sort(own) // none has ten
	return own
}

// arguments are how kpssh is asked about a case.
func (c *vectorCase) arguments(t *testing.T) []string {
	t.Helper()
	args := []string{"verify", c.kind, "-o", "json"}
	flags := map[string]string{"key": c.Key, "host-id": c.HostID}
	var documents []string
	switch c.kind {
	case "root":
		documents = c.roots(t)
	case "walk":
		own, err := filepath.Glob(filepath.Join(c.path, "[0-9][0-9].*.json"))
		if err != nil {
			t.Fatal(err)
		}
		documents = own
	case "order":
		flags["allowlist"], flags["parameters"] = c.file("allowlist.json"), c.file("parameters.json")
		flags["script"], flags["secrets"] = c.file("script"), c.file("secrets.json")
		flags["challenge"] = string(bytes.Trim(encode(t, c.Challenge), `"`))
		documents = []string{c.file("order.json")}
	case "receipt":
		flags["order"] = filepath.Join(c.path, "order.json")
		if _, err := os.Stat(flags["order"]); errors.Is(err, fs.ErrNotExist) {
			delete(flags, "order")
		}
		documents = []string{c.file("receipt.json")}
	default:
		documents = []string{c.file(c.kind + ".json")}
	}
	if c.kind == "allowlist" || c.kind == "order" {
		for _, root := range c.roots(t) {
			args = append(args, "--root", root)
		}
	}
	if c.At != nil {
		flags["at"] = c.At.Format("2006-01-02T15:04:05Z07:00")
	}
	if c.Floor > 0 {
		flags["floor"] = fmt.Sprint(c.Floor)
	}
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if flags[name] != "" {
			args = append(args, "--"+name, flags[name])
		}
	}
	return append(args, documents...)
}

func TestTheBinaryComesToTheVerdicts(t *testing.T) {
	lookAtSources(t)
	for _, c := range cases(t) {
		t.Run(filepath.ToSlash(c.path), func(t *testing.T) {
			t.Parallel()
			args := c.arguments(t)
			var stderr bytes.Buffer
			cmd := exec.Command(kpssh, args...)
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			var got struct{ Verdict, Reason, Detail string }
			if json.Unmarshal(out, &got) != nil {
				t.Fatalf("kpssh %s\n%v: %s%s", strings.Join(args, " "), err, out, stderr.String())
			}
			if verdict := strings.TrimSpace(got.Verdict + " " + got.Reason); verdict != c.verdict {
				t.Errorf("it says %s (%s), the name says %s\nkpssh %s", verdict, got.Detail, c.verdict, strings.Join(args, " "))
			}
			if code := cmd.ProcessState.ExitCode(); (code == 0) != (c.verdict == "ok") || code > 1 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
