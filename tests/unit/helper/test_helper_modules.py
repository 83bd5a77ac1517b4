"""The NVML helper loads only what it uses: it stays resident beside the daemon."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memwatch.core.drivers.nvml import child
from memwatch.core.helper.process import import_path

pytestmark = pytest.mark.process

# Each is loaded by a library, or by another module of memwatch, and brings others.
UNUSED = ("inspect", "tempfile", "subprocess")
SHOW = """
import sys
module, sys.path[:] = sys.argv[1], sys.argv[2:]
sys.argv[:] = [module]
__import__(module)
from ctypes.util import find_library
print(*sys.modules)
print(find_library("c"))
"""


def test_nvml_helper_does_without_unused_modules() -> None:
    """A module that a library imports is left out, and is there when it is called."""
    command = [sys.executable, "-I", "-c", SHOW, child.__name__, *import_path()]
    loaded, library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert child.__name__ in loaded.split()
    assert not set(UNUSED) & set(loaded.split())
    assert library.startswith("libc.so")


def test_modules_of_other_processes_stay() -> None:
    from ctypes.util import find_library

    assert find_library.__module__ == "ctypes.util"
