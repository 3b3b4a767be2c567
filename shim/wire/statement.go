package wire

// Statement is what `kpssh-shim enroll --json` prints: who the host is. Whoever enrolls it checks
//
//   - Hello under ReceiptKey (signing.OpenHello): the host holds the key, and HostID, ShimVersion
//     and Findings of the statement are those of the hello;
//   - one of Signatures over the bytes of Hello, under the host key that the SSH connection showed
//     (OpenSSH's SSHSIG, namespace StatementNamespace): it is this host that says so.
type Statement struct {
	HostID      string   `json:"hostID"`
	ReceiptKey  string   `json:"receiptKey"` // as signing.ParseKey reads it
	HostKeys    []string `json:"hostKeys"`   // SSH host keys, one public key line each
	ShimVersion string   `json:"shimVersion"`
	Findings    []string `json:"findings"` // of the doctor, names of a closed list
	Root        int64    `json:"root"`     // version of the root that the host believes
	Hello       []byte   `json:"statement"`
	// Signatures are armored SSHSIGs of Hello, at the place of their key in HostKeys; empty where
	// a host key could not sign.
	Signatures []string `json:"signatures"`
}

// StatementNamespace keeps a host key's signature of a statement from being taken for another.
const StatementNamespace = "kpssh-enroll"
