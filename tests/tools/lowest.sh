#!/bin/sh
# The tests with the oldest dependencies pyproject.toml allows, on the oldest Python found here.
set -eu
for version in 3.10 3.11; do
    python=$(ls "$HOME"/.pyenv/versions/"$version".*/bin/python 2>/dev/null | tail -1)
    [ -n "$python" ] || python=$(command -v "python$version" || true)
    [ -z "$python" ] || break
done
make --no-print-directory test PYTHON="$python" VENV=".venv-lowest" CONSTRAINTS=tests/constraints-lowest.txt \
    TEST_ARGS="${TEST_ARGS:-}"
