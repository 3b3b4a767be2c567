// Package test holds what is true of the repository as a whole.
package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"sort"
	"strings"
	"testing"
)

const module = "github.com/kpssh/karpenter-provider-ssh/"

// rule says what of ours a package imports itself, and what it must not reach at all.
type rule struct {
	// may lists our packages (or trees, with a final slash) that it imports directly.
	may []string
	// never lists packages (or trees, with a final slash) that its whole closure must not hold.
	never []string
	// only, where set, lists all that its closure may hold outside the standard library and ours.
	only []string
}

// rules is the import table of docs/architecture.md. The longest matching key counts, and before it one that is the path.
var rules = map[string]rule{
	"signing":         {never: []string{"k8s.io/", "sigs.k8s.io/", "github.com/sigstore/", "net/http", "crypto/tls"}},
	"signing/keys":    {may: []string{"signing"}, never: []string{"k8s.io/", "sigs.k8s.io/"}},
	"shim/wire":       {never: []string{"k8s.io/", "sigs.k8s.io/", "github.com/sigstore/", "net/http"}},
	"pkg/profile":     {never: []string{"k8s.io/", "sigs.k8s.io/", "github.com/sigstore/", "net/http"}},
	"shim/shimtest":   {may: []string{"signing", "shim/wire"}, never: shimNever},
	"shim":            {may: []string{"signing", "shim/wire", "packaging"}, never: shimNever, only: shimOnly},
	"cmd/kpssh-shim":  {may: []string{"shim"}, never: shimNever, only: shimOnly},
	"packaging/image": {},
	"pkg/remote":      {never: []string{module + "signing", "k8s.io/", "sigs.k8s.io/"}},
	"pkg/dispatch": {
		may:   []string{"pkg/remote", "shim/wire", "signing", "pkg/profile", "pkg/apis/"},
		never: []string{module + "pkg/cloudprovider", module + "pkg/controllers/", "sigs.k8s.io/karpenter/"},
	},
	"pkg/apis/":     {may: []string{"pkg/apis/"}},
	"pkg/bootstrap": {may: []string{"pkg/apis/"}},
	"pkg/pool":      {may: []string{"pkg/apis/"}, never: []string{module + "pkg/remote", module + "pkg/cloudprovider", module + "pkg/controllers/"}},
	"pkg/preflight": {
		may:   []string{"pkg/apis/", "shim/wire"},
		never: []string{module + "pkg/remote", module + "pkg/dispatch", module + "pkg/controllers/"},
	},
	"pkg/hostaccess": {may: []string{"pkg/apis/", "pkg/remote", "pkg/dispatch", "signing"}},
	"pkg/instancetype": {
		may:   []string{"pkg/apis/", "pkg/pool"},
		never: []string{module + "pkg/remote", module + "pkg/dispatch", module + "pkg/controllers/"},
	},
	"pkg/cloudprovider": {
		may:   []string{"pkg/apis/", "pkg/pool", "pkg/instancetype"},
		never: []string{module + "pkg/remote", module + "pkg/dispatch", module + "pkg/controllers/"},
	},
	"pkg/membership": {
		may:   []string{"pkg/apis/", "pkg/pool", "pkg/dispatch", "pkg/hostaccess", "pkg/bootstrap", "pkg/profile", "pkg/preflight", "signing"},
		never: []string{module + "pkg/cloudprovider", module + "pkg/controllers/"},
	},
	// pkg/controllers itself only puts them together.
	"pkg/controllers": {
		may: []string{
			"pkg/apis/", "pkg/pool", "pkg/dispatch", "pkg/hostaccess", "pkg/bootstrap", "pkg/profile", "pkg/membership", "pkg/preflight",
			"signing", "pkg/controllers/",
		},
	},
	"pkg/controllers/": {
		may: []string{
			"pkg/apis/", "pkg/pool", "pkg/dispatch", "pkg/hostaccess", "pkg/bootstrap", "pkg/profile", "pkg/membership", "pkg/preflight",
			"signing",
		},
	},
	"cmd/kpssh/": {
		may:   []string{"cmd/kpssh/", "signing", "signing/keys", "pkg/apis/", "pkg/profile", "pkg/remote", "pkg/dispatch", "shim/wire"},
		never: []string{module + "pkg/controllers/", "sigs.k8s.io/karpenter/"},
	},
}

var (
	shimNever = []string{"k8s.io/", "sigs.k8s.io/", "github.com/sigstore/", "net/http", "crypto/tls", "text/template", "html/template", "plugin", "archive/", "compress/", module + "pkg/"}
	shimOnly  = []string{"golang.org/x/sys/", "golang.org/x/crypto/", "github.com/secure-systems-lab/go-securesystemslib/", "vendor/"}
)

type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
}

func load(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Imports", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	pkgs := map[string]listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[p.ImportPath] = p
	}
}

func matches(path string, patterns []string) bool {
	for _, p := range patterns {
		if path == p || path == strings.TrimSuffix(p, "/") || strings.HasSuffix(p, "/") && strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

func ruleFor(path string) (rule, string) {
	if r, ok := rules[path]; ok {
		return r, path
	}
	best := ""
	for key := range rules {
		if matches(path, []string{key}) && len(key) > len(best) {
			best = key
		}
	}
	return rules[best], best
}

// chain returns how from reaches to, for a failure that says where to cut.
func chain(pkgs map[string]listed, from, to string) string {
	parent := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range pkgs[queue[0]].Imports {
			if _, seen := parent[next]; seen {
				continue
			}
			parent[next] = queue[0]
			queue = append(queue, next)
		}
	}
	var path []string
	for at := to; at != ""; at = parent[at] {
		path = append([]string{at}, path...)
	}
	return strings.Join(path, "\n    → ")
}

func closure(pkgs map[string]listed, from string) []string {
	seen := map[string]bool{}
	var visit func(string)
	visit = func(p string) {
		for _, next := range pkgs[p].Imports {
			if !seen[next] {
				seen[next] = true
				visit(next)
			}
		}
	}
	visit(from)
	out := make([]string, 0, len(seen))
	for p := range seen {
		out = append(out, p)
	}
	sort.Strings(out)
	return out
}

// broken returns one line for each way in which package path breaks its rule.
func broken(pkgs map[string]listed, path string) []string {
	short := strings.TrimPrefix(path, module)
	r, key := ruleFor(short)
	if key == "" {
		return nil
	}
	var out []string
	for _, imp := range pkgs[path].Imports {
		if own, ok := strings.CutPrefix(imp, module); ok && !matches(own, r.may) {
			out = append(out, short+" must not import "+own)
		}
	}
	for _, dep := range closure(pkgs, path) {
		third := !pkgs[dep].Standard && !strings.HasPrefix(dep, module)
		if matches(dep, r.never) || r.only != nil && third && !matches(dep, r.only) {
			out = append(out, short+" must not reach "+dep+":\n    "+chain(pkgs, path, dep))
		}
	}
	return out
}

func TestEveryPackageKeepsToTheImportTable(t *testing.T) {
	pkgs := load(t)
	used := map[string]bool{}
	for path := range pkgs {
		short, own := strings.CutPrefix(path, module)
		if !own {
			continue
		}
		_, key := ruleFor(short)
		used[key] = true
		for _, line := range broken(pkgs, path) {
			t.Error(line)
		}
	}
	for key := range rules {
		if !used[key] {
			t.Errorf("the import table names %q, which no package matches", key)
		}
	}
}

// Sigstore runs programs from PATH for key schemes that it does not know: it has one way in, which lets through those
// that it knows.
func TestSigstoreIsReachedThroughSigningKeysOnly(t *testing.T) {
	found := false
	for path, pkg := range load(t) {
		short, own := strings.CutPrefix(path, module)
		for _, imp := range pkg.Imports {
			switch {
			case !own || !strings.HasPrefix(imp, "github.com/sigstore/"):
			case short == "signing/keys":
				found = true
			default:
				t.Errorf("%s imports %s", short, imp)
			}
		}
	}
	if !found {
		t.Error("signing/keys does not import it either: this test looks for the wrong name")
	}
}

func TestTheImportTableCanFail(t *testing.T) {
	pkgs := map[string]listed{
		module + "shim":            {ImportPath: module + "shim", Imports: []string{module + "pkg/pool", "os/exec"}},
		module + "pkg/pool":        {ImportPath: module + "pkg/pool", Imports: []string{"net/http"}},
		"net/http":                 {ImportPath: "net/http", Standard: true},
		"os/exec":                  {ImportPath: "os/exec", Standard: true},
		module + "pkg/controllers": {},
	}
	got := strings.Join(broken(pkgs, module+"shim"), "\n")
	for _, want := range []string{
		"shim must not import pkg/pool",
		"shim must not reach net/http:\n    " + module + "shim\n    → " + module + "pkg/pool\n    → net/http",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in:\n%s", want, got)
		}
	}
}
