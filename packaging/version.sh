#!/usr/bin/env bash
# Prints VERSION, as git describe says it, the way that dpkg and rpm order it: v1.2.3-rc.1 comes before v1.2.3, which comes
# before v1.2.3-4-g0cf3a21, four commits later. A commit without a release before it goes by its SOURCE_DATE_EPOCH.
set -euo pipefail
v=${VERSION%-dirty} dirty=
[ "$v" = "$VERSION" ] || dirty=+dirty
if [[ $v =~ ^v?([0-9]+\.[0-9]+\.[0-9]+)(-([0-9A-Za-z.]+))?(-([0-9]+)-(g[0-9a-f]+))?$ ]]; then
	m=("${BASH_REMATCH[@]}")
	v=${m[1]}${m[3]:+~${m[3]}}${m[5]:++${m[5]}.${m[6]}}
else
	v=0~$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).${v//[^0-9A-Za-z]/.}
fi
echo "$v$dirty"
