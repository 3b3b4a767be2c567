// Package packaging holds the files that make a host of a machine: the entry through sshd, and the
// root stage behind it. The packages for distributions and `kpssh-shim install` use the same ones.
package packaging

import "embed"

// Host holds the files of a host:
//
//	sshd.conf       /etc/ssh/sshd_config.d/00-kpssh.conf
//	kpssh.socket    /etc/systemd/system/
//	kpssh@.service  /etc/systemd/system/
//	tmpfiles.conf   /etc/tmpfiles.d/kpssh.conf
//	sudoers         /etc/sudoers.d/kpssh, where systemd does not run
//
//go:embed host
var Host embed.FS
