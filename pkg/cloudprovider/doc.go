// Package cloudprovider is karpenter's interface over the pool.
//
// Nothing in it waits for a host. Create claims one and returns its provisional provider id within a round trip or
// two, because core stalls every NodePool of the cluster while one NodeClaim has none; controllers drive install and
// join from there. Delete asks for the host back and is answered NodeClaimNotFound once leave has released it.
//
// Errors are karpenter's own types and nothing else, since core's behaviour hangs on them: no free host is
// InsufficientCapacity; a node class that cannot be used is NodeClassNotReady (both make core delete the NodeClaim);
// a claim that is gone is NodeClaimNotFound; all else is a CreateError with a reason, and core tries again.
package cloudprovider
