package keys

import (
	"os"
	"regexp"
	"strings"
	"unicode"
)

// maxExplained is how much of a service's own words is shown, in bytes.
const maxExplained = 400

// tokens are the looks of those that clients get for themselves: whatever follows "Bearer", JSON Web
// Tokens, Vault's tokens.
const tokens = `(?i:bearer)\s+[^\s"',]+|eyJ[\w-]+\.[\w-]+\.[\w-]*|\bhv[sbr]\.[\w-]+`

// credentialVariables hold what the clients log in with.
func credentialVariables() []string {
	return []string{
		"VAULT_TOKEN", "BAO_TOKEN",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
		"AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_PASSWORD",
	}
}

// explain is a client's error in one line and without credentials: it holds text of a server, which
// knows those that it was sent.
func explain(err error) string {
	text := err.Error()
	secrets := []string{vaultToken()}
	for _, name := range credentialVariables() {
		secrets = append(secrets, os.Getenv(name))
	}
	for _, secret := range secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	text = regexp.MustCompile(`://[^/\s@]+@`).ReplaceAllString(text, "://***@")
	text = regexp.MustCompile(tokens).ReplaceAllString(text, "***")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if len(text) > maxExplained {
		text = strings.ToValidUTF8(text[:maxExplained], "") + "…"
	}
	return text
}
