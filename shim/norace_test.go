//go:build !race

package shim

const raceDetector = false
