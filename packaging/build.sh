#!/usr/bin/env bash
# Builds kpssh-shim and its packages into a folder: deb and rpm for amd64, arm64 and armhf, the bare binaries with an SBOM
# each, and SHA256SUMS. The same source, VERSION and SOURCE_DATE_EPOCH make the same bytes in any folder and on any
# machine with the same Go.
set -euo pipefail
[ $# = 1 ] || { echo "usage: VERSION=v1.2.3 packaging/build.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

VERSION=${VERSION:?is not set, such as v1.2.3}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

PACKAGE_VERSION=$(VERSION=$VERSION packaging/version.sh)
export PACKAGE_VERSION

STAGE=$(mktemp -d)
trap 'rm -rf "$STAGE"' EXIT
export STAGE
gzip -9n <packaging/kpssh-shim.8 >"$STAGE/kpssh-shim.8.gz"
gzip -9n >"$STAGE/changelog.Debian.gz" <<EOF
kpssh-shim ($PACKAGE_VERSION-1) unstable; urgency=medium

  * https://github.com/kpssh/karpenter-provider-ssh has the changes.

 -- karpenter-provider-ssh <kpssh@users.noreply.github.com>  $(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" -R)
EOF

# Built on first use, and then in the build cache.
nfpm=$(go tool -modfile=go.tools.mod -n nfpm)
sbom=$(go tool -modfile=go.tools.mod -n cyclonedx-gomod)

mapfile -t flags < <(grep -v '^#' packaging/shim.flags)

# GOARM=6 is what a Raspberry Pi Zero or 1 has, and Raspberry Pi OS calls that armhf too. The shim has nothing that would
# gain by GOARM=7.
for arch in amd64:amd64 arm64:arm64 arm:arm6; do
	goarch=${arch%:*} NFPM_ARCH=${arch#*:}
	export NFPM_ARCH
	binary=$out/kpssh-shim-linux-$goarch
	# Without -buildvcs=false a clone and a copy of it would differ.
	CGO_ENABLED=0 GOOS=linux GOARCH=$goarch GOARM=6 GOAMD64=v1 GOARM64=v8.0 GOFLAGS='' GOEXPERIMENT='' \
		go build "${flags[@]}" -buildvcs=false -ldflags "-s -w -X main.version=$VERSION -X main.built=$SOURCE_DATE_EPOCH" \
		-o "$binary" ./cmd/kpssh-shim
	cp "$binary" "$STAGE/kpssh-shim"
	"$sbom" bin -json -std -noserial -notimestamp -version "$VERSION" -output "$binary.cdx.json" "$binary" 2>"$STAGE/log" ||
		{ cat "$STAGE/log" >&2; exit 1; }
	for packager in deb rpm; do
		"$nfpm" package --config packaging/nfpm.yaml --packager $packager --target "$out/" >/dev/null
	done
done
(cd "$out" && sha256sum -- kpssh-shim* >SHA256SUMS)
echo "$out has:"
ls "$out"
