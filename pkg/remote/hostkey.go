package remote

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// HostKeyPolicy decides which host key is the right one. Make it with Pin or FirstUse; the zero
// value accepts nothing.
type HostKeyPolicy struct {
	// fingerprints are the pinned keys; keyTypes their types, where the pin tells.
	fingerprints []string
	keyTypes     []string
	authorities  []authority
	firstUse     func(fingerprint string) error
}

// authority is a host CA, and the patterns of its line that say which hosts it is for.
type authority struct {
	fingerprint string
	patterns    []string
}

// Pin accepts only what text names, one a line: keys, as "SHA256:…" fingerprints, known_hosts lines or public key
// lines, and host CAs, as known_hosts lines with the marker @cert-authority.
//
// The host names of a key's known_hosts line are ignored, since the text belongs to one host already. Those of a CA's
// line say what a certificate must be for, since a CA has many hosts: one of its names, or, where a pattern of the line
// matches it, the address that is dialled. As with OpenSSH, [NAME]:PORT counts on that port alone, a certificate names
// hosts without their port, and a line that negates the host is not for it.
func Pin(text string) (HostKeyPolicy, error) {
	var policy HostKeyPolicy
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := policy.addPin(line); err != nil {
			return HostKeyPolicy{}, fmt.Errorf("parsing host key pin: %w", err)
		}
	}
	if !policy.Pinned() {
		return HostKeyPolicy{}, errors.New("parsing host key pin: it names no key")
	}
	return policy, nil
}

func (p *HostKeyPolicy) addPin(line string) error {
	if digest, ok := strings.CutPrefix(line, "SHA256:"); ok {
		// OpenSSH prints fingerprints without padding, other tools with.
		raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(digest, "="))
		if err != nil || len(raw) != 32 {
			return errors.New("a SHA256: fingerprint is the base64 of 32 bytes")
		}
		p.fingerprints = append(p.fingerprints, "SHA256:"+base64.RawStdEncoding.EncodeToString(raw))
		p.keyTypes = append(p.keyTypes, hostKeyTypes()...)
		return nil
	}
	key, ca, err := parseKeyLine(line)
	switch {
	case err != nil:
		return err
	case !slices.Contains(hostKeyTypes(), key.Type()):
		return fmt.Errorf("host keys of type %q are not supported", key.Type())
	case ca != nil:
		p.authorities = append(p.authorities, *ca)
		return nil
	}
	p.fingerprints = append(p.fingerprints, ssh.FingerprintSHA256(key))
	p.keyTypes = append(p.keyTypes, key.Type())
	return nil
}

// parseKeyLine also returns the authority where the line is of one.
func parseKeyLine(line string) (ssh.PublicKey, *authority, error) {
	if key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line)); err == nil {
		return key, nil, nil
	}
	marker, hosts, key, _, _, err := ssh.ParseKnownHosts([]byte(line))
	if errors.Is(err, io.EOF) || err != nil {
		return nil, nil, errors.New("neither a SHA256: fingerprint, nor a known_hosts line, nor a public key line")
	}
	switch marker {
	case "":
		return key, nil, nil
	case "cert-authority":
		return key, &authority{fingerprint: ssh.FingerprintSHA256(key), patterns: hosts}, nil
	}
	return nil, nil, fmt.Errorf("known_hosts marker @%s is not supported", marker)
}

// FirstUse lets accept decide about whatever key the host shows. Use it only where nothing is sent
// that another host must not have, and pin what it was told afterwards.
func FirstUse(accept func(fingerprint string) error) HostKeyPolicy {
	return HostKeyPolicy{firstUse: accept, keyTypes: hostKeyTypes()}
}

// Pinned tells a policy that knows its keys beforehand from one that takes what it gets.
func (p HostKeyPolicy) Pinned() bool { return len(p.fingerprints) > 0 || len(p.authorities) > 0 }

func (p HostKeyPolicy) isZero() bool { return p.firstUse == nil && !p.Pinned() }

// identity is the same for policies that accept the same.
func (p HostKeyPolicy) identity() string { return fmt.Sprintf("%q %q", p.fingerprints, p.authorities) }

// types are the host key types worth asking for, in our order of preference: certificates first.
func (p HostKeyPolicy) types() []string {
	var types []string
	if len(p.authorities) > 0 {
		types = certificateTypes()
	}
	return append(types, slices.DeleteFunc(hostKeyTypes(), func(t string) bool { return !slices.Contains(p.keyTypes, t) })...)
}

// check returns a *HostKeyMismatch when the key is not the right one for the target.
func (p HostKeyPolicy) check(t Target, key ssh.PublicKey) error {
	fingerprint := ssh.FingerprintSHA256(bareKey(key))
	if p.firstUse != nil {
		if err := p.firstUse(fingerprint); err != nil {
			return &HostKeyMismatch{Address: t.hostPort(), Got: fingerprint, Err: err}
		}
		return nil
	}
	if slices.Contains(p.fingerprints, fingerprint) {
		return nil
	}
	expected := slices.Clone(p.fingerprints)
	for _, ca := range p.authorities {
		expected = append(expected, "a certificate of CA "+ca.fingerprint)
	}
	mismatch := &HostKeyMismatch{Address: t.hostPort(), Expected: expected, Got: fingerprint}
	if certificate, ok := key.(*ssh.Certificate); ok {
		if mismatch.Err = p.checkCertificate(certificate, t); mismatch.Err == nil {
			return nil
		}
	}
	return mismatch
}

// checkCertificate says why a certificate is not one of an authority for the target.
func (p HostKeyPolicy) checkCertificate(certificate *ssh.Certificate, t Target) error {
	err := fmt.Errorf("its certificate is of CA %s", ssh.FingerprintSHA256(certificate.SignatureKey))
	for _, ca := range p.authorities {
		if ca.fingerprint != ssh.FingerprintSHA256(certificate.SignatureKey) {
			continue
		}
		switch {
		case certificate.CertType != ssh.HostCert:
			return errors.New("it shows a user's certificate")
		case certificate.Signature.Format == ssh.KeyAlgoRSA:
			return errors.New("its certificate is signed with SHA-1")
		}
		names := ca.names(t)
		if len(names) == 0 {
			err = fmt.Errorf("the line of CA %s is not for %s: it has %q", ca.fingerprint, t.hostPort(), strings.Join(ca.patterns, ","))
		}
		for _, name := range names {
			if err = (&ssh.CertChecker{}).CheckCert(name, certificate); err == nil {
				return nil
			}
		}
	}
	return err
}

// names are what a certificate for the target must name one of; none when the line is not for the target.
func (a authority) names(t Target) (names []string) {
	matched, negated := a.match(t.host(), t.port())
	if negated {
		return nil
	}
	if matched {
		names = append(names, t.host())
	}
	for _, pattern := range a.patterns {
		name := pattern
		if strings.ContainsAny(pattern, "*?!|") {
			continue
		}
		if end := strings.LastIndex(pattern, "]:"); strings.HasPrefix(pattern, "[") && end > 0 {
			name = pattern[1:end]
		}
		if matched, negated := a.match(name, t.port()); matched && !negated {
			names = append(names, name)
		}
	}
	return names
}

// match matches a host with its port and, as OpenSSH does when that is not found, without. A hashed name cannot be
// read, and stands for whatever is dialled.
func (a authority) match(host string, port int) (matched, negated bool) {
	forms := []string{strings.ToLower(host), fmt.Sprintf("[%s]:%d", strings.ToLower(host), port)}
	for _, pattern := range a.patterns {
		bare, not := strings.CutPrefix(strings.ToLower(pattern), "!")
		if !strings.HasPrefix(bare, "|") && !slices.ContainsFunc(forms, func(form string) bool { return wildcard(bare, form) }) {
			continue
		}
		matched, negated = matched || !not, negated || not
	}
	return matched, negated
}

// wildcard matches as known_hosts does: * and ? are all that is special, and brackets stand for themselves.
func wildcard(pattern, s string) bool {
	if pattern == "" {
		return s == ""
	}
	if pattern[0] == '*' {
		rest := strings.TrimLeft(pattern, "*")
		for i := range len(s) + 1 {
			if wildcard(rest, s[i:]) {
				return true
			}
		}
		return false
	}
	return s != "" && (pattern[0] == '?' || pattern[0] == s[0]) && wildcard(pattern[1:], s[1:])
}
