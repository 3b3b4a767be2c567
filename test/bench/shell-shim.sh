#!/bin/bash
# What a shim written in shell does for one run: the same steps as the real one with the tools that every host has.
# Usage: shell-shim.sh STATE < request, where a request is lines "script BASE64", "order BASE64", "order.sig BASE64",
# "list …", "list.sig …", "end".
set -euo pipefail
umask 077
state=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
challenge=$(head -c 32 /dev/urandom | base64 -w0)
echo "hello $challenge"
while read -r name value; do
  case $name in
    script|order|order.sig|list|list.sig) printf '%s' "$value" | base64 -d > "$tmp/$name" ;;
    end) break ;;
    *) exit 125 ;;
  esac
done
ssh-keygen -Y verify -f "$state/signers" -I author -n kpssh-list -s "$tmp/list.sig" < "$tmp/list" > /dev/null
ssh-keygen -Y verify -f "$state/signers" -I dispatch -n kpssh-order -s "$tmp/order.sig" < "$tmp/order" > /dev/null
digest=$(sha256sum < "$tmp/script" | cut -d' ' -f1)
grep -qx "$digest" "$tmp/list"
[ "$(sed -n 's/^script //p' "$tmp/order")" = "$digest" ]
fence=$(sed -n 's/^fence //p' "$tmp/order")
expires=$(sed -n 's/^expires //p' "$tmp/list")
[ "$(date +%s)" -lt "$expires" ]
exec 9> "$state/lock"
flock -n 9
[ "$fence" -ge "$(cat "$state/fence")" ]
echo "$fence" > "$state/fence.tmp"
echo "started $digest" > "$state/run.tmp"
sync "$state/fence.tmp" "$state/run.tmp"
mv "$state/fence.tmp" "$state/fence"
mv "$state/run.tmp" "$state/run"
code=0
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 timeout 60 bash --noprofile --norc -p "$tmp/script" > "$tmp/out" 2>&1 < /dev/null || code=$?
head -c 1048576 "$tmp/out"
echo "receipt $digest $code $(sha256sum < "$tmp/out" | cut -d' ' -f1)" > "$state/receipt.tmp"
sync "$state/receipt.tmp"
mv "$state/receipt.tmp" "$state/receipt"
ssh-keygen -q -Y sign -f "$state/key" -n kpssh-receipt < "$state/receipt"
