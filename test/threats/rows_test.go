// Package threats plays the threat table: what an attacker or a fault may try against a pool host and its controller.
// Each row of docs/threat-model.md has a test here whose name begins with that of the row, which drives the built
// binaries. This file checks that none is missing; it needs neither root nor the binaries.
package threats

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rows are those of the design's threat table. They stand here and are not read from the document: a row that somebody
// strikes out there must be missed.
var rows = strings.Fields(`
	A1 A2 A4 A5 A6 A7 A8 A10 A11 A12 A13 A14 A15 A16 A18 A21
	B1 B2 B3 B4 B5 B7 B8 B9
	C1 C3 C4 C5 C6 C8 C9 C10 C12 C13 C14
	D1 D3 D4 D5 D7 D8 D9 D11 D12 D13 D14`)

const document = "../../docs/threat-model.md"

// drivers are the directories whose tests drive the built binaries.
var drivers = []string{"test/threats", "test/e2e"}

// tableRow is one row of the document: its tests and the places that close it.
type tableRow struct{ attack, closedBy, tests, open string }

// table reads the rows of the document's tables.
func table(t *testing.T) map[string]tableRow {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]tableRow{}
	name := regexp.MustCompile(`^[A-D]\d+$`)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !name.MatchString(cells[0]) {
			continue
		}
		if len(cells) != 5 {
			t.Errorf("row %s has %d cells, not 5 (row, attack, closed by, tests, what remains open)", cells[0], len(cells))
			continue
		}
		if _, twice := found[cells[0]]; twice {
			t.Errorf("row %s is there twice", cells[0])
		}
		found[cells[0]] = tableRow{cells[1], cells[2], cells[3], cells[4]}
	}
	return found
}

// test is a test that the document names: the directory and the function.
type test struct{ dir, name string }

// named are the tests of a cell: `TestX` of this directory, `some/dir.TestX` of another.
func named(cell string) []test {
	var all []test
	for _, m := range regexp.MustCompile("`(?:([a-zA-Z0-9/_-]+)\\.)?((?:Test|Fuzz)[A-Za-z0-9_]+)`").FindAllStringSubmatch(cell, -1) {
		dir := m[1]
		if dir == "" {
			dir = "test/threats"
		}
		all = append(all, test{dir, m[2]})
	}
	return all
}

// declared are the functions, methods, types, constants and variables at the top of the Go files of a directory, or of
// one file, whatever their build tags.
func declared(t *testing.T, path string) map[string]bool {
	t.Helper()
	files := []string{filepath.Join("../..", path)}
	if !strings.HasSuffix(path, ".go") {
		var err error
		if files, err = filepath.Glob(filepath.Join("../..", path, "*_test.go")); err != nil {
			t.Fatal(err)
		}
	}
	names := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					for _, name := range specNames(s) {
						names[name] = true
					}
				}
			}
		}
	}
	return names
}

func specNames(s ast.Spec) (names []string) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		names = append(names, s.Name.Name)
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names = append(names, n.Name)
		}
	}
	return names
}

// Every row of the design stands in the document, says all that it must, and names a test that is called after it and
// that drives the built binaries.
func TestEveryRowHasATest(t *testing.T) {
	all := table(t)
	for _, row := range rows {
		r, there := all[row]
		if !there {
			t.Errorf("row %s is not in %s", row, document)
			continue
		}
		if r.attack == "" || r.closedBy == "" || r.open == "" {
			t.Errorf("row %s: a cell is empty; where nothing remains open, say so", row)
		}
		driven := slices.ContainsFunc(named(r.tests), func(n test) bool {
			return slices.Contains(drivers, n.dir) && strings.HasPrefix(n.name, "Test"+row+"_")
		})
		if !driven {
			t.Errorf("row %s names no test Test%s_… of %s", row, row, strings.Join(drivers, " or "))
		}
		delete(all, row)
	}
	for _, row := range slices.Sorted(maps.Keys(all)) {
		t.Errorf("row %s is in the document and not in the list of this test", row)
	}
}

// Every test that the document names exists, and every test that is called after a row is named by it.
func TestEveryNamedTestExists(t *testing.T) {
	there := map[string]map[string]bool{}
	for row, r := range table(t) {
		for _, n := range named(r.tests) {
			if there[n.dir] == nil {
				there[n.dir] = declared(t, n.dir)
			}
			if !there[n.dir][n.name] {
				t.Errorf("row %s names %s of %s, which does not exist", row, n.name, n.dir)
			}
		}
		for _, dir := range drivers {
			for name := range declared(t, dir) {
				if strings.HasPrefix(name, "Test"+row+"_") && !slices.Contains(named(r.tests), test{dir, name}) {
					t.Errorf("row %s does not name %s of %s", row, name, dir)
				}
			}
		}
	}
}

// Every place that closes a row, `file.go:name`, exists.
func TestEveryNamedPlaceExists(t *testing.T) {
	place := regexp.MustCompile("`([a-zA-Z0-9/_.-]+\\.go):([A-Za-z0-9_]+)`")
	file := regexp.MustCompile("`([a-zA-Z0-9_.-]+/[a-zA-Z0-9/_.@-]+)`")
	for row, r := range table(t) {
		for _, m := range place.FindAllStringSubmatch(r.closedBy, -1) {
			if !declared(t, m[1])[m[2]] {
				t.Errorf("row %s: there is no %s in %s", row, m[2], m[1])
			}
		}
		for _, m := range file.FindAllStringSubmatch(r.closedBy, -1) {
			if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
				t.Errorf("row %s: %v", row, err)
			}
		}
	}
}
