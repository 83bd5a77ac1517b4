#!/bin/sh
# Write the digest of the base image into a Dockerfile: pin-base.sh [DOCKERFILE]. Run it for a release, which then builds
# from the same base again. The registry tells the digest, by skopeo or docker; nothing else is a source for it.
set -eu
file=${1:-$(dirname "$0")/Dockerfile}
image=$(sed -n 's/^FROM \([^ @]*\)[^ ]* AS base$/\1/p' "$file")
if [ -z "$image" ]; then
    echo "pin-base: $file has no line 'FROM IMAGE AS base'" >&2
    exit 1
fi
if command -v skopeo >/dev/null; then
    # The hash of the manifest: that of the list, where an image has several architectures.
    manifest=$(mktemp)
    trap 'rm -f "$manifest"' EXIT
    digest=
    if skopeo inspect --no-tags --raw "docker://$image" >"$manifest"; then
        digest=sha256:$(sha256sum <"$manifest" | cut -d' ' -f1)
    fi
elif command -v docker >/dev/null; then
    digest=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}') || digest=
else
    echo "pin-base: needs skopeo or docker buildx: sudo apt install skopeo" >&2
    exit 1
fi
case $digest in
sha256:????????????????????????????????????????????????????????????????) ;;
*)
    echo "pin-base: the registry reports no digest of $image; $file is unchanged" >&2
    exit 1
    ;;
esac
sed "s|^FROM [^ ]* AS base\$|FROM $image@$digest AS base|" "$file" >"$file.new"
cat "$file.new" >"$file" # keeps the file's mode and owner
rm "$file.new"
echo "$image@$digest"
