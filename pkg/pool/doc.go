// Package pool is the inventory of hosts and the only writer of their status: it claims a host for a
// NodeClaim, moves it through its states and releases it.
//
// # Who decides
//
// The API server does. Every write is a compare-and-swap on resourceVersion, so a stale cache or a second
// controller costs a conflict and never a silent overwrite. What is read from the [Inventory] may be old;
// what a write returns is true. There are two kinds of writes:
//
//   - Writes under a claim ([Pool.SetInstalled], [Pool.SetInUse], [Pool.Release] …) take the [Ref] they were issued
//     under. On a conflict they are tried again on a fresh read, but only while that claim, by name and uid, still
//     holds; otherwise they answer [ErrClaimLost] and the caller must not touch the host again.
//   - Writes on a free host ([Pool.RecordProbe], [Pool.BeginLeaving], [Pool.SyncMaintenance] …) are never repeated:
//     what the caller knew about the host is old by then. They answer [ErrConflict] and the caller starts afresh.
//
// # States
//
// The edges of the state machine are the table in states.go; a write that would take another one answers an
// [EdgeError] and writes nothing. A host has a claim exactly while it is Claimed or InUse.
//
// # One NodeClaim, one host
//
// [Pool.Claim] is idempotent by the NodeClaim's uid. Within a process calls for one uid take turns and the inventory
// holds what the process itself wrote. What an earlier process wrote is read from the API server once, before the
// first claim. What is left is a controller that lost its lease without noticing and claims a second host for the
// same NodeClaim: [Pool.Extra] tells which of the two is in excess, and its claim is then released like a stale one.
package pool
