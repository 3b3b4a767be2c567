// Package remote is the SSH client of kpssh: it dials pool hosts with pinned host keys, keeps the
// connections in a pool, and runs one command per stream.
//
// Everything that a host can do to a client is bounded here. The whole handshake, from the first
// TCP packet to the accepted key, has one deadline; an open connection is asked for a sign of life
// every 15 seconds and given up after three intervals without one; stderr is kept only as a tail;
// a channel that the host does not close is closed with its connection.
//
// What goes wrong falls in one of four classes, told apart by [Class] and never by message text:
//
//   - [Unreachable]: no connection, or a connection that was lost. Trying again may help.
//   - [AuthRejected]: the host answered and took none of the keys.
//   - [HostKeyMismatch]: the host is not the one that was pinned. Trying again never helps.
//   - [ExitError]: the command ran and ended with something else than 0.
//
// An error of no class is a mistake in the [Target]: nothing was dialled.
//
// Each has stable reasons, told by [Reason]. A [JumpError] around one says at which jump host it was.
//
// A [Target] may lie behind jump hosts, each with a login and a pin of its own. A [Pool] keeps one connection to each
// jump host, which all hosts behind it share; pins belong to a target and a hop, never to the address of a tunnel.
// A pool keeps the books that an sshd keeps of it: it opens few handshakes with one sshd at once, comes back later where
// MaxStartups refused it, and leaves an sshd alone before failed logins would have PerSourcePenalties keep it out.
//
// Only modern SSH is spoken: strict key exchange (the answer to CVE-2023-48795), AEAD or
// encrypt-then-MAC ciphers, SHA-2 signatures. A host that offers less is Unreachable with
// [ReasonWeakCrypto].
package remote
