// Package image builds the controller's container image as a release does, and has a node's containerd run it.
package image
