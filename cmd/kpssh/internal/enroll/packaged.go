package enroll

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/adminlogin"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// packageUnit is there where a distribution's package brought the shim, and only there.
const packageUnit = "/usr/lib/systemd/system/kpssh.socket"

// Packaged asks a host for the version of the kpssh-shim that a distribution's package has put on it. It
// is empty where none has; then the shim is ours to bring.
func Packaged(ctx context.Context, root *adminlogin.Root) (string, error) {
	out, err := root.Run(ctx, "if [ -e "+packageUnit+" ]; then "+wire.ShimPath+" version; fi", nil)
	if err != nil {
		return "", fmt.Errorf("asking for the version of the packaged kpssh-shim: %w", err)
	}
	fields := strings.Fields(lastLine(out)) // a chatty profile prints before it
	if len(fields) != 3 || fields[0] != "kpssh-shim" {
		return "", nil
	}
	return fields[1], nil
}

// Older tells whether one release came before another. What is no release, such as a build between
// two, is not compared.
func Older(have, than string) bool {
	a, err1 := version.ParseSemantic(have)
	b, err2 := version.ParseSemantic(than)
	return err1 == nil && err2 == nil && a.LessThan(b)
}
