"""The list of collectors, and those for systems without /proc."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import psutil
import pytest

from memwatch.collectors import list_collectors, psutil_host, psutil_processes
from memwatch.collectors.base import Host
from memwatch.linux.files import ParseError, SourceUnavailable
from memwatch.model import Absent

RUN_ALL = """
import sys
from memwatch.linux.files import SourceUnavailable
from memwatch.collectors import list_collectors
from memwatch.collectors.base import Host
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
def test_names_are_file_names(platform: str, at_least: int) -> None:
    """A collector has the name of its file, in the list as in itself, and says the same about blocking."""
    entries = list_collectors(Host(platform=platform))
    made = []
    for entry in entries:
        with contextlib.suppress(SourceUnavailable):
            collector = entry.make()
            collector.close()
            made.append((entry, collector))

    assert len(made) >= at_least
    for entry, collector in made:
        assert type(collector).__module__ == f"memwatch.collectors.{entry.name}"
        assert (collector.name, collector.may_block) == (entry.name, entry.may_block)
    assert len({entry.name for entry in entries}) == len(entries)


def test_disabled_collectors_are_not_listed() -> None:
    """A collector that the user switched off is not there at all."""
    names = [entry.name for entry in list_collectors(Host(platform="linux"), disabled={"psi", "numa"})]

    assert "meminfo" in names
    assert not {"psi", "numa"} & set(names)


def test_psutil_is_never_imported_on_linux() -> None:
    """Every collector of Linux runs on this machine without psutil."""
    done = subprocess.run([sys.executable, "-c", RUN_ALL], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_other_systems_have_ram_and_swap() -> None:
    """Through psutil the pool is as large as psutil says, and adds up."""
    collector = psutil_host.Collector()
    findings = collector.collect()
    (pool,), swap = findings.pools, findings.swap
    collector.close()

    assert pool.size_bytes == psutil.virtual_memory().total
    assert pool.available_bytes == pytest.approx(psutil.virtual_memory().available, rel=0.01)
    assert pool.unattributed_bytes is Absent.NOT_SUPPORTED
    assert swap is not None
    assert swap.size_bytes == psutil.swap_memory().total


def test_psutil_contradicts_itself() -> None:
    """More available than there is is refused."""
    with pytest.raises(ParseError, match="do not fit in 10"):
        psutil_host.build_pool(10, 11, 5)


def test_other_systems_have_processes() -> None:
    """Through psutil this very process is found, with its size and its start."""
    collector = psutil_processes.Collector(top=10_000)
    findings = collector.collect()
    own = next(process for process in findings.processes if process.pid == os.getpid())
    collector.close()

    assert own.start_time == pytest.approx(psutil.Process().create_time(), abs=0.1)
    assert own.rss_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    assert findings.process_scan is not None
    assert findings.process_scan.seen >= len(findings.processes)
    assert sum(owner.processes for owner in findings.owners) == len(findings.processes)


def test_user_that_psutil_may_not_know() -> None:
    """None is psutil's word for "not permitted"."""
    memory = psutil.Process().memory_info()
    info = {"pid": 5, "create_time": 1.0, "name": "x", "username": None, "memory_info": memory}

    assert psutil_processes.build_process(info).user is Absent.NOT_PERMITTED
    (owner,) = psutil_processes.sum_owners([info, info])
    assert (owner.name, owner.processes, owner.rss_bytes) == (Absent.NOT_PERMITTED, 2, 2 * memory.rss)
