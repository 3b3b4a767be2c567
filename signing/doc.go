// Package signing is the format of kpssh's signed documents, and the only way to make and to read
// them. A caller gets a document after it was verified, or a [Refusal] with a reason of a closed
// list; there is no way to parse first and verify later. Use [Sign] and the Open functions;
// [AddSignature], [Merge] and [Inspect] are for the people who sign roots and allowlists.
//
// # Documents
//
// There are five, each with a payload type and keys of its own:
//
//	type                                        signed by
//	application/vnd.kpssh.root.v1+json          root keys: the threshold of the version before
//	                                            and of its own
//	application/vnd.kpssh.allowlist.v1+json     author keys of the root
//	application/vnd.kpssh.order.v1+json         dispatch keys of the root
//	application/vnd.kpssh.hello.v1+json         the host's receipt key, known from enrolment
//	application/vnd.kpssh.receipt.v1+json       the host's receipt key
//
// A root lists, per role, up to 16 keys and how many distinct ones must sign. The first root is
// trusted because the host was provisioned with it; version N+1 is trusted when it follows N and
// both thresholds are met, whether or not N has expired. An allowlist names rendered scripts by
// digest, with the schema of their parameters and the values that are pinned. A hello carries 32
// random bytes that live in one process of the host; an order carries them back, so that it can
// be used in that session and nowhere else; a receipt answers one order.
//
// # Envelope
//
// A document travels in a DSSE envelope (https://github.com/secure-systems-lab/dsse, version 1),
// a JSON object:
//
//	{"payloadType":TYPE,"payload":BASE64,"signatures":[{"sig":BASE64},…]}
//
// Each signature is over the pre-authentication encoding
//
//	"DSSEv1" SP LEN(TYPE) SP TYPE SP LEN(payload) SP payload
//
// where SP is one space and LEN a decimal number of bytes. Envelopes are written on one line
// without white space and without keyid: a keyid is signed by no one, and without it no byte of an
// envelope can change unnoticed. A reader takes fields that it does not know, white space, JSON
// escapes, a keyid (which decides only what is tried first), and both the standard and the URL
// alphabet of base64 with padding. It refuses a name that appears twice, data after the object,
// and base64 with line breaks or with bits to spare.
//
// # Payload
//
// The payload is JSON as encoding/json writes the types of this package: fields in the order of
// the type, keys of maps sorted bytewise, no white space, no HTML escapes;
// bytes in standard base64; times in UTC and whole seconds, "2026-05-01T12:00:00Z"; lists and maps
// never null; findings sorted. A payload is accepted only if it is UTF-8 and equals, byte for
// byte, its own encoding after reading. Unknown, repeated, missing and differently spelled fields
// all fail that one test. Then every field is held to its form: names and versions are at most 64
// characters of a small alphabet, digests are "sha256:" and 64 lower case hex digits.
//
// # Keys and signatures
//
// A key is an algorithm and a PKIX DER. There are two:
//
//	ed25519             RFC 8032 over the message; signatures of 64 bytes
//	ecdsa-p256-sha256   ECDSA on P-256 over SHA-256; signatures in strict DER
//
// A key has one spelling: P-256 points are uncompressed, ed25519 points canonical. Points off the
// curve and ed25519 points of small order are refused. On one line a key is written
// "ALGORITHM:BASE64"; its id is the digest of its DER.
//
// # Checks and their order
//
// Size of the envelope (order 8 KiB, hello and receipt 16 KiB, root 64 KiB, allowlist 1 MiB), how
// much structure its JSON has, its form, at most 8 signatures, payload type, base64, at most 4096
// bytes to sign for an order (what AWS KMS signs in one piece), signatures, payload. The threshold
// counts distinct public keys. Signatures that fit no key are passed over; in the documents of a
// session, which are signed by just those who must, at most n·(t+1) pairs of signature and key are
// tried for a role with n keys and threshold t. Refusing the worst envelope takes at most twice as
// long as accepting a good one.
//
// # Parameters
//
// The parameters of an order travel beside it, as a JSON object of strings in the same encoding;
// the order carries their digest. The allowlist says for each name the type, a pattern (RE2, which
// the whole value must match) or the values allowed, a maximum length, and whether the variable is
// optional or secret. Every type has built-in checks ([ParamType]) and a limit of its own; a
// string without pattern or enum must do without the characters that a shell gives a meaning to.
// No value has control, invisible or reordering characters. A parameter with pins must be there
// and equal one of them byte for byte, or the order is refused with pin and not with param; of a
// CA bundle the subject public key info of every certificate must be pinned. Secrets travel apart;
// the order carries Commitment(challenge, name, value) = SHA-256 of challenge ‖ name ‖ 0x00 ‖ value.
//
// # Example
//
// A host that knows no more than that the root has expired signs the payload (on one line)
//
//	{"hostID":"host-1","bootID":"","order":"","challenge":"","claim":"","fence":0,"profile":"",
//	"version":"","phase":"","script":"","parameters":"","outcome":"refused","reason":"expired",
//	"exitCode":0,"output":{"bytes":0,"kept":0,"digest":"","truncated":false},
//	"started":"0001-01-01T00:00:00Z","finished":"0001-01-01T00:00:00Z","durationMillis":0}
//
// which is 341 bytes. With the ed25519 key whose seed is 32 times "h",
//
//	ed25519:MCowBQYDK2VwAyEAVLDYHQ+n0A5KfWAN+rpvKyIDWyL+M14X7fX5qluwUHQ=
//
// it signs "DSSEv1 37 application/vnd.kpssh.receipt.v1+json 341 " and the payload, and sends
//
//	{"payloadType":"application/vnd.kpssh.receipt.v1+json","payload":"eyJob3N0SUQiOiJob3…","signatures":[{"sig":"nJMse0l5…4ockDg=="}]}
//
// as ExampleSign prints it in full.
package signing
