#!/bin/sh
# pins.sh CONSTRAINTS: whether what is pinned for the tests can be had for every supported Python that is found here.
# pip works it out and installs nothing. A marker such as python_version < '3.11' is judged by the Python that runs
# pip, so each has to do it itself.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 3.10 3.11 3.12 3.13 3.14; do
    python=$(sh tests/tools/find_python.sh "$version") || continue
    sh tests/tools/make_venv.sh "$python" "$folder/$version" >/dev/null
    if ! "$folder/$version/bin/python" -m pip --quiet --disable-pip-version-check install --dry-run --constraint "$1" \
        --build-constraint "$1" --editable . --group test --group lint --group docs >"$folder/said" 2>&1; then
        cat "$folder/said" >&2
        echo "$1: not all of it is there for Python $version. Pin another for it: NAME==VERSION; python_version < '3.11'" >&2
        exit 1
    fi
    echo "$1: all of it is there for Python $version"
done
