"""Run chosen tests on a changed module, in a fork of a pytest process that has collected all tests.

No file is changed. A changed function gets its new code in place, and so does a limit that only functions of its
module read. Other limits may be part of other values: all modules are imported again, with the change, and pytest
collects the files of the chosen tests again. Programs that a test starts run the unchanged product.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import NoReturn

import pytest
from msgspec import Struct

from support.mutations import Mutation, compile_mutation, is_used_outside_functions
from support.paths import ROOT

CAUGHT, SURVIVED, TIMEOUT = "caught", "survived", "timeout"
LEFT_OUT = ("cacheprovider", "xdist", "cloudcoil", "schemathesis", "playwright", "pytest_cov")
# The options of pyproject.toml name plugins that are left out here.
OPTIONS = ["-q", "-s", "--assert=plain", "-o", "addopts=", *(f"-pno:{name}" for name in LEFT_OUT)]
MAX_BYTES = 8 << 30
# A child that waits for something that never comes uses no CPU.
WALL_FACTOR, WALL_SECONDS = 20.0, 120.0
PAUSE_SECONDS = 0.01


class Outcome(Struct, frozen=True):
    """Result of the tests. `test`: the first that failed. `seconds`: of CPU time."""

    status: str
    test: str = ""
    seconds: float = 0.0


class FirstFailure:
    """Plugin that ends the process at the first failure, and writes the name of the test to a file descriptor."""

    def __init__(self) -> None:
        self.log = -1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._end(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._end(report)

    def _end(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and self.log >= 0:
            os.write(self.log, report.nodeid.encode())
            os._exit(1)


class WarmTests(FirstFailure):
    """Plugin of a pytest process that collects tests, and calls `work` in place of running them."""

    def __init__(self, work: Callable[[WarmTests], None]) -> None:
        super().__init__()
        self._work = work
        self._session: pytest.Session | None = None
        self._items: dict[str, pytest.Item] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session, self._items = session, {item.nodeid: item for item in session.items}
        gc.unfreeze()
        self._work(self)
        return True

    def run(self, mutation: Mutation | None, names: Sequence[str], cpu_seconds: int) -> Outcome:
        """Run tests by their names until one fails, in the order of their files."""
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            _prepare_child(cpu_seconds)
            self.log = writer
            self._run_child(mutation, names)
        os.close(writer)
        status, seconds = _wait(pid, WALL_SECONDS + WALL_FACTOR * cpu_seconds)
        with open(reader) as log:
            failed = log.read()
        if os.WIFSIGNALED(status):
            return Outcome(TIMEOUT, "", seconds)
        if not os.WEXITSTATUS(status):
            return Outcome(SURVIVED, "", seconds)
        return Outcome(CAUGHT, failed or f"(ended with {os.WEXITSTATUS(status)})", seconds)

    def _run_child(self, mutation: Mutation | None, names: Sequence[str]) -> NoReturn:
        code = 99
        try:
            is_patched = mutation is None or patch_functions(mutation) or patch_limits(mutation)
            code = self._run_items(names) if is_patched else self._run_again(mutation, names)
        finally:
            os._exit(code)

    def _run_items(self, names: Sequence[str]) -> int:
        chosen = [self._items[name] for name in names if name in self._items]
        assert self._session is not None
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        return 0

    def _run_again(self, mutation: Mutation | None, names: Sequence[str]) -> int:
        """Import the modules of the tree again, one of them changed, and run pytest again in this process."""
        assert self._session is not None
        assert mutation is not None
        forget_modules()
        sys.meta_path.insert(0, MutatedFinder(mutation))
        files = list(dict.fromkeys(name.split("::", 1)[0] for name in names))
        folder = f"--basetemp={self._session.config.option.basetemp}-again"
        return int(pytest.main([*OPTIONS, folder, *files], plugins=[ChosenTests(names, self.log)]))


class ChosenTests(FirstFailure):
    """Plugin that runs only the chosen tests."""

    def __init__(self, names: Sequence[str], log: int) -> None:
        super().__init__()
        self._names, self.log = frozenset(names), log

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._names]


class MutatedLoader(SourceFileLoader):
    """Loader of the changed module."""

    def __init__(self, mutation: Mutation, path: str) -> None:
        super().__init__(mutation.module, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  called by the import system
        return compile_mutation(self._mutation)


class MutatedFinder:
    """Finder of the changed module only."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._mutation.module:
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is not None and found.origin is not None:
            found.loader = MutatedLoader(self._mutation, found.origin)
        return found


def patch_functions(mutation: Mutation) -> bool:
    """Give the changed functions their new code. Return False if none is found, or one takes other variables."""
    if mutation.is_limit:
        return False
    file, found = str(ROOT / mutation.path), False
    codes = list(_list_codes(compile_mutation(mutation)))
    times = Counter(map(_place_of, codes))
    changed = {_place_of(code): code for code in codes if times[_place_of(code)] == 1}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == file:
            code = changed.get(_place_of(function.__code__))
            if code is not None and code != function.__code__:
                if code.co_freevars != function.__code__.co_freevars:
                    return False
                function.__code__, found = code, True
    return found


def patch_limits(mutation: Mutation) -> bool:
    """Set a changed limit that only functions of its module read. Return False for others."""
    names, module = mutation.name.split(), sys.modules.get(mutation.module)
    if not mutation.is_limit or module is None or is_used_outside_functions(mutation):
        return False
    for other in list(sys.modules.values()):
        known = vars(other) if other is not None and other is not module else {}
        if any(known.get(name) is getattr(module, name) for name in names if name in known):
            return False
    changed: dict[str, object] = {"__name__": module.__name__, "__file__": module.__file__}
    exec(compile_mutation(mutation), changed)
    for name in names:
        setattr(module, name, changed[name])
    return True


def _place_of(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _list_codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _list_codes(one)


def forget_modules() -> None:
    """Drop the modules of the tree, so that they are imported again."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(f"{ROOT}/") and not file.startswith(sys.prefix):
            del sys.modules[name]


def _prepare_child(cpu_seconds: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)


def _wait(pid: int, wall_seconds: float) -> tuple[int, float]:
    """Return status and CPU seconds of a child. Kill it if it waits for something that never comes."""
    end = time.monotonic() + wall_seconds
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return status, usage.ru_utime + usage.ru_stime
        if time.monotonic() > end:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)
