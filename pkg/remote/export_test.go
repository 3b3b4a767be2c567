package remote

import "golang.org/x/crypto/ssh"

// Check asks the policy without dialling.
func (p HostKeyPolicy) Check(t Target, key ssh.PublicKey) error { return p.check(t, key) }
