package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Of two builder.Predicates on one watch controller-runtime heeds the last: node classes were looked at after every write of
// every host, which was most of what a controller of a large pool did.
func TestNoWatchHasPredicatesTwice(t *testing.T) {
	watches := 0
	err := filepath.WalkDir("../pkg", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			// How many arguments each has before its options.
			before, ok := map[string]int{"For": 1, "Owns": 1, "Watches": 2}[method.Sel.Name]
			if ok && len(call.Args) >= before {
				watches++
				if len(call.Args) > before+1 {
					t.Errorf("%s: %s has options twice: put all predicates into one", files.Position(call.Pos()), method.Sel.Name)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if watches < 10 {
		t.Errorf("only %d watches were found", watches)
	}
}
