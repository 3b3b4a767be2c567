package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"runtime/debug"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsModule has the certificate authorities that Mozilla trusts, kept by the Go team. A machine's own /etc/ssl would
// differ from machine to machine.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// certificates is the PEM file of certificate authorities. A file cannot say that an authority is trusted for old
// certificates only: such a one is left out.
func certificates() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, fmt.Errorf("writing certificate authorities: %w", err)
		}
	}
	return out.Bytes(), nil
}

// rootsVersion is the version of rootsModule that is linked here.
func rootsVersion() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", errors.New("looking for the version of certificate authorities: this program was built without modules")
	}
	for _, m := range info.Deps {
		if m.Path == rootsModule {
			return m.Version, nil
		}
	}
	return "", fmt.Errorf("looking for the version of certificate authorities: %s is not linked", rootsModule)
}
