package test

import (
	"os"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

func TestHostSetupSaysWhatEachFindingOfTheDoctorMeans(t *testing.T) {
	text, err := os.ReadFile("../docs/host-setup.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // finding → mark
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.HasPrefix(cells[1], " `") {
			rows[strings.Trim(cells[1], " `")] = strings.TrimSpace(cells[2])
		}
	}
	for _, f := range wire.Findings() {
		mark, ok := rows[f.Name]
		if !ok {
			t.Errorf("docs/host-setup.md has no row for %s", f.Name)
		} else if (mark == "✗") != f.Bypass {
			t.Errorf("docs/host-setup.md marks %s with %q; that it leads around the shim is %v", f.Name, mark, f.Bypass)
		}
		delete(rows, f.Name)
	}
	for name := range rows {
		t.Errorf("docs/host-setup.md has a row for %s, which the doctor does not know", name)
	}
}
