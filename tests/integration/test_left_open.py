"""The guard of the process lane: a test leaves nothing open in its worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.small_suite import SmallSuite

HEAD = """
import os, subprocess, threading
import pytest
from support.open_things import close_at_end, kept_open
released = threading.Event()
"""
LEAKS = """
def test_descriptor(): os.pipe()
def test_file(tmp_path): os.open(tmp_path, os.O_RDONLY)
def test_thread(): threading.Thread(target=released.wait, name="store", daemon=True).start()
def test_child(): child = subprocess.Popen(["sleep", "600"]); children.append(child)
children = []
@pytest.fixture(scope="module")
def forgetful(): return os.pipe()
def test_fixture(forgetful): released.set(); children[0].kill(); children[0].wait()
"""
CLEAN = """
@pytest.fixture(scope="module")
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)

class Owner:
    def __init__(self): self.ends = os.pipe()
    def close(self): [os.close(one) for one in self.ends]

def test_uses_a_fixture(pipe): os.write(pipe[1], b"x")
def test_closes_at_its_end(): close_at_end(Owner())
def test_opens_what_the_worker_keeps():
    with kept_open():
        os.pipe()
def test_port_is_released():
    from support.free_ports import free_port
    free_port()
"""


# What these tests leave open stays so: there is nothing to wait for.
CONFTEST = """
pytest_plugins = ("support.left_open",)
def pytest_configure():
    from support import left_open
    left_open.MAX_LOOKS = 3
"""


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    suite = SmallSuite(folder / "checkout")
    suite.write("conftest.py", CONFTEST)
    suite.write("tests/test_x.py", HEAD + text)
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-m", "pytest", "-q", *options, "tests"]
    return subprocess.run(command, cwd=suite.root, env=environ, capture_output=True, text=True, check=False)


def test_leaks_are_errors_of_the_test_that_made_them(tmp_path: Path) -> None:
    """Each is named with its target or command. That of a fixture counts for the last test of the file."""
    done = run(tmp_path, LEAKS)

    assert "5 passed, 5 errors" in done.stdout, done.stdout
    lines = done.stdout.splitlines()
    assert sum("things open:" in line and line.startswith("E ") for line in lines) == 5
    for found in ("pipe:[", "tests/test_x.py::test_file", "store", "sleep 600"):
        assert any(found in line for line in lines), found


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "with workers"])
def test_what_is_closed_or_kept_is_no_error(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, CLEAN, *options)

    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
