#!/bin/sh
# find_python.sh VERSION: print the path of a working Python of that version (such as 3.10), from pyenv or the PATH.
set -eu
for python in "$HOME"/.pyenv/versions/"$1".*/bin/python "$(command -v "python$1" || true)"; do
    # pyenv has a shim on the PATH for every version that it ever installed, which fails when it is run.
    if "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
exit 1
