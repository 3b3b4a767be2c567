//go:build e2e

package artifact

import (
	"debug/elf"
	"os"
	"testing"
)

// maxShim is what a Raspberry Pi's SD card and a root process's reviewers are asked to carry, in bytes.
const maxShim = 5_000_000

func TestTheShimIsStaticAndSmall(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) {
			path := "../../bin/kpssh-shim-linux-" + arch
			info, err := os.Stat(path)
			if err != nil {
				t.Fatalf("%v: run `make build` first", err)
			}
			if info.Size() > maxShim {
				t.Errorf("%d bytes, at most %d", info.Size(), maxShim)
			}
			f, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			if f.Machine != machine {
				t.Errorf("it is for %v", f.Machine)
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
					t.Errorf("it has a %v segment: it is not static", p.Type)
				}
			}
			if f.Section(".symtab") != nil {
				t.Error("it is not stripped")
			}
			t.Logf("%d bytes, static", info.Size())
		})
	}
}
