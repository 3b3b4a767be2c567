#!/bin/bash
# tls-bootstrap, uninstall: takes away what install wrote. The controller never runs it; run leave first. Packages and
# binaries stay: they may serve others by now.
set -euo pipefail

if [[ -e /etc/kubernetes/kpssh/kubelet.env ]]; then
  echo 'uninstall: the host is a member, run leave first' >&2
  exit 1
fi
mark='# Written by kpssh (tls-bootstrap).'
for unit in kubelet containerd; do
  rm -f -- "/etc/systemd/system/$unit.service.d/zz-kpssh.conf"
  if [[ -d /etc/systemd/system/$unit.service.d ]]; then
    rmdir --ignore-fail-on-non-empty "/etc/systemd/system/$unit.service.d"
  fi
done
for file in /etc/systemd/system/kubelet.service /etc/containerd/config.toml; do
  if [[ -f $file ]] && grep -qF "$mark" "$file"; then rm -f -- "$file"; fi
done
rm -f -- /etc/modules-load.d/kpssh.conf /etc/sysctl.d/90-kpssh.conf
systemctl daemon-reload
echo 'uninstall: done'
