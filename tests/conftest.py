"""Hypothesis settings, the lanes and the order of the tests, and turns of those that run alone."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from support.budget import RESULTS, read_measures
from support.budget import summarize as summarize_measures
from support.fork_server import installed_programs
from support.lanes import Lane, assign_lane, count_workers, lane_of, running, runs_alone, taking_turns
from support.needed_programs import NOT_RUN, leave_out, path_of, summarize
from support.once import shared_folder
from support.paths import ROOT, is_tested_here
from support.purity import NotPureError, guarded
from support.scheduling import Scheduling
from support.shared_compilation import import_share
from support.shared_daemons import SharedDaemons

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from support.browsing import SharedBrowser

pytest_plugins = ("support.failures", "support.cpu_use", "support.deadline", "support.left_open")

# Links of a simulated sysfs form cycles, and there are no tests.
collect_ignore = ["machines"]

# On a busy machine examples are slow, so there is no deadline. Examples are the same in every run, and few: 100
# of each took a tenth of the CPU time of the pure lane. `--hypothesis-profile many` and `make fuzz` try others.
settings.register_profile("memwatch", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("many", deadline=None, max_examples=2000)
settings.load_profile("memwatch")

# Modules and templates are compiled once, as by `make`, even if the environment forbids Python to write: compiling
# takes more memory and time than tests allow.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

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
FIRST = tuple(f"tests/{name}.py::" for name in _SHARING)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    # Otherwise xdist starts with the scopes of the most tests, among them those that belong at the end.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Exempt the tests from garbage collections, which take a sixth of the time of collecting 10,000 of them."""
    gc.disable()
    import_share(session.config)
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the workers of `-n auto`: tests of processes wait more than they compute, unless they are long."""
    cores = os.cpu_count() or 1
    computes = config.option.markexpr in (Lane.PURE.value, Lane.LONG.value)
    return count_workers(config.args, cores if computes else 2 * cores)


def _rank(item: pytest.Item) -> int:
    if runs_alone(item):
        return 2
    return 0 if item.nodeid.startswith(FIRST) else 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Assign lanes, and move tests that run alone to the end: all workers would wait for the longest one."""
    leave_out(config, items)
    for item in items:
        assign_lane(item)
    items.sort(key=_rank)


def pytest_sessionstart(session: pytest.Session) -> None:
    if not is_tested_here(ROOT):
        raise pytest.UsageError(
            f"Python imports a memwatchd of another checkout than {ROOT}: run make .venv/.test here, or set "
            f"PYTHONPATH={ROOT}/daemon:{ROOT}/web"
        )
    if session.config.option.markexpr == Lane.MEASURE.value:
        RESULTS.unlink(missing_ok=True)


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
    measures = summarize_measures(read_measures()) if config.option.markexpr == Lane.MEASURE.value else []
    for line in [*summarize(config.stash.get(NOT_RUN, Counter())), *measures]:
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let daemons of a test, and those of fixtures that it is the first to use, be forked unless it measures."""
    lane = lane_of(item)
    with running(lane), installed_programs(lane in (Lane.MEASURE, Lane.LONG)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _kept_pure(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _kept_pure(item):
        return (yield)


@contextmanager
def _kept_pure(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the pure lane that is not, also if the code under test has swallowed the guard's error."""
    if lane_of(item) is not Lane.PURE:
        yield
        return
    with guarded() as found:
        yield
    if found:
        raise NotPureError(f"a pure test {found[0]}")


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a test about this machine without others, which would be a part of what it sees."""
    if lane_of(request.node) is Lane.PURE:
        yield
        return
    with taking_turns(shared_folder(tmp_path_factory), alone=runs_alone(request.node)):
        yield


@pytest.fixture(scope="session")
def _shared_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDaemons]:
    daemons = SharedDaemons(tmp_path_factory.mktemp("shared"))
    yield daemons
    daemons.close()


@pytest.fixture
def shared_daemons(_shared_daemons: SharedDaemons) -> Iterator[SharedDaemons]:
    """Return the daemons of this worker for a test that only reads. One that changes a daemon fails."""
    yield _shared_daemons
    assert _shared_daemons.take_changes() == {}, "this test changes a daemon: start its own by running_daemon"


@pytest.fixture(scope="session")
def chromium() -> Iterator[SharedBrowser]:
    """Return one Chromium for the tests of a worker. Playwright is imported for these tests only."""
    from scripts import screenshots
    from support.browsing import SharedBrowser

    with screenshots.chromium() as one:
        shared = SharedBrowser(one)
        yield shared
        shared.close()


@pytest.fixture(scope="session")
def _whole_chromium(chromium: SharedBrowser) -> Iterator[SharedBrowser]:
    from scripts import screenshots

    shared = chromium.beside(path_of("chromium"), screenshots.QUIET)
    yield shared
    shared.close()


@pytest.fixture
def whole_browser(_whole_chromium: SharedBrowser) -> Iterator[SharedBrowser]:
    """Return a Chromium with what a browser without windows lacks: notifications and installed pages."""
    with _whole_chromium.in_use():
        yield _whole_chromium


@pytest.fixture
def browser(chromium: SharedBrowser) -> Iterator[SharedBrowser]:
    """Return the Chromium of this worker. Its contexts are closed at the end of the test."""
    with chromium.in_use():
        yield chromium


@pytest.fixture(scope="module")
def _page_of_this_file(chromium: SharedBrowser) -> Iterator[Page]:
    with chromium.in_use():
        yield chromium.new_page()


@pytest.fixture
def visited_page(browser: SharedBrowser, _page_of_this_file: Page) -> Iterator[Page]:
    """Return a warm page for a test that only looks: a new context takes half as much CPU time again."""
    with browser.reset(_page_of_this_file) as page:
        yield page
