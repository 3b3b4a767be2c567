#!/bin/bash
# tls-bootstrap, join: makes the host a node, on each claim. It ends when kubelet is healthy and has its client
# certificate, or fails with the last lines of kubelet's journal. It may be run again at any point.
#
# Variables of the class, all optional:
#   KPSSH_VAR_CLUSTER_DNS           addresses of the cluster's DNS service, comma-separated
#   KPSSH_VAR_CLUSTER_DOMAIN        cluster.local by default
#   KPSSH_VAR_CGROUP_DRIVER         systemd (default) or cgroupfs; containerd's must be the same
#   KPSSH_VAR_FAIL_CGROUP_V1        false lets kubelet 1.35 and later run on control groups v1
#   KPSSH_VAR_SWAP                  what to do about swap, zram too: fail, off (leave turns on again what was on), or
#                                   allow; kubelet's own refusal by default
#   KPSSH_VAR_HTTP_PROXY, ..._HTTPS_PROXY, ..._NO_PROXY: for containerd and kubelet. What is in the cluster is added to
#                                   NO_PROXY: the node's address, the API server's, the cluster's domain and
#   KPSSH_VAR_CLUSTER_CIDRS         the networks of pods and services, comma-separated
#   KPSSH_VAR_MAX_PODS              as maxPods of the class, when that is not 110
#   KPSSH_VAR_KUBELET_CONFIG_DIR    folder with *.conf drop-ins of KubeletConfiguration that the host provides;
#                                   /etc/kubernetes/kubelet.conf.d by default, if it is there
#   KPSSH_VAR_JOIN_WAIT             seconds to wait for kubelet, 240 by default
# KPSSH_VAR_KUBELET_SHA256, if a profile declares it for install, is held against the kubelet that is there.
# kpssh-lint: disable=undeclared-parameter
set -euo pipefail
umask 077

say() { printf 'join: %s\n' "$*"; }
fail() {
  printf 'join: %s\n' "$*" >&2
  exit 1
}

# The token is nobody's to see: not in the environment of what is started here, not in a trace.
{ set +x; } 2>/dev/null
token=${KPSSH_BOOTSTRAP_TOKEN:?}
unset KPSSH_BOOTSTRAP_TOKEN

dir=/etc/kubernetes/kpssh # all that join writes, and that leave removes
before=$dir/before        # what the host had
state=/var/lib/kubelet
config_dir=${KPSSH_VAR_KUBELET_CONFIG_DIR:-/etc/kubernetes/kubelet.conf.d}
wait=${KPSSH_VAR_JOIN_WAIT:-240}

kubelet=$(command -v kubelet) || fail "kubelet is missing: install did not run here"
if [[ -n ${KPSSH_VAR_KUBELET_SHA256-} ]]; then
  sha256sum -c --quiet --status - <<<"$KPSSH_VAR_KUBELET_SHA256  $kubelet" ||
    fail "$kubelet is not the one that the class names: raise the profile's version, so that install fetches it"
fi
[[ -e /etc/systemd/system/kubelet.service.d/zz-kpssh.conf ]] || fail "kubelet's unit is missing: install did not run here"

# --- what kubelet is told -------------------------------------------------------------------------------------------

# A value goes into a YAML string or systemd's environment file as it is.
plain() {
  local name
  for name in "$@"; do
    [[ ${!name-} =~ ^[][A-Za-z0-9._:/,=@+~-]*$ ]] || fail "$name holds characters that it must not"
  done
}
plain KPSSH_VAR_SWAP KPSSH_VAR_HTTP_PROXY KPSSH_VAR_HTTPS_PROXY KPSSH_VAR_NO_PROXY KPSSH_VAR_CLUSTER_CIDRS
plain KPSSH_CLUSTER_ENDPOINT KPSSH_CLUSTER_CA_B64 KPSSH_NODE_NAME KPSSH_PROVIDER_ID KPSSH_NODE_ADDRESS \
  KPSSH_NODE_LABELS KPSSH_TAINTS KPSSH_VAR_CLUSTER_DNS KPSSH_VAR_CLUSTER_DOMAIN KPSSH_VAR_CGROUP_DRIVER \
  KPSSH_VAR_FAIL_CGROUP_V1 KPSSH_VAR_MAX_PODS token config_dir wait

# The address must be one of the host's, or kubelet does not start. A host that is dialled by name without
# spec.nodeAddress advertises the first of its own addresses that the name has.
own() { ip -o address show scope global to "$1" | grep -q .; }
node_ip=''
if [[ $KPSSH_NODE_ADDRESS =~ ^[0-9.]+$ || $KPSSH_NODE_ADDRESS == *:* ]]; then
  own "$KPSSH_NODE_ADDRESS" || fail "$KPSSH_NODE_ADDRESS is not an address of this host: set spec.nodeAddress of the SSHHost"
  node_ip=$KPSSH_NODE_ADDRESS
else
  addresses=$(getent ahosts "$KPSSH_NODE_ADDRESS" || true)
  while read -r address _; do
    if [[ -n $address ]] && own "$address"; then
      node_ip=$address
      break
    fi
  done <<<"$addresses"
  [[ -n $node_ip ]] || fail "$KPSSH_NODE_ADDRESS does not resolve to an address of this host: set spec.nodeAddress of the SSHHost"
fi

args="--hostname-override=$KPSSH_NODE_NAME --node-ip=$node_ip"
[[ -z $KPSSH_NODE_LABELS ]] || args+=" --node-labels=$KPSSH_NODE_LABELS"
[[ ! -d $config_dir ]] || args+=" --config-dir=$config_dir"

# Variables for systemd's environment files; none when the class has no proxy.
proxy=''
if [[ -n ${KPSSH_VAR_HTTP_PROXY-}${KPSSH_VAR_HTTPS_PROXY-} ]]; then
  server=${KPSSH_CLUSTER_ENDPOINT#https://}
  server=${server%%/*}
  if [[ $server == \[* ]]; then server=${server#\[} server=${server%%\]*}; else server=${server%%:*}; fi
  direct=localhost,127.0.0.1,$node_ip,$server,.svc,.${KPSSH_VAR_CLUSTER_DOMAIN:-cluster.local}
  for list in "${KPSSH_VAR_CLUSTER_CIDRS-}" "${KPSSH_VAR_NO_PROXY-}"; do
    [[ -z $list ]] || direct+=,$list
  done
  proxy="HTTP_PROXY=\"${KPSSH_VAR_HTTP_PROXY-}\"
HTTPS_PROXY=\"${KPSSH_VAR_HTTPS_PROXY-}\"
NO_PROXY=\"$direct\""
fi

kubelet_config() {
  local item key value resolv=/run/systemd/resolve/resolv.conf
  cat <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $dir/ca.crt}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: ${KPSSH_VAR_CGROUP_DRIVER:-systemd}
clusterDomain: ${KPSSH_VAR_CLUSTER_DOMAIN:-cluster.local}
rotateCertificates: true
healthzBindAddress: 127.0.0.1
healthzPort: 10248
YAML
  [[ -z $KPSSH_PROVIDER_ID ]] || echo "providerID: \"$KPSSH_PROVIDER_ID\""
  [[ ! -e $resolv ]] || echo "resolvConf: $resolv"
  [[ -z ${KPSSH_VAR_CLUSTER_DNS-} ]] || echo "clusterDNS: [\"${KPSSH_VAR_CLUSTER_DNS//,/\", \"}\"]"
  [[ -z ${KPSSH_VAR_FAIL_CGROUP_V1-} ]] || echo "failCgroupV1: $KPSSH_VAR_FAIL_CGROUP_V1"
  [[ ${KPSSH_VAR_SWAP-} != allow ]] || echo "failSwapOn: false"
  [[ -z ${KPSSH_VAR_MAX_PODS-} ]] || echo "maxPods: $KPSSH_VAR_MAX_PODS"
  echo "registerWithTaints:"
  for item in ${KPSSH_TAINTS//,/ }; do
    key=${item%:*}
    value=''
    [[ $key != *=* ]] || value=${key#*=}
    echo "- {key: \"${key%%=*}\", value: \"$value\", effect: ${item##*:}}"
  done
}

bootstrap_config() { # printf is bash's own: the token is in no argument and in no temporary file
  printf '%s\n' 'apiVersion: v1' 'kind: Config' 'current-context: bootstrap' \
    "clusters: [{name: cluster, cluster: {server: \"$KPSSH_CLUSTER_ENDPOINT\", certificate-authority: $dir/ca.crt}}]" \
    "users: [{name: bootstrap, user: {token: \"$token\"}}]" \
    'contexts: [{name: bootstrap, context: {cluster: cluster, user: bootstrap}}]'
}

healthy() { # bash's own connection: a host need not have curl
  local status=''
  {
    exec 3<>/dev/tcp/127.0.0.1/10248 &&
      printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3 &&
      IFS= read -r -t 2 status <&3
  } 2>/dev/null || true
  { exec 3>&-; } 2>/dev/null || true
  [[ $status == *' 200 '* ]]
}
joined() { [[ -s $state/pki/kubelet-client-current.pem && -s $dir/kubelet.conf ]] && healthy; }

# --- what the host has, so that leave touches nothing else ----------------------------------------------------------

install -d -m 0755 /etc/kubernetes
install -d -m 0700 "$dir"
if [[ ! -d $before ]]; then
  new=$(mktemp -d "$dir/before.XXXXXX")
  awk '{print $5}' /proc/self/mountinfo >"$new/mounts"
  ip -o link show | awk -F': ' '{sub(/@.*/, "", $2); print $2}' >"$new/links"
  for folder in /etc/cni/net.d /var/lib/cni; do
    if [[ -d $folder ]]; then find "$folder" -xdev -mindepth 1 -print >>"$new/files"; fi
  done
  # Network add-ons rename what is there.
  if [[ -d /etc/cni/net.d ]]; then cp -a /etc/cni/net.d "$new/net.d"; fi
  for tables in ip{,6}tables{,-legacy,-nft}; do
    # Where they cannot be read, as on a kernel without IPv6, nobody writes any either.
    if rules=$("$tables-save" 2>/dev/null); then
      sed -n 's/^:\([^ ]*\).*/\1/p' <<<"$rules" >"$new/$tables"
    fi
  done
  if rules=$(nft list tables 2>/dev/null); then echo "$rules" >"$new/nft"; fi
  mv -T "$new" "$before"
fi

# --- swap -----------------------------------------------------------------------------------------------------------

swaps=$(sed 1d /proc/swaps)
if [[ -n $swaps ]]; then
  case ${KPSSH_VAR_SWAP-} in
    fail) fail "swap is on: ${swaps%%[[:space:]]*}: turn it off, or set the class var swap to off or allow" ;;
    off)
      if [[ ! -e $before/swaps ]]; then
        awk '{print $1, $5}' <<<"$swaps" >"$before/swaps.new"
        mv "$before/swaps.new" "$before/swaps"
      fi
      say "turning swap off"
      swapoff -a
      ;;
  esac
fi

# --- join -----------------------------------------------------------------------------------------------------------

new=$(mktemp -d "$dir/new.XXXXXX")
base64 -d <<<"$KPSSH_CLUSTER_CA_B64" >"$new/ca.crt"
grep -q 'BEGIN CERTIFICATE' "$new/ca.crt" || fail "KPSSH_CLUSTER_CA_B64 holds no certificate"
kubelet_config >"$new/kubelet.yaml"
printf 'KPSSH_KUBELET_ARGS="%s"\n%s\n' "$args" "$proxy" >"$new/kubelet.env"
echo "$proxy" >"$new/proxy.env"

same=true
for file in ca.crt kubelet.yaml kubelet.env proxy.env; do
  cmp -s "$new/$file" "$dir/$file" || same=false
done
if $same && systemctl -q is-active kubelet && joined; then
  rm -rf -- "$new" "$dir/bootstrap-kubelet.conf"
  say "$KPSSH_NODE_NAME has joined already"
  exit 0
fi

# What an earlier membership left would be used in place of the token: certificates of another cluster or that have
# expired, and state of other CPUs or devices.
systemctl stop kubelet
rm -f -- "$dir/kubelet.conf" "$state"/pki/kubelet-client-* "$state"/pki/kubelet.crt "$state"/pki/kubelet.key \
  "$state"/cpu_manager_state "$state"/memory_manager_state "$state"/dra_manager_state \
  "$state"/device-plugins/kubelet_internal_checkpoint
bootstrap_config >"$new/bootstrap-kubelet.conf"
mv -f "$new"/* "$dir/"
rm -rf -- "$dir"/new.*

systemctl --no-reload enable containerd kubelet
# Memberships in quick succession are starts in quick succession, which systemd refuses from the sixth in 10 s on.
systemctl reset-failed containerd kubelet 2>/dev/null || true
systemctl start containerd
systemctl start kubelet

say "waiting for kubelet"
until joined; do
  restarts=$(systemctl show -p NRestarts --value kubelet)
  if ((SECONDS >= wait)) || ((restarts >= 10)); then
    # What a kubelet without a certificate may not do is noise beside why it has none.
    { journalctl -u kubelet -n 300 --no-pager -o cat | grep -v 'system:anonymous' | cut -c 1-300 | tail -n 20; } >&2 || true
    fail "kubelet is not healthy, or has no certificate, after $SECONDS s and $restarts restarts"
  fi
  sleep 0.2
done
# The certificate is what counts from here on.
rm -f -- "$dir/bootstrap-kubelet.conf"
say "$KPSSH_NODE_NAME has joined as $node_ip after $SECONDS s"
