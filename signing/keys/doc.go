// Package keys makes, reads and writes the private keys behind signing: for the operator's
// computer and the controller, never for a host.
//
// A key file is PEM: PKCS #8 ("PRIVATE KEY"), or the passphrase-encrypted form that cosign and
// sigstore write ("ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY"), so that
// existing cosign keys work as they are. SEC 1 ("EC PRIVATE KEY") is read too. Other encrypted forms
// are not: their cost and strength are whatever the file says. Only ed25519 and ECDSA P-256 keys
// are taken, whatever a file holds.
//
// A key reference is a path, or names a key in one of four key services: awskms, gcpkms, azurekms,
// hashivault. References come from flags, never from an object of the cluster: sigstore runs a
// program from PATH for a scheme that it does not know. So the scheme is looked up in a list of our
// own, and its client loaded without sigstore's registry. A service's key is asked for its public
// half once; each call has a deadline, and each signature is verified before it is handed out.
//
// Files are created with mode 0600 and never overwritten; passphrases come from a PassFunc, which
// asks a terminal or reads a file or an environment variable, and never from a command line.
package keys
