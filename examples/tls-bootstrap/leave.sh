#!/bin/bash
# tls-bootstrap, leave: undoes join, on each release. What install made stays; kubelet and containerd are stopped and
# disabled, so that a reboot joins nothing. It gets two addresses and needs neither. What the host had before join is
# not touched. Each step is bounded, and one that does not succeed keeps none from being tried. It may be run again at
# any point, fails when anything is left, and says what.
set -euo pipefail
umask 022

say() { printf 'leave: %s\n' "$*"; }

dir=/etc/kubernetes/kpssh
before=$dir/before
state=/var/lib/kubelet
left=()
# also when a step fails that nobody expected to
trap 'status=$?; [[ ${#left[@]} -eq 0 ]] || printf "leave: left behind: %s\n" "${left[@]}" >&2; exit "$status"' EXIT

# had LIST NAME: whether the host had it before join.
had() { [[ -e $before/$1 ]] && grep -qxF -- "$2" "$before/$1"; }

# within SECONDS COMMAND...: what the kernel does not let go of (a dead NFS server) outlives its signal, so nothing
# here waits for its end.
within() {
  local until=$((SECONDS + $1)) pid
  shift
  "$@" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if ((SECONDS >= until)); then
      kill -KILL "$pid" 2>/dev/null || true
      return 124
    fi
    sleep 0.05
  done
  wait "$pid"
}

# --- kubelet first, or it starts again what is stopped below, and registers again -----------------------------------

exists() { [[ $(systemctl show -p LoadState --value "$1") != not-found ]]; }
halt() { # halt UNIT SECONDS
  exists "$1" || return 0
  systemctl --no-reload disable "$1"
  if ! within "$2" systemctl stop "$1"; then
    say "$1 does not stop, killing it"
    systemctl kill -s KILL "$1"
    within 10 systemctl stop "$1" || left+=("$1 does not stop")
  fi
}
halt kubelet 30

# --- pods -----------------------------------------------------------------------------------------------------------

cgroups=/sys/fs/cgroup
for controller in pids memory cpu; do # version 1: a process is in each of them
  if [[ ! -e $cgroups/cgroup.controllers && -d $cgroups/$controller ]]; then cgroups=$cgroups/$controller; fi
done
pod_processes() {
  local root
  for root in "$cgroups/kubepods" "$cgroups/kubepods.slice"; do
    [[ ! -d $root ]] || find "$root" -name cgroup.procs -exec cat {} + 2>/dev/null || true
  done | { grep -vx 0 || true; } | sort -un
}
# Those of Kubernetes' containers in the system's containerd: Docker's are in another namespace, those of another
# Kubernetes have another socket, and those of a Kubernetes in a container, as of kind, are none of the host's processes.
# The name first: the arguments of a process that hangs cannot be read.
shims() {
  local process name args
  for process in /proc/[0-9]*; do
    { read -r name <"$process/comm"; } 2>/dev/null || continue
    [[ $name == containerd-shim && "$process/ns/pid" -ef /proc/self/ns/pid ]] || continue
    { mapfile -d '' -t args <"$process/cmdline"; } 2>/dev/null || continue
    if [[ " ${args[*]} " == *' -namespace k8s.io '* && " ${args[*]} " == *' /run/containerd/containerd.sock '* ]]; then
      echo "${process##*/}"
    fi
  done
}
# gone SECONDS LISTER: waits until the lister names no process.
gone() {
  local until=$((SECONDS + $1)) pids
  while :; do
    pids=$("$2") || return 1
    [[ -n $pids ]] || return 0
    ((SECONDS < until)) || return 1
    sleep 0.1
  done
}
signal() { # signal NAME LISTER
  local pids
  mapfile -t pids < <("$2")
  [[ ${#pids[@]} -eq 0 ]] || kill -s "$1" -- "${pids[@]}" 2>/dev/null || true
}

running=false
if systemctl -q is-active containerd; then running=true; fi
if $running && command -v crictl >/dev/null; then
  # Removes the network of pods too. Best effort: what it leaves is found below.
  within 20 crictl --runtime-endpoint unix:///run/containerd/containerd.sock rmp -fa >/dev/null 2>&1 || true
fi
signal TERM pod_processes
if ! gone 10 pod_processes; then
  signal KILL pod_processes
  gone 10 pod_processes || left+=("processes of pods: $(pod_processes | tr '\n' ' ')")
fi
if $running && command -v ctr >/dev/null; then
  mapfile -t ids < <(within 10 ctr -n k8s.io containers ls -q || true)
  if [[ ${#ids[@]} -gt 0 ]]; then
    within 10 ctr -n k8s.io tasks rm -f "${ids[@]}" >/dev/null 2>&1 || true
    within 10 ctr -n k8s.io containers rm "${ids[@]}" >/dev/null 2>&1 || true
  fi
fi

if systemctl -q is-active docker; then
  say "containerd stays for Docker"
else
  halt containerd 30
fi
signal KILL shims
gone 5 shims || left+=("shims: $(shims | tr '\n' ' ')")

# --- mounts ---------------------------------------------------------------------------------------------------------

# mounts PREFIX: fills below with the mounts whose path begins so, without those from before join.
mounts() {
  local raw path
  below=()
  while read -r _ _ _ _ raw _; do
    printf -v path '%b' "${raw//\\/\\0}"
    if [[ $path == "$1"* ]] && ! had mounts "$raw"; then below+=("$path"); fi
  done </proc/self/mountinfo
}
# unmount PREFIX: a mount that is still in use, or whose server does not answer, is detached, so that nothing is reached
# through it. Whoever uses it still has it, so it is left behind all the same.
hanging=0
unmount() {
  local i path status until
  mounts "$1"
  for ((i = ${#below[@]} - 1; i >= 0; i--)); do # the last one is on top
    path=${below[i]}
    status=124
    if ((hanging < 3)); then # many of one dead server must not add up
      until=$((SECONDS + 3))
      while :; do
        status=0
        within 5 umount -c -- "$path" 2>/dev/null || status=$?
        ((status != 0 && status != 124 && SECONDS < until)) || break
        sleep 0.2
      done
    fi
    [[ $status -ne 0 ]] || continue
    [[ $status -ne 124 ]] || hanging=$((hanging + 1))
    within 5 umount -c -l -- "$path" || true
    left+=("mount, now detached: $path")
  done
  mounts "$1"
  left+=("${below[@]/#/mount: }")
}
unmount "$state/pods/"
unmount "$state/plugins/"
unmount /run/netns/cni-
unmount /run/containerd/io.containerd.grpc.v1.cri/
unmount /run/containerd/io.containerd.runtime.v2.task/k8s.io/

# --- network --------------------------------------------------------------------------------------------------------

# Only where join wrote down what was there before: what a host brought stays.
chain_names='^(KUBE-|CNI-|FLANNEL-|CILIUM_|OLD_CILIUM_|cali-|WEAVE|AWS-(SNAT|CONNMARK)-CHAIN)'
table_names='^table (ip|ip6|inet) (kube-proxy|cni_hostport|cni_plugins_masquerade|flannel-ipv[46]|calico)$'
link_names='^(cni0|flannel.*|cilium_.*|lxc[0-9a-f]{10,}|lxc_health|cali[0-9a-f]{11}|vxlan\.calico|vxlan-v6\.calico|kube-ipvs0|nodelocaldns)$'

# forget_chains COMMAND: in one transaction for each table, in the words of iptables-save.
forget_chains() {
  local rules name table='' names=() out=''
  rules=$("$1-save") || return 1
  while IFS= read -r name; do
    case $name in
      '*'*)
        table=${name#?}
        names=()
        ;;
      COMMIT)
        if [[ ${#names[@]} -gt 0 ]]; then
          out+="*$table"$'\n'
          # Calico's own that go to none of its chains, in chains of others.
          out+=$(sed -nE "/^\*$table\$/,/^COMMIT\$/s/^-A ([A-Z]+ .*--comment \"cali:[^\"]*\".* -j (ACCEPT|MARK|DROP|RETURN)( .*)?)\$/-D \1/p" <<<"$rules")$'\n' || return 1
          for name in "${names[@]}"; do
            out+=$(sed -nE "/^\*$table\$/,/^COMMIT\$/s/^-A (.* -[jg] ${name//./\\.}( .*)?)\$/-D \1/p" <<<"$rules")$'\n' || return 1
          done
          out+=$(printf -- '-F %s\n' "${names[@]}")$'\n'
          out+=$(printf -- '-X %s\n' "${names[@]}")$'\nCOMMIT\n'
        fi
        ;;
      :*)
        name=${name#:}
        name=${name%% *}
        if [[ $name =~ $chain_names ]] && ! had "$1" "$name"; then names+=("$name"); fi
        ;;
    esac
  done <<<"$rules"
  [[ -z $out ]] || "$1-restore" -w 5 --noflush <<<"$out"
}
if [[ -d $before ]]; then
  for command in ip{,6}tables{,-legacy,-nft}; do
    if [[ -e $before/$command ]]; then
      within 20 forget_chains "$command" || left+=("chains of $command")
    fi
  done
  if [[ -e $before/nft ]]; then
    tables=$(within 10 nft list tables)
    while IFS= read -r table; do
      if [[ $table =~ $table_names ]] && ! had nft "$table"; then
        read -ra words <<<"$table"
        within 10 nft delete "${words[@]}" || left+=("nftables: $table")
      fi
    done <<<"$tables"
  fi
  links=$(ip -o link show 2>/dev/null | awk -F': ' '{sub(/@.*/, "", $2); print $2}')
  while IFS= read -r link; do
    if [[ $link =~ $link_names ]] && ! had links "$link"; then
      # The other end of a pair goes with the first.
      within 10 ip link delete "$link" 2>/dev/null || [[ ! -e /sys/class/net/$link ]] || left+=("link: $link")
    fi
  done <<<"$links"
  for folder in /etc/cni/net.d /var/lib/cni; do
    [[ -d $folder ]] || continue
    files=$(find "$folder" -xdev -mindepth 1 \( -type f -o -type l \) -print)
    while IFS= read -r file; do
      [[ -z $file ]] || had files "$file" || rm -f -- "$file" || left+=("file: $file")
    done <<<"$files"
  done
  # What an add-on renamed or removed is there again; what was changed is somebody's change.
  for file in "$before/net.d"/*; do
    kept=/etc/cni/net.d/${file##*/}
    if [[ -e $file && ! -e $kept ]]; then
      mkdir -p /etc/cni/net.d
      cp -a -- "$file" "$kept.new"
      mv -f -- "$kept.new" "$kept"
    fi
  done
  for file in /run/netns/cni-*; do
    [[ ! -e $file ]] || rm -f -- "$file" || left+=("file: $file")
  done
fi

# --- swap, if join turned it off ------------------------------------------------------------------------------------

if [[ -e $before/swaps ]]; then
  while read -r name priority; do
    if grep -qF -- "$name " /proc/swaps; then continue; fi
    flags=()
    if ((priority >= 0)); then flags=(-p "$priority"); fi
    printf -v path '%b' "${name//\\/\\0}"
    within 10 swapon "${flags[@]}" -- "$path" || left+=("swap: $path is off")
  done <"$before/swaps"
fi

# --- what kubelet kept ----------------------------------------------------------------------------------------------

# Never through a mount, which may be somebody's volume: what the table of mounts knows is kept with all around it, and
# -xdev is for what is mounted meanwhile.
for name in pods plugins plugins_registry device-plugins pod-resources usernamespaces checkpoints; do
  [[ -d $state/$name ]] || continue
  if grep -qE "^[^ ]+ [^ ]+ [^ ]+ [^ ]+ $state/${name}[/ ]" /proc/self/mountinfo; then
    say "keeping $state/$name, something is mounted there"
  else
    find "$state/$name" -xdev -mindepth 1 -delete || left+=("files: $state/$name")
  fi
done
rm -f -- "$state"/pki/kubelet* "$state"/*_manager_state "$state"/allocated_pods_state "$state"/actuated_pods_state

# --- nothing may be left --------------------------------------------------------------------------------------------

for unit in kubelet containerd; do
  if [[ $unit == containerd ]] && systemctl -q is-active docker; then continue; fi
  if systemctl -q is-active "$unit"; then left+=("$unit is active"); fi
  if [[ $(systemctl is-enabled "$unit" 2>/dev/null || true) == enabled* ]]; then left+=("$unit is enabled"); fi
done
if [[ ${#left[@]} -gt 0 ]]; then
  # The credentials go in any case; the record of what was there before stays for the next try.
  find "$dir" -xdev -mindepth 1 -maxdepth 1 ! -name before -exec rm -rf --one-file-system -- {} + 2>/dev/null || true
  exit 1
fi
rm -rf --one-file-system -- "$dir"
say "left, in $SECONDS s"
