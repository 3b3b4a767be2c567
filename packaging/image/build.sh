#!/usr/bin/env bash
# Builds the controller for linux/amd64 and linux/arm64 and its image into a folder; main.go says what is in it then. The
# same source, IMAGE, VERSION, REVISION and SOURCE_DATE_EPOCH make the same bytes in any folder and on any machine with
# the same Go.
set -euo pipefail
[ $# = 1 ] || { echo "usage: IMAGE=registry/name:tag VERSION=v1.2.3 packaging/image/build.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

IMAGE=${IMAGE:?is not set, such as registry/name:tag}
VERSION=${VERSION:?is not set, such as v1.2.3}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
REVISION=${REVISION-$(git rev-parse HEAD 2>/dev/null || true)}

programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT

# Built on first use, and then in the build cache.
sbom=$(go tool -modfile=go.tools.mod -n cyclonedx-gomod)

for arch in amd64 arm64; do
	binary=$programs/karpenter-provider-ssh-linux-$arch
	# Without -buildvcs=false a clone and a copy of it would differ.
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch GOAMD64=v1 GOARM64=v8.0 GOFLAGS='' GOEXPERIMENT='' \
		go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o "$binary" ./cmd/controller
	"$sbom" bin -json -std -noserial -notimestamp -version "$VERSION" -output "$binary.cdx.json" "$binary" 2>"$programs/log" ||
		{ cat "$programs/log" >&2; exit 1; }
done
digest=$(go run ./packaging/image build -programs "$programs" -out "$out" \
	-image "$IMAGE" -version "$VERSION" -revision "$REVISION" -time "$SOURCE_DATE_EPOCH")
echo "$out has $IMAGE, $digest:"
ls "$out"
