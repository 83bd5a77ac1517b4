#!/bin/sh
# pins.sh CONSTRAINTS: check that the pinned versions exist for every supported Python found here. pip resolves them
# and installs nothing. A marker such as python_version < '3.11' is evaluated by the Python that runs pip, so each
# Python resolves its own.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 3.10 3.11 3.12 3.13 3.14; do
    python=$(sh tests/tools/find_python.sh "$version") || continue
    sh tests/tools/make_venv.sh "$python" "$folder/$version" >/dev/null
    if ! "$folder/$version/bin/python" -m pip --quiet --disable-pip-version-check install --dry-run --constraint "$1" \
        --build-constraint "$1" --editable . --group test --group lint --group docs --group types --group lock \
        --group conformance >"$folder/log" 2>&1; then
        cat "$folder/log" >&2
        echo "$1: some pins do not exist for Python $version. Pin another version: NAME==VERSION; python_version < '3.11'" >&2
        exit 1
    fi
    echo "$1: all pins exist for Python $version"
done
