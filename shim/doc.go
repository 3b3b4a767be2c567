// Package shim is the host's end of karpenter-provider-ssh. It runs, as root, only what an offline
// author allowed, with parameters inside what the author allowed, on a fresh order of the
// controller for this host and this claim; and it answers with a receipt that it signs.
//
// # Two stages
//
//	ssh → sshd → kpssh-shim            relay: user kpssh, its login shell and forced command
//	             │ /run/kpssh/kpssh.sock (systemd), or sudo -n
//	             kpssh-shim root-stage  one process a session, as root
//	             │
//	             bash -p                the script, in a session and process group of its own
//
// Nothing that the relay concludes counts. Neither stage reads configuration from its environment
// or looks at what the client put on its command line.
//
// # A session
//
// Package wire has the frames, [Host.Serve] holds a session. The hello carries a challenge that
// lives only in that process, which makes replays, snapshots and clocks no matter. An order is
// checked frame by frame in the order that the method order lists, every refusal has a reason of
// signing's closed list, leaves the state as it was and one line in the log.
//
// # A run
//
// The script is in sealed memory when it is hashed, and that memory is what runs. From the moment
// that "started" is on disk the run does not depend on its client: output is drained and kept
// (head and tail, 1 MiB in all, secrets taken out), the deadline of the order is enforced here by
// a monotonic clock (TERM to the group, ten seconds, KILL to everything), and the receipt waits
// for a collect. A run is never repeated by the shim. One whose process or boot is gone is told as
// interrupted.
//
// What belongs to a run is every descendant of the root stage, which is a subreaper: a process
// that forks twice and leaves the session is still found and killed, with sudo as with systemd and
// with any kind of cgroup. With systemd the service's cgroup goes as well when the session ends,
// also when the root stage itself is killed; with sudo then only the script's own process goes
// (by its parent-death signal) and not what it started. A service that a script starts through
// systemctl belongs to systemd and stays.
//
// # State
//
// Everything is in /var/lib/kpssh, which only root may enter, opened once and reached through
// descriptors:
//
//	host.json       host id
//	receipt.key     P-256 key that signs hellos and receipts
//	root.json       root document, replaced by its successors only
//	allowlist.json  allowlist, with the set of authors under which its version is a floor
//	state           claim and last run with its receipt, two slots written in turn
//	spool           what the last run printed
//	receipts/runs   orders and receipts of the last 64 runs, a ring of slots
//	scripts/        scripts by digest, at most 16 and 1 MiB
//	run.lock        held for a run;  trust.lock  held while documents are written
//
// All of it is made at enrolment, so that a disk that fills up later keeps nobody from leaving.
package shim
