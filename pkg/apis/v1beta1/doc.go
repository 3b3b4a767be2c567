// Package v1beta1 holds the API types: SSHHost (a machine of the pool), SSHNodeClass (how a NodePool
// uses the pool) and SSHJoinProfile (the scripts that make a host a member and undo it).
//
// What admission can check is in the validation markers here and nowhere else. What it cannot
// (a selector's syntax, a missing Secret, an unsigned script) is a condition with a reason of this
// package.
//
// +kubebuilder:object:generate=true
// +groupName=karpenter.dklesev.github.io
package v1beta1
