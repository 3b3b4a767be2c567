// Package transport tests pkg/remote against OpenSSH itself: sshd of Debian's releases, in network namespaces that only
// lead to each other by way of jump hosts. Its tests need root and run with the build tag e2e. What OpenSSH does not do
// on demand (servers that stall, lie or hang up) is in pkg/remote, with a server in the test's own process.
//
// The tests run in namespaces of their own for network, mounts and processes, so that nothing of them is left on the
// machine however they end.
package transport
