"""Hypothesis settings, the order of the tests, and turns of those that run alone."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from support.exclusive_lock import taking_turns
from support.fork_server import installed_programs
from support.needed_programs import NOT_RUN, leave_out, summarize
from support.scheduling import Scheduling
from support.waiting import MAX_WAIT_SECONDS, wait_for_quiet_host

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Links of a simulated sysfs form cycles, and there are no tests.
collect_ignore = ["machines"]

# On a busy machine examples are slow, so there is no deadline. Examples are the same in every run;
# `make fuzz` tries others.
settings.register_profile("memwatch", deadline=None, derandomize=True)
settings.load_profile("memwatch")

# A shell starts background programs with SIGINT ignored, which programs started by a test would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Fixtures shared in these files take 5 to 20 seconds: a Prometheus with history, a built wheel, recordings,
# the pressure benchmark. They begin first.
_SHARING = (
    "deploy/test_dashboards",
    "deploy/test_package",
    "integration/test_history_page",
    "integration/test_replay_daemon",
    "unit/pressure/test_benchmark",
)
# The same for tests that measure, with a daemon or a browser for all: they stay together at the end.
_MEASURING = ("browser/test_pages_budget", "integration/test_history_queries")
FIRST, LAST = (tuple(f"tests/{name}.py::" for name in names) for names in (_SHARING, _MEASURING))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    # Otherwise xdist starts with the scopes of the most tests, among them those that belong at the end.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the 8,000 tests from garbage collections, which take a sixth of the time of collecting them."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def _rank(item: pytest.Item) -> int:
    if item.get_closest_marker("alone") or item.nodeid.startswith(LAST):
        return 2
    return 0 if item.nodeid.startswith(FIRST) else 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move tests marked `alone` to the end: in between, all workers would wait for the longest running test.

    A measurement above its limit is repeated, at most four times and in a quieter moment if possible: the machine
    and its host may have other work.
    """
    leave_out(config, items)
    items.sort(key=_rank)
    for item in items:
        if item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.flaky(reruns=4, reruns_delay=5))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the counts of a worker to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        counts: Counter[str] = session.config.stash[NOT_RUN]
        session.config.workeroutput["not_run"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Take the counts of a worker. One that crashed has none."""
    counts: Counter[str] = Counter(getattr(node, "workeroutput", {}).get("not_run", {}))
    node.config.stash[NOT_RUN] = counts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in summarize(config.stash.get(NOT_RUN, Counter())):
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let daemons of a test, and those of fixtures that it is the first to use, be forked unless it measures."""
    measures = any(item.get_closest_marker(name) for name in ("alone", "long"))
    with installed_programs(measures):
        return (yield)


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a test marked `alone` without others, which would distort its measurement of this machine."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    alone = request.node.get_closest_marker("alone") is not None
    with taking_turns(shared, alone=alone):
        if alone and getattr(request.node, "execution_count", 1) > 1:
            wait_for_quiet_host()
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return one Chromium for the tests of a file. Playwright is imported for these tests only."""
    from playwright.sync_api import expect

    from scripts.screenshots import chromium

    expect.set_options(timeout=MAX_WAIT_SECONDS * 1000)  # 5 s by default, which is short on a busy machine
    with chromium() as one:
        yield one
