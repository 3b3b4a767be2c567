// Package faults breaks things under a real cluster, real hosts and the real controller, and looks each time whether the
// pool came back by itself and kept its promises meanwhile. It is run by `make test-faults` and takes hours when
// it is given its defaults; one fault is run with -run.
package faults
