"""Tests that run a function: recorded once, by a mark at the begin of each function of the pure modules.

As a plugin of pytest (`-p support.related_tests`) this module records: for each test that passes its CPU time, and
the functions that it called. Each process writes a file to the folder of MEMWATCH_RELATED_TESTS. Coverage with
contexts tells lines as well, but takes many times as long.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import msgspec
import pytest
from msgspec import Struct

from support.mutations import PACKAGES, Mutation, package_of
from support.paths import ROOT

VARIABLE = "MEMWATCH_RELATED_TESTS"
MARK = "__memwatch_called__"
PRODUCT = ("memwatch.", "memwatch_monitor.")
# CPU seconds of the tests of the package, and of others.
OWN_SECONDS, OTHER_SECONDS = 8.0, 4.0
# Packages whose tests are not in tests/unit/PACKAGE.
FOLDERS = {"incidents": "tests/incidents", "reading": "tests/unit/monitor"}


class Ran(Struct, frozen=True):
    """CPU seconds of one test, and the functions that it called, as PATH:LINE."""

    seconds: float
    called: tuple[str, ...]


class RelatedTests:
    """The recorded tests."""

    def __init__(self, folder: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._callers: dict[str, set[str]] = {}
        for file in sorted(folder.glob("*.json")):
            for name, ran in msgspec.json.decode(file.read_bytes(), type=dict[str, Ran]).items():
                self._seconds[name] = ran.seconds
                for place in ran.called:
                    self._callers.setdefault(place, set()).add(name)

    def choose(self, mutation: Mutation) -> tuple[list[str], list[str]]:
        """Return the tests of the package that call the changed functions, and others, each within a time."""
        found: set[str] = set()
        for line in mutation.functions:
            found |= self._callers.get(f"{mutation.path}:{line}", set())
        folder = FOLDERS.get(mutation.package, f"tests/unit/{mutation.package}") + "/"
        if not mutation.functions:  # a table in a module without functions
            found = {name for name in self._seconds if name.startswith(folder)}
        found |= self._find_readers(mutation)
        own = [name for name in found if name.startswith(folder)]
        others = [name for name in found if not name.startswith(folder)]
        return self._within(own, OWN_SECONDS), self._within(others, OTHER_SECONDS)

    def _find_readers(self, mutation: Mutation) -> set[str]:
        """Return the tests in files that name a changed limit: they may read it without a call."""
        names = [name for name in mutation.name.split() if mutation.is_limit]
        files = {name.split("::", 1)[0] for name in self._seconds} if names else ()
        texts = {file: (ROOT / file).read_text() for file in files if (ROOT / file).exists()}
        readers = tuple(f"{file}::" for file, text in texts.items() if any(name in text for name in names))
        return {name for name in self._seconds if name.startswith(readers)} if readers else set()

    def _within(self, names: Iterable[str], seconds: float) -> list[str]:
        """Return tests file by file, the quickest file first, as long as their time is within the limit."""
        files: dict[str, list[str]] = {}
        for name in sorted(names, key=lambda one: (self._seconds[one], one)):
            files.setdefault(name.split("::", 1)[0], []).append(name)
        chosen: list[str] = []
        left = seconds
        for tests in sorted(files.values(), key=lambda one: (self.seconds_of(one), one)):
            for name in tests:
                left -= self._seconds[name]
                if left < 0:
                    return chosen
                chosen.append(name)
        return chosen

    def seconds_of(self, names: Iterable[str]) -> float:
        return sum(self._seconds[name] for name in names)


def add_marks(tree: ast.Module, path: str) -> ast.Module:
    """Add a call with the function's place at the begin of each function."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            mark = ast.Expr(ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(f"{path}:{node.lineno}")], []))
            node.body.insert(1 if ast.get_docstring(node) else 0, ast.copy_location(mark, node.body[0]))
    return ast.fix_missing_locations(tree)


class MarkingLoader(SourceFileLoader):
    """Loader that adds marks to a module."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  called by the import system
        text = Path(self.path).read_text()
        return compile(add_marks(ast.parse(text), str(Path(self.path).relative_to(ROOT))), self.path, "exec")


class MarkingFinder:
    """Finder of the modules that are recorded: those of the packages that are changed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(PRODUCT):
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is None or found.origin is None or found.submodule_search_locations is not None:
            return found
        if package_of(str(Path(found.origin).relative_to(ROOT))) in PACKAGES:
            found.loader = MarkingLoader(name, found.origin)
        return found


class Recorder:
    """Plugin that records the tests of this process."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.json"
        self._called: set[str] = set()
        self._failed: set[str] = set()
        self._tests: dict[str, Ran] = {}
        setattr(builtins, MARK, self._called.add)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._called.clear()
        before = time.process_time()
        result = yield
        if item.nodeid not in self._failed:
            self._tests[item.nodeid] = Ran(time.process_time() - before, tuple(sorted(self._called)))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self._tests:
            self._file.write_bytes(msgspec.json.encode(self._tests))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(os.environ[VARIABLE])))


if VARIABLE in os.environ:
    setattr(builtins, MARK, str)  # until the recorder is there
    sys.meta_path.insert(0, MarkingFinder())
