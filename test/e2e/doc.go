// Package e2e plays what users and faults do, on a real cluster and real hosts.
package e2e
