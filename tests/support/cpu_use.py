"""Pytest plugin: CPU seconds of a run by test file, with all processes that its tests have started.

Load of the machine changes them less than seconds of the clock. With `--cpu-seconds` they are written to a file,
and the end of the run names the most expensive test files.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct, field
from xdist.workermanage import WorkerController

MAX_LISTED = 10
# Importing and collecting the tests, and the end of a worker.
REST = "(start, collection and end)"
TICKS = os.sysconf("SC_CLK_TCK")
# Of /proc/PID/stat, after the name: utime, stime, cutime, cstime.
TIMES = slice(11, 15)


class CpuUse(Struct):
    """CPU seconds by file, and those of them that the worker itself has used."""

    seconds: dict[str, float] = {}
    of_worker: dict[str, float] = {}

    def add(self, file: str, seconds: float, of_worker: float) -> None:
        self.seconds[file] = self.seconds.get(file, 0.0) + seconds
        self.of_worker[file] = self.of_worker.get(file, 0.0) + of_worker


class _State(Struct):
    use: CpuUse = field(default_factory=CpuUse)
    before: float = 0.0
    before_worker: float = 0.0

    def end(self, file: str) -> None:
        """Count what was used since the last end as that of a file."""
        now, worker = tree_seconds(), _seconds(resource.RUSAGE_SELF)
        self.use.add(file, max(0.0, now - self.before), worker - self.before_worker)
        self.before, self.before_worker = now, worker


_state = _State()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-seconds", type=Path, metavar="FILE", help="write the CPU seconds of each test file to FILE"
    )


def tree_seconds() -> float:
    """Return the CPU seconds of this process and of its descendants, those that were waited for included."""
    alive = sum(_seconds_of(pid) for pid in _descendants(os.getpid()))
    return _seconds(resource.RUSAGE_SELF) + _seconds(resource.RUSAGE_CHILDREN) + alive


def _seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):  # a process or thread that has ended since
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                yield child
                yield from _descendants(child)


def _seconds_of(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[TIMES])) / TICKS
    return 0.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Count what is no test. The process that starts workers counts itself: they report their own seconds."""
    if session.config.getoption("numprocesses", None):
        result = yield
        own = _seconds(resource.RUSAGE_SELF)
        _state.use.add(REST, own, own)
        return result
    _state.end(REST)
    result = yield
    _state.end(REST)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    result = yield
    _end_of_file(item, nextitem)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Count before fixtures end, too. Processes of a browser vanish with their seconds: nothing waits for them."""
    _end_of_file(item, nextitem)


def _end_of_file(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    file = item.nodeid.partition("::")[0]
    if nextitem is None or nextitem.nodeid.partition("::")[0] != file:
        _state.end(file)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the seconds of a worker to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu"] = msgspec.to_builtins(_state.use)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Take the seconds of a worker. One that crashed has none."""
    use = msgspec.convert(getattr(node, "workeroutput", {}).get("cpu", {}), CpuUse)
    for file, seconds in use.seconds.items():
        _state.use.add(file, seconds, use.of_worker[file])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path: Path | None = config.getoption("--cpu-seconds")
    if path is None:
        return
    written = msgspec.json.format(msgspec.json.encode(_state.use), indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(written + b"\n")
    for line in summarize(_state.use):
        terminalreporter.write_line(line)


def summarize(use: CpuUse) -> list[str]:
    """Return a line with the sum, and one with the most expensive files."""
    of_tests = {file: seconds for file, seconds in use.seconds.items() if file != REST}
    most = sorted(of_tests, key=lambda file: -of_tests[file])[:MAX_LISTED]
    total, workers = sum(use.seconds.values()), sum(use.of_worker.values())
    return [
        f"CPU: {total:.0f} s in {len(of_tests)} files; {workers:.0f} s of the workers themselves,"
        f" {use.seconds.get(REST, 0.0):.0f} s of their start, collection and end",
        "most: " + ", ".join(f"{Path(file).stem} {of_tests[file]:.1f}" for file in most),
    ]
