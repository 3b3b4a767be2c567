//go:build race

package shim

const raceDetector = true
