package enroll

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
)

// maxBinary is far above what a shim weighs.
const maxBinary = 64 << 20

// Binary reads the kpssh-shim for an architecture: from a file, from a folder, or, when path is
// empty, from the folders where a release puts it beside the CLI.
func Binary(path, executable, arch string) ([]byte, string, error) {
	var folders []string
	if path != "" {
		info, err := os.Stat(path)
		if err != nil {
			return nil, "", err
		}
		if !info.IsDir() {
			data, err := readBinary(path, arch)
			return data, path, err
		}
		folders = []string{path}
	} else if executable != "" {
		if real, err := filepath.EvalSymlinks(executable); err == nil {
			executable = real
		}
		here := filepath.Dir(executable)
		folders = []string{here, filepath.Join(here, "..", "libexec", "kpssh"), filepath.Join(here, "..", "lib", "kpssh")}
	}
	for _, folder := range folders {
		for _, name := range []string{"kpssh-shim-linux-" + arch, "kpssh-shim_linux_" + arch, "kpssh-shim-" + arch, "kpssh-shim"} {
			candidate := filepath.Join(folder, name)
			data, err := readBinary(candidate, arch)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errOtherArch) && name == "kpssh-shim" {
				continue
			}
			return data, candidate, err
		}
	}
	return nil, "", cli.Hint(fmt.Errorf("there is no kpssh-shim for linux/%s in %q", arch, folders),
		"name the binary, or the folder of kpssh-shim-linux-%s, with --shim", arch)
}

var errOtherArch = errors.New("built for another architecture")

func readBinary(path, arch string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxBinary {
		return nil, fmt.Errorf("%q is too large for a kpssh-shim", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%q is not a Linux binary: %v", path, err)
	}
	defer func() { _ = f.Close() }()
	if want := machine(arch); f.Machine != want {
		return nil, fmt.Errorf("%q is for %v, the host is %v: %w", path, f.Machine, want, errOtherArch)
	}
	return data, nil
}

func machine(arch string) elf.Machine {
	switch arch {
	case "amd64":
		return elf.EM_X86_64
	case "arm64":
		return elf.EM_AARCH64
	case "arm":
		return elf.EM_ARM
	case "riscv64":
		return elf.EM_RISCV
	case "ppc64le":
		return elf.EM_PPC64
	case "s390x":
		return elf.EM_S390
	}
	return elf.EM_NONE
}
