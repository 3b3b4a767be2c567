// Package keystest has key services for tests: servers on loopback that speak as much of the protocols
// of Vault, AWS KMS, Azure Key Vault and Google Cloud KMS as sigstore's clients use, and that misbehave on
// demand. They are written after the providers' own documentation; what only the real services do,
// such as who may use a key, they do not know.
package keystest

// T is what is used of a testing.T, for those who have another.
type T interface {
	Helper()
	Cleanup(func())
	Fatal(args ...any)
	Errorf(format string, args ...any)
}
