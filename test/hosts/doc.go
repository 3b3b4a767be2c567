// Package hosts runs the shipped join profile on a real host and looks at what it makes and leaves there: memberships in
// a row, of two clusters, beside an admin's own mounts, packet filter, networks and containers, and with parts that fail.
package hosts
