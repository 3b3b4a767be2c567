package adminlogin

import "crypto/ed25519"

// probeKey is a key that no sane host has: its private half is all zeros, for everybody to see.
func probeKey() ed25519.PublicKey {
	return ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey)
}
