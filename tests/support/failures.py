"""Pytest plugin: a failed test explains itself, and `--test-records` writes the outcome of each test.

The report of a failed test has sections with its daemons, the load of the machine at that moment, and the command
that runs it alone. The records are lines of JSON, read by the second look of the process lane and by
`make test-stress`.
"""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.host_load import describe_load
from support.run_records import STACKS, End, Failure, Outcome, Record
from support.started_daemons import STARTED, forget_ended

PROPERTY = "memwatch failure"
WRITER = pytest.StashKey["RecordWriter"]()
MAX_LINES = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--test-records", type=Path, metavar="FILE", help="write the outcome of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Write records in the process that sees all reports, not in its workers."""
    path: Path | None = config.getoption("--test-records")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RecordWriter(path), "memwatch-test-records")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        load = describe_load()
        report.sections += [daemon.section for daemon in STARTED]
        report.sections.append(("machine when the test failed", explain(item, load)))
        details = {"load": load, "fixtures": fixtures_of(item)}
        report.user_properties.append((PROPERTY, json.dumps(details)))
    return report


def pytest_runtest_logfinish() -> None:
    forget_ended()


def explain(item: pytest.Item, load: str) -> str:
    """Return the load, the folder of the test, and the command that runs it alone."""
    folder = (getattr(item, "funcargs", None) or {}).get("tmp_path")
    lines = [load, *([f"tmp_path: {folder}"] if folder else [])]
    return "\n".join([*lines, f"run it alone: .venv/bin/python -m pytest {shlex.quote(item.nodeid)}"])


def fixtures_of(item: pytest.Item) -> list[tuple[str, str]]:
    """Return file, relative to the repository, and name of each fixture function that the test uses."""
    if not isinstance(item, pytest.Function):
        return []
    definitions = dict(item._fixtureinfo.name2fixturedefs)
    definitions.update(getattr(item._request, "_arg2fixturedefs", {}))  # with those requested while it ran
    found: set[tuple[str, str]] = set()
    for one in (one for chain in definitions.values() for one in chain):
        function = inspect.unwrap(one.func)
        code = getattr(function, "__code__", None)
        path = Path(code.co_filename) if code else Path("/")
        if path.is_relative_to(item.config.rootpath) and ".venv" not in path.parts:
            found.add((str(path.relative_to(item.config.rootpath)), function.__qualname__))
    return sorted(found)


class RecordWriter:
    """Writer of one line for each finished test, each failure, and the end of the run."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")

    def _write(self, record: Record) -> None:
        self._file.write(msgspec.json.encode(record).decode() + "\n")
        self._file.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(failure_of(report))
        elif report.skipped or (report.passed and report.when == "call"):
            self._write(Outcome(report.nodeid, report.outcome, report.duration))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(Failure(report.nodeid, "collection", "", ends_of(report.longreprtext), ""))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        stopped = bool(session.shouldfail or session.shouldstop)
        self._write(End(int(exitstatus), stopped))

    def pytest_unconfigure(self) -> None:
        self._file.close()


def failure_of(report: pytest.TestReport) -> Failure:
    """Return the record of a failed phase. A worker that crashed has no phase."""
    details: dict[str, Any] = next(
        (json.loads(str(value)) for name, value in report.user_properties if name == PROPERTY), {}
    )
    phases: dict[str | None, str] = {"setup": "setup", "call": "call", "teardown": "teardown"}
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = ends_of(report.longreprtext)
    message = getattr(crash, "message", "") or (lines[-1] if lines else "")
    return Failure(
        test=report.nodeid,
        phase=phases.get(report.when, "crash"),
        message=message.strip().partition("\n")[0],
        lines=lines,
        load=str(details.get("load", "")),
        seconds=report.duration,
        fixtures=[(str(path), str(name)) for path, name in details.get("fixtures", ())],
        daemons=[ends_of(text) for title, text in report.sections if title.startswith("daemon log")],
        stacks=[
            line
            for title, text in report.sections
            if title.startswith(f"Captured {STACKS} ")
            for line in text.splitlines()
        ],
    )


def ends_of(text: str) -> list[str]:
    return text.strip().splitlines()[-MAX_LINES:]
