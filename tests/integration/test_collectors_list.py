"""The list of collectors, and the collectors for systems without /proc."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import psutil
import pytest

from memwatch.core.collectors import list_collectors, other_systems
from memwatch.core.collectors.base import Host
from memwatch.core.linux.files import ParseError, SourceUnavailable
from memwatch.core.model import Absent
from memwatch.core.snapshot import Swap

RUN_ALL = """
import sys
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Host
for entry in list_collectors(Host()):
    try:
        collector = entry.make()
        collector.collect()
        collector.close()
    except SourceUnavailable:
        pass
assert "psutil" not in sys.modules
"""


@pytest.mark.parametrize(("platform", "at_least"), [("linux", 5), ("darwin", 2)])
def test_entries_match_their_collectors(platform: str, at_least: int) -> None:
    """The list and the collector agree on name and `may_block`."""
    entries = list_collectors(Host(platform=platform))
    made = []
    for entry in entries:
        with contextlib.suppress(SourceUnavailable):
            collector = entry.make()
            collector.close()
            made.append((entry, collector))

    assert len(made) >= at_least
    for entry, collector in made:
        assert (collector.name, collector.may_block) == (entry.name, entry.may_block)
    assert len({entry.name for entry in entries}) == len(entries)


def test_disabled_collectors_are_not_listed() -> None:
    names = [entry.name for entry in list_collectors(Host(platform="linux"), disabled={"psi", "numa"})]

    assert "meminfo" in names
    assert not {"psi", "numa"} & set(names)


def test_psutil_is_never_imported_on_linux() -> None:
    """Every Linux collector runs on this machine without psutil."""
    done = subprocess.run([sys.executable, "-c", RUN_ALL], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_psutil_host_reports_ram_and_swap() -> None:
    """The pool matches psutil and adds up."""
    collector = other_systems.HostCollector()
    findings = collector.collect()
    (pool,), swap = findings.pools, findings.swap
    collector.close()

    assert pool.size_bytes == psutil.virtual_memory().total
    assert pool.available_bytes == pytest.approx(psutil.virtual_memory().available, rel=0.01)
    assert pool.unattributed_bytes is Absent.NOT_SUPPORTED
    assert isinstance(swap, Swap)
    assert swap.size_bytes == psutil.swap_memory().total


def test_available_above_size_is_rejected() -> None:
    with pytest.raises(ParseError, match="do not fit in 10"):
        other_systems.build_pool(10, 11, 5)


def test_psutil_processes_finds_this_process() -> None:
    """Size and start time match psutil."""
    collector = other_systems.ProcessesCollector(top=10_000)
    findings = collector.collect()
    own = next(process for process in findings.processes if process.pid == os.getpid())
    collector.close()

    assert own.start_time == pytest.approx(psutil.Process().create_time(), abs=0.1)
    assert own.rss_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    assert findings.process_scan is not None
    assert findings.process_scan.seen >= len(findings.processes)
    assert sum(owner.processes for owner in findings.owners) == len(findings.processes)


def test_unknown_psutil_user_is_not_permitted() -> None:
    """psutil returns None for "not permitted"."""
    memory = psutil.Process().memory_info()
    info = {"pid": 5, "create_time": 1.0, "name": "x", "username": None, "memory_info": memory}

    assert other_systems.build_process(info).user is Absent.NOT_PERMITTED
    (owner,) = other_systems.sum_owners([info, info])
    assert (owner.name, owner.processes, owner.rss_bytes) == (Absent.NOT_PERMITTED, 2, 2 * memory.rss)
