package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// imageSBOM makes the CycloneDX document of a program that of its image, which holds certificate authorities besides.
func imageSBOM(ofProgram []byte) ([]byte, error) {
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(ofProgram))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return nil, fmt.Errorf("reading the SBOM: %w", err)
	}
	components, ok := document["components"].([]any)
	if document["bomFormat"] != "CycloneDX" || !ok {
		return nil, errors.New("reading the SBOM: it is no CycloneDX document with components")
	}
	version, err := rootsVersion()
	if err != nil {
		return nil, err
	}
	purl := "pkg:golang/" + rootsModule + "@" + version
	document["components"] = append(components, map[string]any{
		"bom-ref": purl, "type": "data", "name": rootsModule, "version": version, "purl": purl,
		"description": "certificate authorities in /etc/ssl/certs/ca-certificates.crt",
	})
	out, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the SBOM: %w", err)
	}
	return append(out, '\n'), nil
}
