"""Settings of hypothesis, and which tests run alone or together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from support.exclusive_lock import taking_turns
from support.waiting import wait_for_a_quiet_host

# The links of a simulated sysfs lead in circles, and no test lives there.
collect_ignore = ["machines"]

# A busy machine is slow; how long an example takes says nothing about the code. What passed passes again: the same
# examples every time; `make fuzz` is who looks for others.
settings.register_profile("memwatch", deadline=None, derandomize=True)
settings.load_profile("memwatch")

# A shell starts what runs in its background with SIGINT ignored, and so would be every program that a test ends so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What these files share takes 5 to 20 seconds to make: a Prometheus with a past, a built wheel, recordings.
_SHARING = (
    "deploy/test_dashboards",
    "deploy/test_package",
    "integration/test_history_page",
    "integration/test_replay_daemon",
)
TOGETHER = tuple(f"tests/{name}.py::" for name in _SHARING)


class Scheduling(LoadScopeScheduling):
    """Each worker gets the next test when it is done with one, or the next of those files, the first of all."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0] if nodeid.startswith(TOGETHER) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who must be alone comes last: in between, all workers would wait until the longest test is over.

    A figure that is too high is measured again, four times at most and in a quieter moment if one comes: a machine
    has other work as well, and its host too.
    """
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)
    for item in items:
        if item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.flaky(reruns=4, reruns_delay=5))


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that is marked `alone` measures this machine, and a neighbour would be in its figures."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    alone = request.node.get_closest_marker("alone") is not None
    with taking_turns(shared, alone=alone):
        if alone and getattr(request.node, "execution_count", 1) > 1:
            wait_for_a_quiet_host()
        yield
