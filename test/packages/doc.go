// Package packages installs the packages that packaging/build.sh makes, for real: on a machine that systemd has booted,
// in roots of other architectures under emulation, and with rpm.
package packages
