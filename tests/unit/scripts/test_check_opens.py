"""The lint finds each new open of a path, however it is written. Lint itself compares those of the product."""

from __future__ import annotations

import pytest

from scripts.check_opens import PLACES, READERS, Open, check, find_opens, read_table, sources
from support.paths import ROOT

MODULE = "daemon/memwatch/core/collectors/engines.py"
FOUND = [
    "open(path)",
    "Path(path).read_bytes()",
    "path.open('rb')",
    "os.open(path, os.O_RDONLY)",
    "osmodule.stat(path)",
    "listdir(path)",
    "os.path.exists(path)",
    "list(map(os.readlink, paths))",
    "read_once(path)",
    "files.read_once(path)",
    "subprocess.run([path])",
    "ctypes.CDLL(path)",
    "os.execv(path, [])",
    "sqlite3.connect(path)",
    "connection.connect(path)",
    "Path('/proc', pid, 'cwd').exists()",
    "next(iter(path.iterdir()))",
]
LEFT_OUT = [
    "open('/proc/self/stat')",
    "os.open(os.devnull, os.O_WRONLY)",
    "Path('/proc/self/stat').read_bytes()",
    "ctypes.CDLL(None)",
    "open_regular(path)",
    "user_path.open_descriptor()",
    "text.replace(a, b)",
    "subprocess.DEVNULL",
]
# Modules import at their top; the check reads imports anywhere.
IMPORTS = """import ctypes, os, sqlite3, subprocess
import os as osmodule
from os import listdir
from pathlib import Path
from memwatch.core.linux import files
from memwatch.core.linux.files import read_once
"""


def lines_found(text: str) -> list[str]:
    return [one.text for one in find_opens(MODULE, IMPORTS + text)]


@pytest.mark.parametrize("text", FOUND)
def test_open_is_found(text: str) -> None:
    assert lines_found(f"def read(path):\n    return {text}\n") == [f"return {text}"]


@pytest.mark.parametrize("text", LEFT_OUT)
def test_constant_path_and_reader_are_left_out(text: str) -> None:
    assert lines_found(f"def read(path):\n    return {text}\n") == []


def test_annotation_is_no_open() -> None:
    assert lines_found("def run(one: subprocess.Popen[bytes]) -> ctypes.CDLL: ...\nx: ctypes.CDLL\n") == []


@pytest.mark.parametrize("planted", ["read_once(Path(command[1]))", "open(os.readlink(f'/proc/{pid}/cwd'))"])
@pytest.mark.parametrize("module", ["daemon/memwatch/core/collectors/meminfo.py", "daemon/memwatch/core/units.py"])
def test_planted_open_is_found_in_any_module(module: str, planted: str) -> None:
    """Also in one that opens files of the kernel."""
    text = (ROOT / module).read_text("utf-8")
    table = {
        reason: {name: n for name, n in group.items() if name == module} for reason, group in read_table().items()
    }
    assert list(check(find_opens(module, text), table)) == []
    text += f"\n\n{IMPORTS}\n\ndef planted(command, pid):\n    return {planted}\n"
    first, *places = check(find_opens(module, text), table)
    assert first.startswith(f"{module}: ")
    assert "a path that another user's process names needs memwatch.core.linux.user_files" in first
    assert any(planted in place for place in places)


def test_open_that_is_gone_leaves_the_table() -> None:
    assert next(check([], {"reason": {MODULE: 1}})).startswith(f"{MODULE}: 0 opens, 1 in opens.toml")
    assert list(check([Open(MODULE, 1, "open(path)")], {"one": {MODULE: 1}})) == []


def test_each_group_has_a_reason_and_each_module_exists() -> None:
    table = read_table()
    modules = [module for group in table.values() for module in group]
    assert all(reason.endswith(".") for reason in table)
    assert set(modules) <= dict(sources()).keys()


def test_readers_are_the_only_modules_left_out() -> None:
    modules = {path.relative_to(ROOT).as_posix() for place in PLACES for path in (ROOT / place).rglob("*.py")}
    assert {name for name in modules if "__pycache__" not in name} - dict(sources()).keys() == READERS
