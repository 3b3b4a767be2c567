#!/bin/bash
# tls-bootstrap, install: prepares a host for membership, once per host and profile version. What the host has already
# is left as it is; the rest comes from its package manager, or for kubelet and the CNI plugins from a URL with a
# checksum. What counts is what is there and not what an earlier run wrote down: a file is written, and a kubelet fetched,
# only where it differs. So it may be run again at any point, on a host in use too, and changes nothing there when
# nothing is new. Nothing is enabled: a host that only has been installed does not join anything by itself.
#
# Variables of the class, all optional:
#   KPSSH_VAR_KUBELET_VERSION    such as 1.35 or 1.35.4
#   KPSSH_VAR_HTTP_PROXY, ..._HTTPS_PROXY, ..._NO_PROXY: for package manager and downloads, and after join for containerd
#     and kubelet
#   KPSSH_VAR_CGROUP_DRIVER      systemd (default) or cgroupfs
#   KPSSH_VAR_KUBELET_URL, KPSSH_VAR_CNI_PLUGINS_URL with ..._SHA256: https, "ARCH" in a URL stands for amd64 or arm64.
#     What comes from there runs as root, so the profile does not declare them: declare them with values of your own.
# kpssh-lint: disable=undeclared-parameter
set -euo pipefail
umask 022

say() { printf 'install: %s\n' "$*"; }
fail() {
  printf 'install: %s\n' "$*" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

lock_wait=240 # seconds for another package manager to finish
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# Programs read one or the other.
proxy() { [[ -z $2 ]] || export "$1=$2" "${1^^}=$2"; }
proxy http_proxy "${KPSSH_VAR_HTTP_PROXY-}"
proxy https_proxy "${KPSSH_VAR_HTTPS_PROXY-}"
proxy no_proxy "${KPSSH_VAR_NO_PROXY-}"

# put FILE: makes it what standard input holds, in one step and only if it is not that already.
changed=false
put() {
  mkdir -p "${1%/*}"
  cat >"$1.new"
  if cmp -s "$1.new" "$1"; then
    rm -f -- "$1.new"
  else
    mv -f "$1.new" "$1"
    changed=true
  fi
}

# --- packages -------------------------------------------------------------------------------------------------------

# apt waits for its locks, and is bounded: unattended upgrades hold them on a fresh machine.
apt() {
  local status
  while :; do
    status=0
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o "DPkg::Lock::Timeout=$lock_wait" \
      -o Dpkg::Options::=--force-confold "$@" >"$work/apt" 2>&1 || status=$?
    [[ $status -eq 0 ]] && return 0
    if ! grep -Eq 'Could not get lock|Unable to (acquire|lock)|is another process using it' "$work/apt" ||
      ((SECONDS >= lock_wait)); then
      tail -n 20 "$work/apt" >&2
      return "$status"
    fi
    say "waiting for another package manager"
    sleep 5
  done
}

missing=()
need() { # need COMMAND APT-PACKAGE DNF-PACKAGE
  if ! have "$1"; then
    if have apt-get; then missing+=("$2"); else missing+=("$3"); fi
  fi
}

install_packages() {
  if [[ ${#missing[@]} -eq 0 ]]; then
    return 0
  fi
  say "installing ${missing[*]}"
  if have apt-get; then
    apt update
    apt install --no-install-recommends "${missing[@]}"
  elif have dnf; then
    timeout "$lock_wait" dnf -q -y install "${missing[@]}"
  else
    fail "no apt-get and no dnf: install ${missing[*]} by hand, then this script skips them"
  fi
}

# fetch URL SHA256 FILE: the file is there only if the checksum is right.
fetch() {
  local url=$1 sum=$2 file=$3 arch
  case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64 | arm64) arch=arm64 ;;
    *) fail "architecture $(uname -m) is not known" ;;
  esac
  url=${url//ARCH/$arch}
  [[ $url == https://* ]] || fail "$url is not an https URL"
  [[ $sum =~ ^[0-9a-f]{64}$ ]] || fail "$url has no checksum"
  say "fetching $url"
  if have curl; then
    curl -fsSL --proto '=https' --retry 3 --max-time 300 -o "$file" -- "$url"
  else
    wget -q --https-only --tries=3 --timeout=60 -O "$file" -- "$url"
  fi
  printf '%s  %s\n' "$sum" "$file" | sha256sum -c --quiet - || fail "$url does not have the checksum that was given"
}

cni_bin=''
find_cni() {
  local dir
  for dir in /opt/cni/bin /usr/lib/cni /usr/libexec/cni; do
    if [[ -x $dir/loopback ]]; then
      cni_bin=$dir
      return 0
    fi
  done
}

need containerd containerd containerd
need runc runc runc
need conntrack conntrack conntrack-tools
need iptables iptables iptables
need ip iproute2 iproute
need modprobe kmod kmod
need sysctl procps procps-ng
find_cni
if [[ -z $cni_bin && -z ${KPSSH_VAR_CNI_PLUGINS_URL-} ]]; then
  missing+=(containernetworking-plugins)
fi
version=${KPSSH_VAR_KUBELET_VERSION-}
# wanted: whether the kubelet that is there is of the version that the class asks for.
wanted() {
  local found
  have kubelet || return 1
  [[ -n $version ]] || return 0
  found=$(kubelet --version)
  [[ $found == "Kubernetes v$version" || $found == "Kubernetes v$version"[.+-]* ]]
}
if [[ -z ${KPSSH_VAR_KUBELET_URL-} ]] && ! wanted; then
  if [[ -z $version ]]; then
    missing+=(kubelet)
  elif have apt-get; then
    missing+=("kubelet=$version*")
  else
    missing+=("kubelet-$version*")
  fi
fi
install_packages

# k0smotron#529: by the binary, not by a note that it was fetched.
same() { [[ -e $2 ]] && sha256sum -c --quiet --status - <<<"$1  $2"; }
if [[ -n ${KPSSH_VAR_KUBELET_URL-} ]] && ! same "${KPSSH_VAR_KUBELET_SHA256-}" /usr/local/bin/kubelet; then
  fetch "$KPSSH_VAR_KUBELET_URL" "${KPSSH_VAR_KUBELET_SHA256-}" "$work/kubelet"
  # Beside, then renamed: the old binary may be running.
  install -D -m 0755 "$work/kubelet" /usr/local/bin/.kubelet.new
  mv -f /usr/local/bin/.kubelet.new /usr/local/bin/kubelet
fi
if [[ -z $cni_bin && -n ${KPSSH_VAR_CNI_PLUGINS_URL-} ]]; then
  fetch "$KPSSH_VAR_CNI_PLUGINS_URL" "${KPSSH_VAR_CNI_PLUGINS_SHA256-}" "$work/cni.tgz"
  mkdir -p /opt/cni/bin
  tar -xzf "$work/cni.tgz" -C /opt/cni/bin --no-same-owner
fi
hash -r
find_cni
have containerd || fail "containerd is still missing"
kubelet=$(command -v kubelet) || fail "kubelet is still missing"
wanted || fail "$kubelet is not of version $version, and hides the one that was installed: remove it"
[[ -n $cni_bin ]] || fail "the CNI plugins are still missing"

# --- kernel ---------------------------------------------------------------------------------------------------------

# A kernel may have them built in, and a container shares those of its machine.
modprobe -q overlay || grep -qw overlay /proc/filesystems || fail "the kernel does not have overlay"
modprobe -q br_netfilter || [[ -e /proc/sys/net/bridge ]] || fail "the kernel does not have br_netfilter"
put /etc/modules-load.d/kpssh.conf <<<$'overlay\nbr_netfilter'
settings=$'net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1'
if [[ -e /proc/sys/net/ipv6/conf/all/forwarding ]]; then
  settings+=$'\nnet.ipv6.conf.all.forwarding = 1\nnet.bridge.bridge-nf-call-ip6tables = 1'
fi
put /etc/sysctl.d/90-kpssh.conf <<<"$settings"
sysctl -q -p /etc/sysctl.d/90-kpssh.conf

# --- containerd -----------------------------------------------------------------------------------------------------

config=/etc/containerd/config.toml
mark='# Written by kpssh (tls-bootstrap).'

# What a package brought is not the operator's choice: Docker's switches the part off that kubelet needs, Debian's has
# no cgroup driver.
packaged() {
  local owner sum
  if have dpkg-query; then
    sum=$(md5sum <"$config")
    owner=$(dpkg-query -W -f='${Conffiles}\n' containerd containerd.io 2>/dev/null || true)
    grep -qF " $config ${sum%% *}" <<<"$owner"
  else
    rpm -qf "$config" >/dev/null 2>&1 && ! rpm -Vf "$config" 2>/dev/null | grep -qF "$config"
  fi
}

if [[ ! -s $config ]] || grep -qF "$mark" "$config" || packaged; then
  driver=true
  [[ ${KPSSH_VAR_CGROUP_DRIVER:-systemd} == systemd ]] || driver=false
  # Where network add-ons put their plugins; those of the distribution are linked there.
  if [[ $cni_bin != /opt/cni/bin ]]; then
    mkdir -p /opt/cni/bin
    for plugin in "$cni_bin"/*; do
      [[ -e /opt/cni/bin/${plugin##*/} ]] || ln -s "$plugin" /opt/cni/bin/
    done
  fi
  put "$config" <<TOML
$mark
version = 2

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/opt/cni/bin"
  conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = $driver
TOML
fi

# --- kubelet's unit -------------------------------------------------------------------------------------------------

unit=/etc/systemd/system/kubelet.service
if [[ ! -e /usr/lib/systemd/system/kubelet.service && ! -e /lib/systemd/system/kubelet.service ]] &&
  { [[ ! -e $unit ]] || grep -qF "$mark" "$unit"; }; then
  put "$unit" <<UNIT
$mark
[Unit]
Description=kubelet
Documentation=https://kubernetes.io/docs/

[Service]
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
UNIT
fi
# The last drop-in wins over what a package brings. Without the membership that join writes, kubelet does not start,
# whoever enables it.
put "$unit.d/zz-kpssh.conf" <<UNIT
$mark
[Unit]
After=containerd.service network-online.target
Wants=containerd.service network-online.target
ConditionPathExists=/etc/kubernetes/kpssh/kubelet.env
StartLimitIntervalSec=0

[Service]
EnvironmentFile=
EnvironmentFile=-/etc/kubernetes/kpssh/kubelet.env
# A boot turns swap on again that join turned off.
ExecStartPre=/bin/sh -c '[ ! -e /etc/kubernetes/kpssh/before/swaps ] || exec swapoff -a'
ExecStart=
ExecStart=$kubelet --config=/etc/kubernetes/kpssh/kubelet.yaml --bootstrap-kubeconfig=/etc/kubernetes/kpssh/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kpssh/kubelet.conf --cert-dir=/var/lib/kubelet/pki \$KPSSH_KUBELET_ARGS
UNIT
put /etc/systemd/system/containerd.service.d/zz-kpssh.conf <<UNIT
$mark
[Service]
EnvironmentFile=-/etc/kubernetes/kpssh/proxy.env
UNIT
if $changed; then systemctl daemon-reload; fi

# Packages enable and start what they bring. Docker's containerd is Docker's, and a member's kubelet is in use.
if [[ -e /etc/kubernetes/kpssh/kubelet.env ]]; then
  say "the host is a member: kubelet and containerd go on"
else
  systemctl disable --now kubelet
  if ! systemctl -q is-active docker; then
    systemctl disable --now containerd
  fi
fi
ready=$(kubelet --version) # a binary of another architecture shows here and not in join
ready+=", $(containerd --version)"
say "ready: $ready"
