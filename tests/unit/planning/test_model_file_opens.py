"""Files of models are opened in one place, which checks what they are and whose."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import memwatch

PACKAGE = Path(memwatch.__file__).parent
# Tables of the package. The child process of `served` opens the folders of the process itself.
ONLY = {"planning/model_file.py", "core/linux/user_files.py", "planning/served.py", "planning/__init__.py"}
OPENERS = frozenset({"open", "read_bytes", "read_text", "stat", "lstat", "os.open", "os.stat", "os.access"})
PLANNER = sorted(f"planning/{path.name}" for path in (PACKAGE / "planning").glob("*.py"))


def calls_in(source: str) -> set[str]:
    """Return the names of the functions in these calls, with `os.` before those of that module."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found.add(name if name.startswith("os.") else name.rpartition(".")[2])
    return found


@pytest.mark.parametrize("module", PLANNER)
def test_planner_opens_files_by_one_function(module: str) -> None:
    assert module in ONLY or not calls_in((PACKAGE / module).read_text("utf-8")) & OPENERS


def test_check_finds_each_way_to_open() -> None:
    source = "open(p)\np.open('rb')\nos.open(p, 0)\nPath(p).read_bytes()\nmodel_file.open_regular(p)\n"
    assert calls_in(source) == {"open", "os.open", "read_bytes", "Path", "open_regular"}
