"""Programs that tests run, as NEEDED_PROGRAMS of their files and helper modules declare them.

A file needs the programs of the helper modules that it imports, too, and Chromium if it uses the fixture `browser`.
"""

from __future__ import annotations

import ast
import os
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from support.paths import ROOT

TESTS = ROOT / "tests"
HELPERS = ("support", "simulators", "scripts", "bench", "faults", "hardware")
# Names under which distributions install a program. Chromium without windows takes a third of the CPU time; any
# other one can stand in for it.
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
OTHER_NAMES = {"chromium": CHROMIUM, "chromium-headless-shell": ("chromium-headless-shell", *CHROMIUM)}
# By fixture.
BROWSERS = {"browser": "chromium-headless-shell", "whole_browser": "chromium"}
# Files that a program needs, or that are all there is to it.
FILES = {"cc": "usr/include/stdio.h", "pocl": "etc/OpenCL/vendors/pocl*.icd"}
WITHOUT_A_COMMAND = frozenset({"pocl"})
NOT_RUN = pytest.StashKey[Counter[str]]()


def is_here(program: str) -> bool:
    if program in FILES and not any(Path("/").glob(FILES[program])):
        return False
    return program in WITHOUT_A_COMMAND or path_of(program) is not None


def path_of(program: str) -> str | None:
    """Return the path of a program by the first of its names that is installed, None if none is."""
    return next(filter(None, map(shutil.which, OTHER_NAMES.get(program, (program,)))), None)


@cache
def programs_of(file: Path) -> frozenset[str]:
    """Return the programs that a file and its helper modules declare."""
    return frozenset().union(*(declared_in(one) for one in reachable(file)))


def reachable(file: Path) -> set[Path]:
    """Return the file and all helper modules that it imports, also through others."""
    found, waiting = {file}, [file]
    while waiting:
        new = imported_by(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@cache
def declared_in(file: Path) -> frozenset[str]:
    for node in tree_of(file).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NEEDED_PROGRAMS":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


@cache
def imported_by(file: Path) -> frozenset[Path]:
    names: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{one.name}" for one in node.names)})
        elif isinstance(node, ast.Import):
            names.update(one.name for one in node.names)
    paths = (TESTS / f"{name.replace('.', '/')}.py" for name in names if name.partition(".")[0] in HELPERS)
    return frozenset(path for path in paths if path.is_file())


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


def missing_for(item: pytest.Item) -> list[str]:
    """Return the programs that a test needs and this machine lacks."""
    fixtures = BROWSERS.keys() & getattr(item, "fixturenames", ())
    needed = programs_of(item.path) | {BROWSERS[name] for name in fixtures}
    return sorted(program for program in needed if not is_here(program))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With TOOLS=none, mark and deselect the tests whose programs are missing, and count them by program."""
    counts: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        missing = missing_for(item) if os.environ.get("TOOLS") == "none" else []
        if missing:
            item.add_marker(pytest.mark.programs(*missing))
            counts[", ".join(missing)] += 1
        (left_out if missing else kept).append(item)
    config.stash[NOT_RUN] = counts
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def summarize(counts: Counter[str]) -> list[str]:
    """Return the lines for the end of a run."""
    if not counts:
        return []
    lines = [f"{count:5,} need {programs}" for programs, count in counts.most_common()]
    total = f"{sum(counts.values()):,} tests were not run, as TOOLS=none and these programs are not installed:"
    return [total, *lines, "`make tools` installs them (as root), or names the Debian packages."]
