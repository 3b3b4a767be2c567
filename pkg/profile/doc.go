// Package profile is what a join profile's author may rely on: the phases, how scripts are rendered
// and checked, and the KPSSH_* variables that reach them.
//
// A script is rendered with class-level values alone ([Render]), so that its author signs the very
// bytes that run. What differs from node to node travels as variables ([Environment]), held on the
// host against a schema of which the standard names are built in ([Schema]).
//
// Controller and command line use the same code, and nothing here imports Kubernetes.
package profile
