// Package operator puts the controller together: options, clients and caches, karpenter core, the provider, our
// controllers.
//
// The manager is made here and not by core's NewOperator, since the caches have to be narrower than that one's: of
// Secrets and ConfigMaps only those of the pool and of the signed documents are watched, and of SSHHosts only the
// pool's. What is done with it afterwards is what core's own kwok provider does.
package operator
