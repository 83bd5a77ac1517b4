"""`memwatch run` reports peaks that the kernel counts, which no sample can miss."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from memwatch.cli.run import find_home, make, peak_cgroup
from support.client_process import OBSERVED, memwatch
from support.dead_address import dead_address
from support.null_reasons import unexplained_nulls

MIB = 1 << 20
SPIKE = """
import mmap, time, memwatch
def spike(mib):
    block = mmap.mmap(-1, mib << 20)
    for _ in range(mib):
        block.write(bytes(1 << 20))
    time.sleep(0.02)
    block.close()
spike(300)
with memwatch.track("small") as small:
    spike(20)
"""


def test_transient_of_a_child_is_reported_exactly() -> None:
    """A child of the program has 300 MiB for 20 ms, and resets its own counter with `track` afterwards."""
    url = f"http://{dead_address()}"
    done = memwatch("--url", url, "--json", "run", "--", "sh", "-c", '"$0" -c "$1"; true', sys.executable, SPIKE)
    words = memwatch("--url", url, "run", "--", sys.executable, "-c", SPIKE).stderr

    found = json.loads(done.stderr)
    assert found["peak_process_rss_bytes"] == pytest.approx(330 * MIB, abs=30 * MIB)
    assert found["peak_rss_bytes"] >= found["peak_process_rss_bytes"]
    assert found["peak_cgroup_bytes"] is None or found["peak_cgroup_bytes"] > 300 * MIB
    assert list(unexplained_nulls(found)) == []
    assert "peak RSS, its largest process " in words
    assert "peak RSS, all processes of the program, sampled " in words


def test_program_smaller_than_memwatch_has_no_exact_peak() -> None:
    """It inherits the peak of the process that starts it, so the kernel's count says nothing."""
    program = f"{OBSERVED}\nwait_for_samples()"
    done = memwatch("--url", f"http://{dead_address()}", "--json", "run", "--", sys.executable, "-c", program)

    found = json.loads(done.stderr)
    assert found["peak_process_rss_bytes"] is None
    assert found["peak_rss_bytes"] > 0


@pytest.mark.parametrize(
    ("lines", "control", "home"),
    [
        ("4:memory:/a\n0::/\n", "", ("sys/fs/cgroup/memory/a", "memory.max_usage_in_bytes")),
        ("0::/\n", "cpu memory\n", ("sys/fs/cgroup", "memory.peak")),
        ("0::/\n", "cpu\n", None),
        ("nonsense\n", "", None),
    ],
    ids=["version 1", "root of version 2", "inside a group of version 2", "unreadable"],
)
def test_group_is_made_only_below_the_own_one(
    tmp_path: Path, lines: str, control: str, home: tuple[str, str] | None
) -> None:
    """The kernel allows it there only; elsewhere the program would escape limits."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/a").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    (tmp_path / "sys/fs/cgroup/cgroup.subtree_control").write_text(control)

    found = find_home(tmp_path)

    assert found == (None if home is None else (tmp_path / home[0], home[1]))


def test_group_without_a_counter_is_removed(tmp_path: Path) -> None:
    """As before Linux 5.19, or in a folder that is no group at all."""
    assert make(tmp_path, "memory.peak") is None
    assert list(tmp_path.iterdir()) == []
    assert make(tmp_path / "missing", "memory.peak") is None
    with peak_cgroup(tmp_path) as group:
        assert group is None
